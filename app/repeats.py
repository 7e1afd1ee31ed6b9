"""Repeats: what would be logged for every request is logged once a minute, with a count."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

PAUSE_SECONDS = 60.0


class Repeats:
    """Counts by key; the keys come from a fixed set, never from a request."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lines: dict[str, tuple[int, float]] = {}
        """Happened since the last line, and when the next one may be logged."""

    def due(self, key: str) -> int | None:
        """It happened again. How often since the last line, if one is to be logged now."""
        count, at = self._lines.get(key, (0, 0.0))
        if self._clock() < at:
            self._lines[key] = (count + 1, at)
            return None
        self._lines[key] = (0, self._clock() + PAUSE_SECONDS)
        return count + 1
