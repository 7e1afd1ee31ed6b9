"""Caches: everything that a process remembers of conversations, within one bound.

Where there is no more room, what was kept or used longest ago goes, in whichever cache it is. So nobody has to say how
the memory is best divided, and it does not grow with the number of caches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from operator import attrgetter
from threading import RLock
from typing import Any, Generic, TypeVar

CACHE_BYTES = 128_000_000
"""Default bound of all caches together, in bytes."""
ENTRY_BYTES = 300
"""Fixed overhead of an entry in bytes: its places in a table and in the order of use."""
MOST_AT_ONCE = 256
"""Entries that go for one that is kept: that takes a millisecond, in which everybody waits. Others go with the next."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Caches:
    """All caches of a process, and how much they hold. Safe to use from several threads."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self._most_bytes = most_bytes
        self.lock = RLock()
        """Lock held while anything changes: a thread that keeps something in one cache pushes out what is in others."""
        self.held_bytes = 0
        self._all: list[Cache[Any, Any]] = []
        self._ages = count()

    def cache(
        self, name: str, size: Callable[[K, V], int], pushed_out: Callable[[K, V], object] | None = None
    ) -> Cache[K, V]:
        """Make a cache; several may have one name. `size`: bytes of a key and its value together, asked when it is
        kept. `pushed_out` is given what made room, not what was taken out; the lock is held meanwhile."""
        made = Cache(self, name, size, pushed_out)
        self._all.append(made)
        return made

    def bytes_of(self, name: str) -> int:
        """Bytes that the caches of this name hold."""
        return sum(cache.held_bytes for cache in self._all if cache.name == name)

    def age(self) -> int:
        """Age of an entry that is kept or used now: more than of anything before."""
        return next(self._ages)

    def make_room(self, latest: int) -> None:
        """Push out the oldest entries. Those of the latest age stay, however large they are."""
        for _ in range(MOST_AT_ONCE):
            if self.held_bytes <= self._most_bytes:
                return
            oldest = min((cache for cache in self._all if len(cache)), key=attrgetter("oldest"))
            if oldest.oldest == latest:
                return
            oldest.push_out()


class _Entry(Generic[V]):
    __slots__ = ("age", "size", "value")

    def __init__(self, value: V, size: int, age: int) -> None:
        self.value, self.size, self.age = value, size, age


class Cache(Generic[K, V]):
    """One cache of many. Keeping an entry in another one may push out its entries at any time."""

    def __init__(
        self, caches: Caches, name: str, size: Callable[[K, V], int], pushed_out: Callable[[K, V], object] | None
    ) -> None:
        self.name = name
        self.held_bytes = 0
        self._caches = caches
        self._size = size
        self._pushed_out = pushed_out
        self._held: OrderedDict[K, _Entry[V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value without refreshing it: it goes as soon as before."""
        entry = self._held.get(key)
        return None if entry is None else entry.value

    def use(self, key: K) -> V | None:
        """Return the value, and count the entry as the latest."""
        with self._caches.lock:
            if (entry := self._held.get(key)) is None:
                return None
            self._held.move_to_end(key)
            entry.age = self._caches.age()
            return entry.value

    def keep(self, key: K, value: V) -> None:
        """Keep the entry as the latest, in place of the one that was there."""
        size = self._size(key, value) + ENTRY_BYTES
        with self._caches.lock:
            if (before := self._held.pop(key, None)) is not None:
                self._weigh(-before.size)
            entry = self._held[key] = _Entry(value, size, self._caches.age())
            self._weigh(size)
            self._caches.make_room(entry.age)

    def pop(self, key: K) -> V | None:
        with self._caches.lock:
            if (entry := self._held.pop(key, None)) is None:
                return None
            self._weigh(-entry.size)
            return entry.value

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        """Take out all entries that this is true of."""
        with self._caches.lock:
            for key in [key for key, value in self.items() if gone(key, value)]:
                self.pop(key)

    def items(self) -> list[tuple[K, V]]:
        """Return all entries, the next to go first."""
        with self._caches.lock:
            return [(key, entry.value) for key, entry in self._held.items()]

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest(self) -> int:
        """Age of the next entry to go. There has to be one."""
        return next(iter(self._held.values())).age

    def push_out(self) -> None:
        """Take out the next entry to go. There has to be one."""
        key, entry = self._held.popitem(last=False)
        self._weigh(-entry.size)
        if self._pushed_out is not None:
            self._pushed_out(key, entry.value)

    def _weigh(self, size: int) -> None:
        self.held_bytes += size
        self._caches.held_bytes += size
