"""Bounded maps: small entries, bounded by their number. Entries that may be large are in `caches`.

Why not `cachetools`: its LRU map refreshes what is looked up, and its FIFO map nothing, where here a caller of the same
map says which (`get`, `use`). It tells nobody what was pushed out, and a look-up takes about half as long again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from time import monotonic
from typing import Generic, TypeVar

MOST_REMEMBERED = 10_000
"""Default number of entries, where they are small and nobody has to count on one of them."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """Map that pushes out the entry that was kept or used longest ago. Not to be used by several threads without a
    lock."""

    def __init__(
        self,
        most: int,
        *,
        seconds: float | None = None,
        clock: Callable[[], float] = monotonic,
        pushed_out: Callable[[K, V], object] | None = None,
    ) -> None:
        """Hold at most `most` entries, with `seconds` only so long from when they were kept; until then each takes
        up its room. `pushed_out` is given what made room, not what was taken out."""
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._until: dict[K, float] = {}
        self._pushed_out = pushed_out
        self._held: OrderedDict[K, V] = OrderedDict()
        if seconds is None:
            self.get = self._held.get  # type: ignore[assignment, method-assign] # it is called often

    def get(self, key: K) -> V | None:
        """Return the value without refreshing it: it goes as soon as before."""
        return self._held.get(key) if self._holds(key) else None

    def use(self, key: K) -> V | None:
        """Return the value, and count the entry as the latest."""
        if (value := self.get(key)) is not None:
            self._held.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        """Keep the entry as the latest, in place of the one that was there."""
        held = self._held
        if self._seconds is not None:
            self._until[key] = self._clock() + self._seconds
        held[key] = value
        held.move_to_end(key)
        if len(held) > self._most:
            self._push_out()

    def pop(self, key: K) -> V | None:
        """Take out the entry; None if it is missing or expired."""
        if key not in self._held:
            return None
        held = self._holds(key)
        value = self._held.pop(key)
        self._until.pop(key, None)
        return value if held else None

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        """Take out all entries for which the predicate is true, expired ones included."""
        for key in [key for key, value in self._held.items() if gone(key, value)]:
            self.pop(key)

    def clear(self) -> None:
        self._held.clear()
        self._until.clear()

    def items(self) -> Iterator[tuple[K, V]]:
        """Return all entries, the next to go first."""
        if self._seconds is None:
            return iter(self._held.items())
        return ((key, value) for key, value in self._held.items() if self._holds(key))

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the next to go first."""
        return filter(self._holds, self._held)

    def __getitem__(self, key: K) -> V:
        if not self._holds(key):
            raise KeyError(key)
        return self._held[key]

    def __contains__(self, key: K) -> bool:
        return key in self._held and (self._seconds is None or self._holds(key))

    def __len__(self) -> int:
        """Number of entries, expired ones included."""
        return len(self._held)

    def _holds(self, key: K) -> bool:
        """True if the entry's time is not over yet."""
        return self._seconds is None or self._until.get(key, 0.0) > self._clock()

    def _push_out(self) -> None:
        key, value = self._held.popitem(last=False)
        self._until.pop(key, None)
        if self._pushed_out is not None:
            self._pushed_out(key, value)
