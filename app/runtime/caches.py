"""Caches: everything that a process remembers of conversations, within one bound.

Where there is no more room, what was kept or used longest ago goes, in whichever cache it is. So no setting has to
divide the memory, and it does not grow with the number of caches.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar

from msgspec import Struct

CACHE_BYTES = 128_000_000
"""Default bound of all caches together, in bytes."""
ENTRY_BYTES = 300
"""Fixed overhead of an entry in bytes: its places in a table and in the order of use."""
MOST_AT_ONCE = 256
"""Entries that go for one that is kept: that takes a millisecond, in which all threads wait. Others go with the
next."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Erased(Struct, frozen=True):
    """A conversation that was erased, or all of a tenant: each cache forgets what this covers."""

    tenant: str
    conversation_id: str | None = None
    """None for all."""

    def covers(self, tenant: str, conversation_id: str) -> bool:
        if tenant != self.tenant:
            return False
        return self.conversation_id is None or _storable(conversation_id) == _storable(self.conversation_id)


def _storable(conversation_id: str) -> str:
    """An id alike as a client sent it and as the database keeps it, which replaces what it cannot store."""
    return _UNSTORABLE.sub("\ufffd", conversation_id)


class _Entry(Generic[K, V]):
    """Entry of a cache, with the bytes that it counts for."""

    __slots__ = ("cache", "key", "size", "value")

    def __init__(self, cache: Cache[K, V], key: K, value: V, size: int) -> None:
        self.cache, self.key, self.value, self.size = cache, key, value, size


class Caches:
    """All caches of a process, and how much they hold. Safe to use from several threads."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.lock = RLock()
        """Lock held while anything changes: a thread that keeps something in one cache pushes out what is in others."""
        self.held_bytes = 0
        self._all: list[Cache[Any, Any]] = []
        self.order: OrderedDict[_Entry[Any, Any], None] = OrderedDict()
        """Entries of all caches, the next to go first."""

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

    def make_room(self, latest: _Entry[Any, Any]) -> None:
        """Push out the oldest entries. The latest one stays, however large it is."""
        for _ in range(MOST_AT_ONCE):
            if self.held_bytes <= self.most_bytes:
                return
            entry = next(iter(self.order))
            if entry is latest:
                return
            entry.cache.pop(entry.key)
            if entry.cache.pushed_out is not None:
                entry.cache.pushed_out(entry.key, entry.value)


class Cache(Generic[K, V]):
    """One cache of many. Keeping an entry in another one may push out its entries at any time."""

    def __init__(
        self, caches: Caches, name: str, size: Callable[[K, V], int], pushed_out: Callable[[K, V], object] | None
    ) -> None:
        self.name = name
        self.held_bytes = 0
        self.pushed_out = pushed_out
        self._caches = caches
        self._size = size
        self._held: dict[K, _Entry[K, V]] = {}

    def get(self, key: K) -> V | None:
        """Return the value without refreshing it: it goes as soon as before."""
        entry = self._held.get(key)
        return None if entry is None else entry.value

    def use(self, key: K) -> V | None:
        """Return the value, and count the entry as the latest."""
        with self._caches.lock:
            if (entry := self._held.get(key)) is None:
                return None
            self._caches.order.move_to_end(entry)
            return entry.value

    def keep(self, key: K, value: V) -> None:
        """Keep the entry as the latest, in place of the one that was there."""
        entry = _Entry(self, key, value, self._size(key, value) + ENTRY_BYTES)
        with self._caches.lock:
            if key in self._held:
                self.pop(key)
            self._held[key] = entry
            self._caches.order[entry] = None
            self.held_bytes += entry.size
            self._caches.held_bytes += entry.size
            if self._caches.held_bytes > self._caches.most_bytes:
                self._caches.make_room(entry)

    def pop(self, key: K) -> V | None:
        with self._caches.lock:
            if (entry := self._held.pop(key, None)) is None:
                return None
            del self._caches.order[entry]
            self.held_bytes -= entry.size
            self._caches.held_bytes -= entry.size
            return entry.value

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        """Take out all entries that this is true of."""
        with self._caches.lock:
            for key, value in self.items():
                if gone(key, value):
                    self.pop(key)

    def items(self) -> list[tuple[K, V]]:
        with self._caches.lock:
            return [(key, entry.value) for key, entry in self._held.items()]

    def __contains__(self, key: K) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)
