"""Maps of small entries, bounded by their number. Entries that may be large are in `caches`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Generic, TypeVar

from msgspec import Struct

MOST_REMEMBERED = 10_000
"""Default number of entries, where they are small and no caller has to count on one of them."""
REMINDER_SECONDS = 60.0
MOST_REPEATED = 1_000

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """Map that pushes out the entry that was kept or used longest ago; `get` refreshes nothing. Not to be used by
    several threads without a lock."""

    def __init__(self, most: int, pushed_out: Callable[[K, V], object] | None = None) -> None:
        """Hold at most `most` entries. `pushed_out` is given what made room, not what was taken out."""
        super().__init__()
        self._most = most
        self._pushed_out = pushed_out

    def use(self, key: K) -> V | None:
        """Return the value, and count the entry as the latest."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: K, value: V) -> None:
        """Keep the entry as the latest."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            pushed_out = self.popitem(last=False)
            if self._pushed_out is not None:
                self._pushed_out(*pushed_out)


class HistoryKey(Struct, frozen=True):
    """Key of a history that lasts when it has grown or its last turn was edited."""

    scope: Hashable
    """Purpose of the look-up: two scopes know nothing of each other."""
    digests: Sequence[bytes]
    """Digests of the history's beginnings, the shortest first, the longest up to its last unit. None is the whole
    history's: that may be edited."""


class HistoryMap(Generic[V]):
    """Latest value for each history, branches apart. Histories are told apart by content: several may have one name."""

    def __init__(self) -> None:
        self._kept: BoundedMap[tuple[Hashable, bytes], V] = BoundedMap(MOST_REMEMBERED)

    def find(self, history: HistoryKey) -> V | None:
        """Return the value kept for the history when it was shorter, or for the one it branched off from."""
        for digest in reversed(history.digests):
            if (value := self._kept.get((history.scope, digest))) is not None:
                return value
        return None

    def keep(self, history: HistoryKey, value: V) -> None:
        if history.digests:
            self._kept.keep((history.scope, history.digests[-1]), value)

    def forget(self, history: HistoryKey) -> None:
        for digest in history.digests:
            self._kept.pop((history.scope, digest), None)


class LogThrottle:
    """Throttle of log lines: an event that lasts is logged once, then once a minute with a count, and once when it is
    over."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lasting: BoundedMap[Hashable, tuple[float, float, int]] = BoundedMap(MOST_REPEATED)
        """When each event began, when it was last reported, and how often it happened."""

    def count(self, what: Hashable) -> int | None:
        """Record an event. Returns how often it happened since it began, if that is to be reported now."""
        now, entry = self._clock(), self._lasting.get(what)
        if entry is None:
            self._lasting.keep(what, (now, now, 1))
            return 1
        began, reported, times = entry
        is_due = now - reported >= REMINDER_SECONDS
        self._lasting[what] = began, now if is_due else reported, times + 1
        return times + 1 if is_due else None

    def end(self, what: Hashable) -> tuple[int, float] | None:
        """Record that the event did not happen. If it had: how often, and for how many seconds."""
        if (entry := self._lasting.pop(what, None)) is None:
            return None
        began, _, times = entry
        return times, round(self._clock() - began, 1)
