"""Turns: how many calls one tenant may have under way at once, so that nobody has the database to himself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """First come, first served: within a tenant, and among the tenants where there is a limit for all of them."""

    def __init__(self, each: int, overall: int | None = None) -> None:
        self._each = each
        self._all = asyncio.Semaphore(overall) if overall is not None else None
        self._tenants: dict[str, tuple[asyncio.Semaphore, set[object]]] = {}
        """Those with calls under way, or waiting."""

    async def take(self, tenant: str) -> Turn:
        """Wait for a turn; whoever gets one ends it."""
        own, users = self._tenants.setdefault(tenant, (asyncio.Semaphore(self._each), set()))
        turn = Turn(self, tenant)
        users.add(turn)
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
            self._leave(turn)
            raise
        return turn

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        turn = await self.take(tenant)
        try:
            yield
        finally:
            turn.end()

    def ended(self, turn: Turn) -> None:
        if self._all is not None:
            self._all.release()
        self._tenants[turn.tenant][0].release()
        self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        _, users = self._tenants[turn.tenant]
        users.discard(turn)
        if not users:
            del self._tenants[turn.tenant]


class Turn:
    def __init__(self, turns: Turns, tenant: str) -> None:
        self._turns = turns
        self.tenant = tenant

    def end(self) -> None:
        """Once."""
        self._turns.ended(self)
