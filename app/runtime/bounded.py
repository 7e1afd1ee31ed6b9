"""Maps of small entries, bounded by the number of entries: a plain map, values of histories, facts of tenants and a
throttle of log lines. `caches` is for entries that may be large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice
from operator import eq
from time import monotonic
from typing import Generic, TypeVar

from msgspec import Struct

MOST_REMEMBERED = 10_000
"""Usual bound of a map whose entries are small and may be pushed out at any time."""
REMINDER_SECONDS = 60.0
MOST_REPEATED = 1_000
MOST_OF_ONE = 100
"""Most facts of one tenant."""
MOST_TENANTS = 2_000
MOST_COMPARED = 16
"""Most tenants whose facts about one key are compared, the latest first."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMap(OrderedDict[K, V]):
    """Map that pushes out the least recently kept or used entry; `get` does not count as use. Not thread-safe."""

    def __init__(self, most: int, pushed_out: Callable[[K, V], object] | None = None) -> None:
        """Hold at most `most` entries. `pushed_out` is called with entries that are pushed out, not removed ones."""
        super().__init__()
        self._most = most
        self._pushed_out = pushed_out

    def use(self, key: K) -> V | None:
        """Return the value, and mark the entry as the most recent."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]

    def keep(self, key: K, value: V) -> None:
        """Store the entry as the most recent."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._most:
            pushed_out = self.popitem(last=False)
            if self._pushed_out is not None:
                self._pushed_out(*pushed_out)


class HistoryKey(Struct, frozen=True):
    """Key of a history. It still matches after the history has grown or its last turn was edited."""

    scope: Hashable
    """Purpose of the look-up. Entries of different scopes are separate."""
    digests: Sequence[bytes]
    """Digests of the history's prefixes, the shortest first. No digest covers the last unit, which may be edited."""


class HistoryMap(Generic[V]):
    """Latest value for each history and branch. Histories are identified by content, not by conversation id."""

    def __init__(self) -> None:
        self._kept: BoundedMap[tuple[Hashable, bytes], V] = BoundedMap(MOST_REMEMBERED)

    def find(self, history: HistoryKey) -> V | None:
        """Return the value stored for the history, for an earlier state of it, or for the history it branched from."""
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
    """Facts that tenants learnt from a provider's answers: a tenant's latest one about each key. They apply to that
    tenant, and to all tenants if a second one has learnt the same.

    A client can influence what Steno learns: errors quote the request, and a prompt can be written to be counted
    wrongly. Facts expire, their number is bounded, and a tenant's new fact pushes out only facts of the same tenant.
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

        `counts` returns whether a tenant's facts may confirm those of other tenants. `agrees(other, value)` returns
        whether another tenant's value confirms this one.
        """
        self._seconds = seconds
        self._clock = clock
        self._counts = counts
        self._agrees = agrees
        self._facts: dict[K, dict[str, tuple[V, float]]] = {}
        """Value and time of expiry, by key and tenant; the latest last."""
        self._keys: BoundedMap[str, BoundedMap[K, None]] = BoundedMap(
            MOST_TENANTS, lambda tenant, keys: [self._remove(tenant, what) for what in keys]
        )

    def learn(self, tenant: str, what: K, value: V, seconds: float | None = None) -> None:
        """Store or replace the tenant's fact. `seconds`: its life, if it differs from that of other facts."""
        self.forget(tenant, what)
        keys = self._keys.get(tenant)
        if keys is None:
            keys = BoundedMap(MOST_OF_ONE, lambda key, _: self._remove(tenant, key))
        self._keys.keep(tenant, keys)
        keys.keep(what, None)
        until = self._clock() + (self._seconds if seconds is None else seconds)
        self._facts.setdefault(what, {})[tenant] = value, until

    def own(self, tenant: str, what: K) -> V | None:
        value, until = self._facts.get(what, {}).get(tenant, (None, 0.0))
        return value if until > self._clock() else None

    def confirmed(self, what: K) -> list[V]:
        """Return the values that another tenant confirms, the latest first."""
        seen = ((tenant, self.own(tenant, what)) for tenant in reversed(self._facts.get(what, {})))
        counting = ((tenant, value) for tenant, value in seen if value is not None and self._counts(tenant))
        compared = list(islice(counting, MOST_COMPARED))
        return [
            value
            for tenant, value in compared
            if any(self._agrees(other, value) for another, other in compared if another != tenant)
        ]

    def find(self, tenant: str, what: K) -> V | None:
        """Return the tenant's own value, else the latest confirmed one, else None."""
        own = self.own(tenant, what)
        return own if own is not None else next(iter(self.confirmed(what)), None)

    def forget(self, tenant: str, what: K) -> None:
        keys = self._keys.get(tenant)
        if keys is not None and what in keys:
            del keys[what]
            if not keys:
                del self._keys[tenant]
            self._remove(tenant, what)

    def of(self, tenant: str) -> Iterator[tuple[K, V]]:
        for what in list(self._keys.get(tenant, ())):
            if (value := self.own(tenant, what)) is not None:
                yield what, value

    def __iter__(self) -> Iterator[K]:
        return iter(self._facts)

    def _remove(self, tenant: str, what: K) -> None:
        del self._facts[what][tenant]
        if not self._facts[what]:
            del self._facts[what]


class LogThrottle:
    """Throttle of log lines about a repeated event: the first one, then one a minute with a count, and one at the
    end."""

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
        """Record that the event is over. Return its number of occurrences and its seconds; None if there were none."""
        if (entry := self._lasting.pop(what, None)) is None:
            return None
        began, _, times = entry
        return times, round(self._clock() - began, 1)
