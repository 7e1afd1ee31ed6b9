"""Bounded memory: maps with a maximum number of entries, and caches of conversations' data with a maximum of bytes.

All caches together have one bound. Above the bound, the least recently stored or used entries are evicted. So no
setting has to divide the memory among the caches.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import eq
from threading import RLock
from time import monotonic
from typing import Any, Generic, TypeVar

from msgspec import Struct

MOST_REMEMBERED = 10_000
"""Usual maximum number of entries in a map of small entries."""
REMINDER_SECONDS = 60.0
MOST_REPEATED = 1_000
MOST_OF_ONE = 100
"""Maximum number of facts of one tenant."""
MOST_TENANTS = 2_000
MOST_COMPARED = 16
"""Maximum number of tenants whose facts about one key are compared: the tenants with the latest facts."""

CACHE_BYTES = 128_000_000
"""Default bound of all caches together."""
ENTRY_BYTES = 300
"""Fixed overhead of an entry in the caches' tables."""
MOST_AT_ONCE = 256
"""Maximum number of entries that one `keep` evicts. The eviction takes about a millisecond, and blocks other threads
that use the caches. The next `keep` evicts more."""

# PostgreSQL refuses NUL in text, and neither database can encode half a surrogate pair.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """Map that evicts the least recently stored or used entry if the map is full. Not thread-safe."""

    def __init__(self, most: int, on_evict: Callable[[K, V], object] | None = None) -> None:
        """Store at most `most` entries. `on_evict` is called with evicted entries, but not with popped entries."""
        super().__init__()
        self._most = most
        self._on_evict = on_evict

    def use(self, key: K) -> V | None:
        """Return the value, and mark the entry as the most recent."""
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            oldest = self.popitem(last=False)
            if self._on_evict is not None:
                self._on_evict(*oldest)


class HistoryKey(Struct, frozen=True):
    """Key of a history. It still matches after the history has grown or its last message was edited."""

    scope: Hashable
    """Purpose of the look-up. Entries of different scopes are separate."""
    digests: Sequence[bytes]
    """Digests of prefixes, shortest first. The longest prefix ends before the last message or the last tool call."""


class HistoryMap(Generic[V]):
    """Map from histories to values. It has the latest value of each branch, and needs no conversation id."""

    def __init__(self) -> None:
        self._kept: BoundedMap[tuple[Hashable, bytes], V] = BoundedMap(MOST_REMEMBERED)

    def find(self, history: HistoryKey) -> V | None:
        """Return the value stored for the longest prefix of the history; None if no prefix has a value."""
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


class TenantFacts(Generic[K, V]):
    """Facts that tenants learnt from a provider's answers, the latest for each tenant and key. A fact applies to its
    tenant, and to all tenants if a second tenant has learnt the same fact.

    A client can falsify facts: an error may quote the request, and a prompt can be written so that Steno miscounts it.
    So facts expire. Steno stores at most `MOST_OF_ONE` facts of a tenant, and facts of at most `MOST_TENANTS` tenants.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = monotonic,
        *,
        counts: Callable[[str], bool] = lambda _: True,
        agrees: Callable[[V, V], bool] = eq,
    ) -> None:
        """Facts expire after `seconds`.

        `counts` returns whether a tenant's facts may confirm facts of other tenants. `agrees(other, value)` returns
        whether another tenant's value `other` confirms `value`.
        """
        self._seconds = seconds
        self._clock = clock
        self._counts = counts
        self._agrees = agrees
        self._facts: dict[K, dict[str, tuple[V, float]]] = {}
        """Value and time of expiry, by key and tenant; the latest last."""
        self._keys: BoundedMap[str, BoundedMap[K, None]] = BoundedMap(MOST_TENANTS, self._remove)

    def learn(self, tenant: str, what: K, value: V, seconds: float | None = None) -> None:
        """Store or replace the tenant's fact. It expires after `seconds`, or by default after the map's `seconds`."""
        self.forget(tenant, what)
        keys = self._keys.get(tenant) or BoundedMap(MOST_OF_ONE, lambda key, _: self._remove(tenant, [key]))
        self._keys.keep(tenant, keys)
        keys.keep(what, None)
        until = self._clock() + (self._seconds if seconds is None else seconds)
        self._facts.setdefault(what, {})[tenant] = value, until

    def own(self, tenant: str, what: K) -> V | None:
        facts = self._facts.get(what)
        if facts is None or tenant not in facts:
            return None
        value, until = facts[tenant]
        return value if until > self._clock() else None

    def confirmed(self, what: K) -> list[V]:
        """Return the tenants' values that another tenant's value confirms, the latest first."""
        facts = self._facts.get(what, {})
        if len(facts) < 2:  # The usual case, which must be fast.
            return []
        seen = ((tenant, self.own(tenant, what)) for tenant in reversed(facts))
        counting = ((tenant, value) for tenant, value in seen if value is not None and self._counts(tenant))
        compared = list(islice(counting, MOST_COMPARED))
        return [
            value
            for tenant, value in compared
            if any(self._agrees(other, value) for another, other in compared if another != tenant)
        ]

    def find(self, tenant: str, what: K) -> V | None:
        """Return the tenant's own value, else the latest confirmed value, else None."""
        if what not in self._facts:
            return None
        own = self.own(tenant, what)
        return own if own is not None else next(iter(self.confirmed(what)), None)

    def forget(self, tenant: str, what: K) -> None:
        keys = self._keys.get(tenant)
        if keys is not None and what in keys:
            del keys[what]
            if not keys:
                del self._keys[tenant]
            self._remove(tenant, [what])

    def of(self, tenant: str) -> Iterator[tuple[K, V]]:
        for what in list(self._keys.get(tenant, ())):
            if (value := self.own(tenant, what)) is not None:
                yield what, value

    def __iter__(self) -> Iterator[K]:
        return iter(self._facts)

    def _remove(self, tenant: str, keys: Iterable[K]) -> None:
        for what in keys:
            del self._facts[what][tenant]
            if not self._facts[what]:
                del self._facts[what]


