"""Bytes in flight: bodies that are held in memory while their requests are served, of all callers together."""

from __future__ import annotations

from collections.abc import Callable

from app.errors import TooManyBytesInFlight


class BytesInFlight:
    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.held_bytes = 0

    def counted(self) -> Counted:
        return Counted(self)


class Counted:
    """Bytes of one request, until it is over."""

    __slots__ = ("_all", "_own")

    def __init__(self, everybodys: BytesInFlight) -> None:
        self._all = everybodys
        self._own = 0

    def __enter__(self) -> Callable[[int], None]:
        """Return a function that adds to them. It raises `TooManyBytesInFlight`; the bytes are counted anyway."""
        return self._count

    def __exit__(self, *_: object) -> None:
        self._all.held_bytes -= self._own

    def _count(self, size: int) -> None:
        everybodys = self._all
        self._own += size
        everybodys.held_bytes += size
        if everybodys.held_bytes > everybodys.at_most:
            raise TooManyBytesInFlight("Too many request bytes are being served at once. Try again in a second.")
