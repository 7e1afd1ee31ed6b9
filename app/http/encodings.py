"""Encodings: decodes `content-encoding` piece by piece, without input or output.

A few bytes may decode to very many, so pieces are decoded on demand, up to the caller's maximum. The window of zstd is
at most 8 MiB (RFC 9659): frames that need more memory are not decoded.
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
"""Maximum decoded bytes of one piece."""
MOST_LAYERS = 3
"""Maximum number of encodings applied to one body."""
MOST_MEMBERS = 1_000
"""Maximum gzip members or zstd frames of one body; the size limits do not count empty ones."""
_WINDOW_LOG = 23
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class UndecodableBody(Exception):
    """Raised for a body that is cut off, or is not in the encoding that its headers name."""


class DecodedTooLarge(Exception):
    """Raised when a body decodes to more than the allowed bytes."""


class _Inflater:
    """zlib's decompressor with the interface of zstd's. It also decodes raw deflate, which some clients send."""

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
    """Decoder of one encoding, fed as its bytes arrive."""

    def __init__(self, make: Callable[[], Decompressor], at_most: int) -> None:
        """`at_most`: maximum decoded bytes."""
        self._make = make
        self._left = at_most
        self._members = 0
        self._inner: Decompressor | None = None

    def fed(self, data: bytes) -> Iterator[bytes]:
        """Decode further bytes, and yield the pieces on demand. Raises `UndecodableBody` and `DecodedTooLarge`."""
        # In slices, because the decompressor copies its unused input with each piece.
        for start in range(0, len(data), PIECE_BYTES):
            yield from self._fed(data[start : start + PIECE_BYTES])

    def ended(self) -> Iterator[bytes]:
        """Yield the remaining pieces after all bytes were fed. Raises `UndecodableBody` if the body is cut off."""
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
    """Return the decoders for a header's encodings, in the order of decoding; None if there are too many or unknown
    ones. `at_most`: maximum decoded bytes of each."""
    names = [name for part in encodings.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(names) > MOST_LAYERS or not _KINDS.keys() >= set(names):
        return None
    return [Decoder(_KINDS[name], at_most) for name in reversed(names)]


def decoded(data: bytes, by: Sequence[Decoder]) -> Iterator[bytes]:
    """Decode a whole body, and yield the pieces on demand. Raises `UndecodableBody` and `DecodedTooLarge`."""
    return chain(fed(by, data), ended(by))


def fed(by: Sequence[Decoder], data: bytes) -> Iterator[bytes]:
    """Decode further bytes of a body through all decoders; see `Decoder.fed`."""
    pieces: Iterator[bytes] = iter((data,))
    for decoder in by:
        pieces = chain.from_iterable(map(decoder.fed, pieces))
    return pieces


def ended(by: Sequence[Decoder]) -> Iterator[bytes]:
    """Yield the remaining pieces of a body through all decoders; see `Decoder.ended`."""
    for number, decoder in enumerate(by):
        for piece in decoder.ended():
            yield from fed(by[number + 1 :], piece)