class LogThrottle:
    """Throttle of log lines about a repeated event. It allows a line for the first occurrence, then one line a minute
    with a count, and one line at the end."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lasting: BoundedMap[Hashable, tuple[float, float, int]] = BoundedMap(MOST_REPEATED)
        """Times of the first occurrence and of the last report, and number of occurrences, by event."""

    def count(self, what: Hashable) -> int | None:
        """Record an event. Return its number of occurrences if the caller should log it now, else None."""
        now, entry = self._clock(), self._lasting.get(what)
        if entry is None:
            self._lasting.keep(what, (now, now, 1))
            return 1
        began, reported, times = entry
        is_due = now - reported >= REMINDER_SECONDS
        self._lasting[what] = began, now if is_due else reported, times + 1
        return times + 1 if is_due else None

    def end(self, what: Hashable) -> tuple[int, float] | None:
        """Record that the event is over. Return its occurrences and duration in seconds; None if it never occurred."""
        if (entry := self._lasting.pop(what, None)) is None:
            return None
        began, _, times = entry
        return times, round(self._clock() - began, 1)


# Caches


class Erased(Struct, frozen=True):
    """An erased conversation, or an erased tenant with all its conversations."""

    tenant: str
    conversation_id: str | None = None
    """None means all conversations of the tenant."""

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
        """Lock for all changes, because a new entry of one cache may evict entries of other caches."""
        self.held_bytes = 0
        self.bytes_of: dict[str, int] = {}
        """Bytes of entries, by the name of their caches."""
        self.sizes: OrderedDict[tuple[Cache[Any, Any], Any], int] = OrderedDict()
        """Bytes of each entry, by cache and key, the least recently used first."""

    def make_room(self) -> None:
        """Evict the least recently used entries. The most recent entry stays, however large it is."""
        for _ in range(min(MOST_AT_ONCE, len(self.sizes) - 1)):
            if self.held_bytes <= self.most_bytes:
                return
            cache, key = next(iter(self.sizes))
            value = cache.pop(key)
            if cache.on_evict is not None:
                cache.on_evict(key, value)


class Cache(Generic[K, V]):
    """Map whose entries may be evicted at any time, also by new entries of other caches."""

    def __init__(
        self,
        caches: Caches,
        name: str,
        size: Callable[[K, V], int],
        on_evict: Callable[[K, V], object] | None = None,
    ) -> None:
        """Several caches may share a `name`. `size` returns the bytes of a key and its value. `on_evict` is called
        under the lock with evicted entries, but not with popped entries."""
        caches.bytes_of.setdefault(name, 0)
        self.on_evict = on_evict
        self._caches = caches
        self._name = name
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
        caches, size = self._caches, self._size(key, value) + ENTRY_BYTES
        with caches.lock:
            grown = size - caches.sizes.pop((self, key), 0)
            self._values[key] = value
            caches.sizes[self, key] = size
            caches.bytes_of[self._name] += grown
            caches.held_bytes += grown
            if caches.held_bytes > caches.most_bytes:
                caches.make_room()

    def pop(self, key: K) -> V | None:
        with self._caches.lock:
            if key not in self._values:
                return None
            size = self._caches.sizes.pop((self, key))
            self._caches.bytes_of[self._name] -= size
            self._caches.held_bytes -= size
            return self._values.pop(key)

    def drop(self, gone: Callable[[K, V], bool]) -> None:
        with self._caches.lock:
            for key, value in self.items():
                if gone(key, value):
                    self.pop(key)

    def items(self) -> list[tuple[K, V]]:
        with self._caches.lock:
            return list(self._values.items())
