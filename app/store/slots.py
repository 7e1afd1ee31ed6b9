"""Slots: how many calls one tenant may have under way at once, so that nobody has the database to himself."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack


class Slots:
    """Slots by tenant. First come, first served: within a tenant, and among the tenants where there is a limit for all
    of them."""

    def __init__(self, each: int, overall: int | None = None) -> None:
        self._each = each
        self._all = asyncio.Semaphore(overall) if overall is not None else None
        self._tenants: dict[str, asyncio.Semaphore] = {}
        """Semaphore of each tenant with calls under way, or waiting."""
        self._users: Counter[str] = Counter()
        """Number of these calls, by tenant."""

    async def take(self, tenant: str) -> ExitStack:
        """Wait for a slot; whoever gets one closes it."""
        with ExitStack() as slot:
            own = self._tenants.setdefault(tenant, asyncio.Semaphore(self._each))
            self._users[tenant] += 1
            slot.callback(self._leave, tenant)
            # The tenant's own limit first: of those who wait for the other one nobody has more than that.
            await own.acquire()
            slot.callback(own.release)
            if self._all is not None:
                await self._all.acquire()
                slot.callback(self._all.release)
            return slot.pop_all()

    def _leave(self, tenant: str) -> None:
        self._users[tenant] -= 1
        if not self._users[tenant]:
            del self._users[tenant], self._tenants[tenant]
