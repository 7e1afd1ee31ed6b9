"""Facts that a tenant learnt from a provider's answers. They apply to that tenant, and to all tenants if a second one
has learnt the same.

A client can influence what Steno learns: errors quote the request, and a prompt can be written to be counted wrongly.
Facts expire, their number is bounded, and a tenant's new fact pushes out only facts of the same tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from operator import eq
from time import monotonic
from typing import Generic, TypeVar

from app.runtime.bounded import BoundedMap

MOST_OF_ONE = 100
"""Most facts of one tenant."""
MOST_TENANTS = 2_000
MOST_COMPARED = 16
"""Most tenants whose facts about one key are compared, the latest first."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TenantFacts(Generic[K, V]):
    """Each tenant's latest fact about each key."""

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
        self._by_tenant: BoundedMap[str, BoundedMap[K, tuple[V, float]]] = BoundedMap(MOST_TENANTS, self._unlink_all)
        """Value and time of expiry, by tenant and key."""
        self._tenants: dict[K, dict[str, None]] = {}
        """Tenants with a fact about each key, the latest last."""

    def learn(self, tenant: str, what: K, value: V, seconds: float | None = None) -> None:
        """Store or replace the tenant's fact. `seconds`: its life, if it differs from that of other facts."""
        self.forget(tenant, what)
        held = self._by_tenant.get(tenant)
        if held is None:
            held = BoundedMap(MOST_OF_ONE, lambda seen, _: self._unlink(tenant, seen))
        self._by_tenant.keep(tenant, held)
        held.keep(what, (value, self._clock() + (self._seconds if seconds is None else seconds)))
        self._tenants.setdefault(what, {})[tenant] = None

    def own(self, tenant: str, what: K) -> V | None:
        held = self._by_tenant.get(tenant)
        value, until = (held and held.get(what)) or (None, 0.0)
        return value if until > self._clock() else None

    def confirmed(self, what: K) -> list[V]:
        """Return the values that another tenant confirms, the latest first."""
        if (tenants := self._tenants.get(what)) is None:
            return []
        seen = ((tenant, self.own(tenant, what)) for tenant in reversed(tenants) if self._counts(tenant))
        compared = list(islice(((tenant, value) for tenant, value in seen if value is not None), MOST_COMPARED))
        return [
            value
            for tenant, value in compared
            if any(self._agrees(other, value) for another, other in compared if another != tenant)
        ]

    def find(self, tenant: str, what: K) -> V | None:
        """Return the tenant's own value, else the latest confirmed one, else None."""
        if what not in self._tenants:
            return None
        own = self.own(tenant, what)
        return own if own is not None else next(iter(self.confirmed(what)), None)

    def forget(self, tenant: str, what: K) -> None:
        held = self._by_tenant.get(tenant)
        if held is None or held.pop(what, None) is None:
            return
        if not held:
            self._by_tenant.pop(tenant)
        self._unlink(tenant, what)

    def of(self, tenant: str) -> Iterator[tuple[K, V]]:
        for what in list(self._by_tenant.get(tenant) or ()):
            if (value := self.own(tenant, what)) is not None:
                yield what, value

    def __iter__(self) -> Iterator[K]:
        return iter(self._tenants)

    def __contains__(self, what: K) -> bool:
        return what in self._tenants

    def _unlink(self, tenant: str, what: K) -> None:
        del self._tenants[what][tenant]
        if not self._tenants[what]:
            del self._tenants[what]

    def _unlink_all(self, tenant: str, held: BoundedMap[K, tuple[V, float]]) -> None:
        for what in held:
            self._unlink(tenant, what)
