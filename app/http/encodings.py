"""Encodings: what HTTP calls `content-encoding`, undone piece by piece. Pure, and never without a bound.

A few bytes may stand for any number, so nothing is decoded further than the caller asks, which says how
much there may be. zstd may look back over 8 MiB, as RFC 9659 has it: a frame that wants more memory is not decoded.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PIECE_BYTES = 65_536
"""Decoded at once, at most."""
MOST_LAYERS = 3
"""Encodings that lie over each other."""
MOST_MEMBERS = 1_000
"""Members of gzip, or frames of zstd, that one body may be made of: each may hold nothing."""
_WINDOW_LOG = 23
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class UndecodableBody(Exception):
    """Raised for a body in an encoding that is not known here, in another one than it says, or cut off."""


class DecodedTooLarge(Exception):
    """Raised when more bytes would come of a body than are allowed."""


class _Inflater:
    """zlib's, with the interface of zstd's. What begins like no zlib stream is raw, as some clients send it."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._inner = zlib.decompressobj(bits)
        self._began = False

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
        if data and not self._began:
            self._began = True
            if self._bits == _ZLIB and (data[0] & 0x0F != zlib.DEFLATED or int.from_bytes(data[:2], "big") % 31):
                self._inner = zlib.decompressobj(_RAW)
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def _unzstd() -> zstd.ZstdDecompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


Decompressor = _Inflater | zstd.ZstdDecompressor
_KINDS: dict[str, Callable[[], Decompressor]] = {
    "gzip": partial(_Inflater, _GZIP),
    "x-gzip": partial(_Inflater, _GZIP),
    "deflate": partial(_Inflater, _ZLIB),
    "zstd": _unzstd,
}


class Decoder:
    """One encoding, undone as its bytes arrive."""

    def __init__(self, make: Callable[[], Decompressor], at_most: int) -> None:
        """Bound the decoded bytes to `at_most`."""
        self._make = make
        self._left = at_most
        self._members = 0
        self._inner: Decompressor | None = None

    def fed(self, data: bytes) -> Iterator[bytes]:
        """The decoded pieces of further bytes, each when it is asked for. Raises `UndecodableBody`,
        `DecodedTooLarge`."""
        # In slices: what is not needed yet is copied with each piece.
        for start in range(0, len(data), PIECE_BYTES):
            yield from self._fed(data[start : start + PIECE_BYTES])

    def ended(self) -> Iterator[bytes]:
        """Return the rest, after all bytes were fed. Raises `UndecodableBody` if the body is cut off."""
        inner = self._inner
        while inner is not None and not inner.eof and (piece := self._decompressed(inner, b"")):
            yield piece
        if inner is None or not inner.eof:
            raise UndecodableBody("It ends too early.")

    def _fed(self, data: bytes) -> Iterator[bytes]:
        while True:
            inner = self._inner
            if inner is None or inner.eof:
                if not data:
                    return
                inner = self._next()
            if piece := self._decompressed(inner, data):
                yield piece
            data = inner.unused_data if inner.eof else b""
            if not inner.eof and inner.needs_input:
                return

    def _next(self) -> Decompressor:
        self._members += 1
        if self._members > MOST_MEMBERS:
            raise UndecodableBody(f"It has more than {MOST_MEMBERS} parts.")
        self._inner = self._make()
        return self._inner

    def _decompressed(self, inner: Decompressor, data: bytes) -> bytes:
        try:
            piece = inner.decompress(data, PIECE_BYTES)
        except (zlib.error, zstd.ZstdError) as error:
            raise UndecodableBody(str(error)) from error
        self._left -= len(piece)
        if self._left < 0:
            raise DecodedTooLarge
        return piece


def encodings_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return b",".join([value for name, value in headers if name == b"content-encoding"]).decode("latin-1")


def decoders(encodings: str, at_most: int) -> list[Decoder] | None:
    """Decoders that undo a header's encodings, in their order; None where one is not known here. `at_most`: bytes that
    may come of each."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > MOST_LAYERS or not _KINDS.keys() >= set(names):
        return None
    return [Decoder(_KINDS[name], at_most) for name in reversed(names)]


def decoded(data: bytes, by: Sequence[Decoder]) -> Iterator[bytes]:
    """The pieces of a decoded body, each when it is asked for. Raises `UndecodableBody` and `DecodedTooLarge`."""
    return chain(fed(by, data), ended(by))


def fed(by: Sequence[Decoder], data: bytes) -> Iterator[bytes]:
    """The decoded pieces of further bytes of a body, as in `Decoder.fed`."""
    pieces: Iterator[bytes] = iter((data,))
    for decoder in by:
        pieces = chain.from_iterable(map(decoder.fed, pieces))
    return pieces


def ended(by: Sequence[Decoder]) -> Iterator[bytes]:
    """The rest of a body, after all its bytes, as in `Decoder.ended`."""
    for number, decoder in enumerate(by):
        for piece in decoder.ended():
            yield from fed(by[number + 1 :], piece)
