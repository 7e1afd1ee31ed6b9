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

# PostgreSQL refuses NUL in text, and neither database can encode half a surrogate pair.
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
        return self.conversation_id is None or storable(conversation_id) == storable(self.conversation_id)


def storable(text: str) -> str:
    """The text with U+FFFD in place of what the databases cannot store."""
    if text.isascii() and "\0" not in text:  # Nearly all of it are names and digests.
        return text
    return _UNSTORABLE.sub("\ufffd", text)


class Caches:
    """All caches of a process, and how much they hold. Safe to use from several threads."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.lock = RLock()
        """Lock held while anything changes: a thread that keeps something in one cache pushes out what is in others."""
        self.held_bytes = 0
        self._all: list[Cache[Any, Any]] = []
        self.sizes: OrderedDict[tuple[Cache[Any, Any], Any], int] = OrderedDict()
        """Bytes of each entry, by cache and key, the next to go first."""

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

    def make_room(self) -> None:
        """Push out the oldest entries. The latest one stays, however large it is."""
        for _ in range(min(MOST_AT_ONCE, len(self.sizes) - 1)):
            if self.held_bytes <= self.most_bytes:
                return
            cache, key = next(iter(self.sizes))
            value = cache.pop(key)
            if cache.pushed_out is not None:
                cache.pushed_out(key, value)


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
        self._values: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """Return the value without refreshing it: it goes as soon as before."""
        return self._values.get(key)

    def use(self, key: K) -> V | None:
        """Return the value, and count the entry as the latest."""
        with self._caches.lock:
            if key in self._values:
                self._caches.sizes.move_to_end((self, key))
            return self._values.get(key)

    def keep(self, key: K, value: V) -> None:
        """Keep the entry as the latest, in place of the one that was there."""
        size = self._size(key, value) + ENTRY_BYTES
        with self._caches.lock:
            self.pop(key)
            self._values[key] = value
            self._caches.sizes[self, key] = size
            self._count(size)
            self._caches.make_room()

    def pop(self, key: K) -> V | None:
        with self._caches.lock:
            if key not in self._values:
                return None
            self._count(-self._caches.sizes.pop((self, key)))
            return self._values.pop(key)

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        """Take out all entries that this is true of."""
        with self._caches.lock:
            for key, value in self.items():
                if gone(key, value):
                    self.pop(key)

    def items(self) -> list[tuple[K, V]]:
        with self._caches.lock:
            return list(self._values.items())

    def _count(self, size: int) -> None:
        self.held_bytes += size
        self._caches.held_bytes += size
