"""Bytes in flight: bodies that are held in memory while their requests are served, of all callers together."""

from __future__ import annotations

from collections.abc import Callable

from app.errors import TooManyBytesInFlight


class BytesInFlight:
    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self.held_bytes = 0

    def counted(self) -> Counted:
        return Counted(self)

    def take(self, size: int) -> None:
        """Raises `TooManyBytesInFlight`; they are counted anyway."""
        self.held_bytes += size
        if self.held_bytes > self._at_most:
            raise TooManyBytesInFlight("Too many request bytes are being served at once. Try again in a second.")

    def give_back(self, size: int) -> None:
        self.held_bytes -= size


class Counted:
    """The bytes of one request, until it is over."""

    __slots__ = ("_all", "_own")

    def __init__(self, everybodys: BytesInFlight) -> None:
        self._all = everybodys
        self._own = 0

    def __enter__(self) -> Callable[[int], None]:
        """What is reported of them. Raises `TooManyBytesInFlight`."""
        return self._count

    def __exit__(self, *_: object) -> None:
        self._all.give_back(self._own)

    def _count(self, size: int) -> None:
        self._own += size
        self._all.take(size)
