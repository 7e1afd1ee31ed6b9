"""Decoder for bodies with a `content-encoding`. It does no I/O.

A small body may decode to a huge one, so the decoder yields pieces on demand, up to the caller's maximum. It refuses
zstd frames that need a window of more than 8 MiB (RFC 9659).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE_BYTES = 65_536
"""Maximum decoded bytes of one piece."""
MOST_MEMBERS = 1_000
"""Maximum number of gzip members or zstd frames in one body. They may be empty, so a limit of bytes is not enough."""
_WINDOW_LOG = 23


class UndecodableBody(Exception):
    """Raised for a body that is cut off or does not have the declared encoding."""


class DecodedTooLarge(Exception):
    """Raised when a body decodes to more than the allowed bytes."""


class _Gunzip:
    """zlib's decompressor with zstd's interface."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _unzstd() -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


Decompressor = _Gunzip | zstd.ZstdDecompressor
KINDS: dict[str, Callable[[], Decompressor]] = {"gzip": _Gunzip, "x-gzip": _Gunzip, "zstd": _unzstd}


def encoding_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the encoding of a body; empty if it has none. Several encodings are joined by commas."""
    sent = b",".join([value for name, value in headers if name == b"content-encoding"]).decode("latin-1").lower()
    return ",".join(name for part in sent.split(",") if (name := part.strip()) not in ("", "identity"))


def decoded(data: bytes, encoding: str, at_most: int) -> Iterator[bytes]:
    """Decode a whole body, and yield the pieces on demand. `encoding`: one of `KINDS`; `at_most`: maximum decoded
    bytes. Raises `UndecodableBody` and `DecodedTooLarge`."""
    inner: Decompressor | None = None
    left, members = at_most, 0
    # Feed slices, because the decompressor copies its unused input with each piece. The last slice is empty.
    for start in range(0, len(data) + PIECE_BYTES, PIECE_BYTES):
        unread, is_last = data[start : start + PIECE_BYTES], start >= len(data)
        while True:
            if inner is None or inner.eof:
                if not unread:
                    break
                inner, members = KINDS[encoding](), members + 1
                if members > MOST_MEMBERS:
                    raise UndecodableBody(f"It has more than {MOST_MEMBERS} parts.")
            try:
                piece = inner.decompress(unread, PIECE_BYTES)
            except (zlib.error, zstd.ZstdError) as error:
                raise UndecodableBody(str(error)) from error
            left -= len(piece)
            if left < 0:
                raise DecodedTooLarge
            if piece:
                yield piece
            unread = inner.unused_data if inner.eof else b""
            if not inner.eof and (not piece if is_last else inner.needs_input):
                break
    if inner is None or not inner.eof:
        raise UndecodableBody("It ends too early.")
