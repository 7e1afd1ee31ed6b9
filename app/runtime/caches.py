"""Caches: the data that a process remembers about conversations, with one bound in bytes for all caches together.

If the bound is exceeded, the least recently kept or used entries of all caches are pushed out. So no setting has to
divide the memory among the caches.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import RLock
from typing import Any, Generic, TypeVar

from msgspec import Struct

CACHE_BYTES = 128_000_000
"""Default bound of all caches together."""
ENTRY_BYTES = 300
"""Fixed overhead of an entry in the caches' tables."""
MOST_AT_ONCE = 256
"""Most entries that are pushed out when one is kept. It takes a millisecond, in which all threads wait. The next `keep`
pushes out more."""

# PostgreSQL refuses NUL in text, and neither database can encode half a surrogate pair.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Erased(Struct, frozen=True):
    """An erased conversation, or an erased tenant with all its conversations."""

    tenant: str
    conversation_id: str | None = None
    """None: all of the tenant's."""

    def covers(self, tenant: str, conversation_id: str) -> bool:
        if tenant != self.tenant:
            return False
        return self.conversation_id is None or storable(conversation_id) == storable(self.conversation_id)


def storable(text: str) -> str:
    """Return the text with U+FFFD in place of characters that the databases cannot store."""
    if text.isascii() and "\0" not in text:  # The usual case: names and digests.
        return text
    return _UNSTORABLE.sub("\ufffd", text)


class Caches:
    """All caches of a process, and the bytes in them. Thread-safe."""

    def __init__(self, most_bytes: int = CACHE_BYTES) -> None:
        self.most_bytes = most_bytes
        self.lock = RLock()
        """Lock for all changes: an entry that is kept in one cache may push out entries of others."""
        self.held_bytes = 0
        self._all: list[Cache[Any, Any]] = []
        self.sizes: OrderedDict[tuple[Cache[Any, Any], Any], int] = OrderedDict()
        """Bytes of each entry, by cache and key, the least recently used first."""

    def cache(
        self, name: str, size: Callable[[K, V], int], pushed_out: Callable[[K, V], object] | None = None
    ) -> Cache[K, V]:
        """Make a cache; several caches may have one name. `size` returns the bytes of a key and its value. `pushed_out`
        is called, under the lock, with entries that are pushed out, not with removed ones."""
        made = Cache(self, name, size, pushed_out)
        self._all.append(made)
        return made

    def bytes_of(self, name: str) -> int:
        """Return the bytes in the caches with this name."""
        return sum(cache.held_bytes for cache in self._all if cache.name == name)

    def make_room(self) -> None:
        """Push out the least recently used entries. The most recent one stays, however large it is."""
        for _ in range(min(MOST_AT_ONCE, len(self.sizes) - 1)):
            if self.held_bytes <= self.most_bytes:
                return
            cache, key = next(iter(self.sizes))
            value = cache.pop(key)
            if cache.pushed_out is not None:
                cache.pushed_out(key, value)


class Cache(Generic[K, V]):
    """One of the caches. Entries may be pushed out at any time, by entries of other caches, too."""

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
        """Return the value. This does not count as use."""
        return self._values.get(key)

    def use(self, key: K) -> V | None:
        """Return the value, and mark the entry as the most recent."""
        with self._caches.lock:
            if key in self._values:
                self._caches.sizes.move_to_end((self, key))
            return self._values.get(key)

    def keep(self, key: K, value: V) -> None:
        """Store or replace the entry, as the most recent."""
        size = self._size(key, value) + ENTRY_BYTES
        with self._caches.lock:
            self.pop(key)
            self._values[key] = value
            self._caches.sizes[self, key] = size
            self.held_bytes += size
            self._caches.held_bytes += size
            self._caches.make_room()

    def pop(self, key: K) -> V | None:
        with self._caches.lock:
            if key not in self._values:
                return None
            size = self._caches.sizes.pop((self, key))
            self.held_bytes -= size
            self._caches.held_bytes -= size
            return self._values.pop(key)

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        """Remove all entries for which `gone` returns True."""
        with self._caches.lock:
            for key, value in self.items():
                if gone(key, value):
                    self.pop(key)

    def items(self) -> list[tuple[K, V]]:
        with self._caches.lock:
            return list(self._values.items())
