"""Random bytes, taken from the system a page at a time: a call to it costs as much as all else that a name needs."""

from __future__ import annotations

import os

PAGE_BYTES = 4_096


class Randomness:
    """Random bytes as unpredictable as the system's own. For one thread."""

    def __init__(self) -> None:
        self._page = b""
        self._taken = 0
        # A process that was forked must not take the same bytes as the one it comes from.
        os.register_at_fork(after_in_child=self._turn_page)

    def hex(self, size: int) -> str:
        """Return `count` bytes, at most a page, two digits each."""
        if self._taken + size > len(self._page):
            self._turn_page()
        start, self._taken = self._taken, self._taken + size
        return self._page[start : self._taken].hex()

    def _turn_page(self) -> None:
        self._page, self._taken = os.urandom(PAGE_BYTES), 0


RANDOMNESS = Randomness()
