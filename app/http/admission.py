"""Admission: what a request is refused for before anybody looks at what it asks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote_to_bytes

from app.errors import HeadersTooLarge, InvalidRequest, TooManyBytesInFlight
from app.http.relayed import Headers, shadowed_by, shown

HEADER_COUNT = 100
"""Most headers of a request."""
HEADER_BYTES = 32_768
"""Largest sum of a request's headers, names and values."""
MOST_DECODINGS = 5
_SUSPECT = re.compile(rb"[^a-zA-Z0-9/_:-]")
"""Bytes that a path must have to hide a dot, however the dot is written."""
_DOT = re.compile(rb"\xc0\xae|\xe0\x80\xae|\xef\xbc\x8e|%u002e|%uff0e", re.IGNORECASE)
_SLASH = re.compile(rb"\\|\xc0\xaf|\xe0\x80\xaf|\xef\xbc\x8f|\xc1\x9c|%u002f|%u005c|%u2215|%uff0f", re.IGNORECASE)
_AFTER_SEGMENT = re.compile(rb"[;\x00-\x20]")


def check_headers(headers: Headers) -> None:
    """Raises `HeadersTooLarge`, or `InvalidRequest` for a name that some servers take for another."""
    if len(headers) > HEADER_COUNT:
        over = shown(headers[HEADER_COUNT][0])
        raise HeadersTooLarge(
            f"{len(headers)} headers were sent; at most {HEADER_COUNT} are accepted."
            f" The first one too many is {over!r}.",
            over,
        )
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    if size > HEADER_BYTES:
        largest = shown(max(headers, key=lambda header: len(header[0]) + len(header[1]))[0])
        raise HeadersTooLarge(
            f"The headers take {size} bytes; at most {HEADER_BYTES} are accepted. The largest is {largest!r}.",
            largest,
        )
    for name, _ in headers:
        if b"_" in name and (known := shadowed_by(name)) is not None:
            raise InvalidRequest(
                f"The header {shown(name)!r} is refused, because some servers read {shown(known)!r} in it."
                " Send it with hyphens, or leave it out.",
                shown(name),
            )


def leaves_its_place(path: bytes) -> bool:
    r"""True if any server could find a `.` or `..` segment in the path, however it is written. Some decode twice,
    take `\` for `/`, cut off what follows a `;` or a NUL, and read overlong UTF-8."""
    if _SUSPECT.search(path) is None:
        return False
    for _ in range(MOST_DECODINGS):
        plain = _DOT.sub(b".", _SLASH.sub(b"/", path))
        if any(_AFTER_SEGMENT.split(segment, maxsplit=1)[0] in (b".", b"..") for segment in plain.split(b"/")):
            return True
        if (decoded := unquote_to_bytes(plain)) == path:
            return False
        path = decoded
    return True


class BytesInFlight:
    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.held_bytes = 0

    @contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of one request until it is over, by the function that is given. That raises
        `TooManyBytesInFlight`; the bytes are counted anyway."""
        own = 0

        def count(size: int) -> None:
            nonlocal own
            own += size
            self.held_bytes += size
            if self.held_bytes > self.at_most:
                raise TooManyBytesInFlight("Too many request bytes are being served at once. Try again in a second.")

        try:
            yield count
        finally:
            self.held_bytes -= own
