"""Slots: how many calls one tenant may have under way at once, so that nobody has the database to himself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Slots:
    """Slots by tenant. First come, first served: within a tenant, and among the tenants where there is a limit for all
    of them."""

    def __init__(self, each: int, overall: int | None = None) -> None:
        self._each = each
        self._all = asyncio.Semaphore(overall) if overall is not None else None
        self._tenants: dict[str, tuple[asyncio.Semaphore, set[object]]] = {}
        """Semaphore and slots of each tenant with calls under way, or waiting."""

    async def take(self, tenant: str) -> Slot:
        """Wait for a slot; whoever gets one ends it."""
        own, users = self._tenants.setdefault(tenant, (asyncio.Semaphore(self._each), set()))
        slot = Slot(self, tenant)
        users.add(slot)
        try:
            await own.acquire()
            try:
                # The tenant's own limit first: of those who wait here nobody has more than that.
                if self._all is not None:
                    await self._all.acquire()
            except BaseException:
                own.release()
                raise
        except BaseException:
            self._leave(slot)
            raise
        return slot

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it for the block."""
        slot = await self.take(tenant)
        try:
            yield
        finally:
            slot.end()

    def ended(self, slot: Slot) -> None:
        """Pass the slot on to the next in the queue."""
        if self._all is not None:
            self._all.release()
        self._tenants[slot.tenant][0].release()
        self._leave(slot)

    def _leave(self, slot: Slot) -> None:
        _, users = self._tenants[slot.tenant]
        users.discard(slot)
        if not users:
            del self._tenants[slot.tenant]


class Slot:
    """A slot that somebody has, or waits for."""

    def __init__(self, slots: Slots, tenant: str) -> None:
        self._slots = slots
        self.tenant = tenant

    def end(self) -> None:
        """Give the slot back. To be called once."""
        self._slots.ended(self)
