"""Setbacks: a compaction that keeps failing is not tried again on every request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import monotonic

TOLERATED = 1
"""Failures in a row that are tried again at once: the next request may simply have more luck."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0
MOST_REMEMBERED = 10_000


class Setbacks:
    """What failed how often in a row: after the second time a pause, doubled each time up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[Hashable, tuple[int, float]] = OrderedDict()

    def pauses(self, what: Hashable) -> bool:
        """Whether it failed so often of late that it should not be tried now."""
        _, until = self._failures.get(what, (0, 0.0))
        return self._clock() < until

    def failed(self, what: Hashable) -> None:
        count = self._failures.pop(what, (0, 0.0))[0] + 1
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(count - TOLERATED - 1, 10)
        pause = min(doubled, LONGEST_PAUSE_SECONDS) if count > TOLERATED else 0.0
        self._failures[what] = (count, self._clock() + pause)
        while len(self._failures) > MOST_REMEMBERED:
            self._failures.popitem(last=False)

    def succeeded(self, what: Hashable) -> None:
        self._failures.pop(what, None)
