"""Bytes in flight: bodies that are held in memory while their requests are served, of all callers together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.errors import TooManyBytesInFlight


class BytesInFlight:
    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._bytes = 0

    @contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """Counts what it is told of one request, until that is over. Raises `TooManyBytesInFlight`."""
        own = 0

        def count(size: int) -> None:
            nonlocal own
            own += size
            self._bytes += size
            if self._bytes > self._at_most:
                raise TooManyBytesInFlight("Too many request bytes are being served at once. Try again in a second.")

        try:
            yield count
        finally:
            self._bytes -= own
