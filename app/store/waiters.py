"""Waiters: requests that wait for somebody else's compaction. They take nothing; at its end they read what it made.

Those of one process that wait for the same thing look together: when they are woken, and every 250 ms in case nobody
wakes them, as behind a PgBouncer in transaction mode without a way past it: LISTEN succeeds there and hears nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable

from app.runtime.erased import conversation_word
from app.store.database import Database
from app.store.errors import StoreUnavailable
from app.store.guard import Guard
from app.store.lease import Busy
from app.store.wakeups import Wakeups, set_within

POLL_SECONDS = 0.25

Look = Callable[[], Awaitable[Busy | None]]


class Waiters:
    """Everybody in this process who waits for a lease to end."""

    def __init__(self, database: Database, guard: Guard) -> None:
        self.wakeups = Wakeups(database, guard, self._wake)
        self._watches: dict[Hashable, _Watch] = {}

    async def wait(self, tenant: str, what: Hashable, look: Look, seconds: float) -> bool:
        """Whether `look` found nothing any more within so many seconds. `what` is the same where `look` does the same.

        Raises StoreUnavailable as soon as looking does.
        """
        watch = self._watches.get((tenant, what))
        if watch is None or watch.task.done():
            watch = self._watches[tenant, what] = _Watch(tenant, look)
        self.wakeups.join()
        watch.waiters += 1
        try:
            done, _ = await asyncio.wait({watch.task}, timeout=seconds)
        finally:
            self.wakeups.leave()
            watch.waiters -= 1
            if watch.task.done() or not watch.waiters:
                watch.task.cancel()
                if self._watches.get((tenant, what)) is watch:
                    del self._watches[tenant, what]
        if done and (failure := watch.task.result()) is not None:
            raise StoreUnavailable(failure)
        return bool(done)

    def awaited(self, tenant: str, what: Hashable) -> Busy | None:
        """The lease that others of this process wait for, as they last saw it."""
        watch = self._watches.get((tenant, what))
        return watch.busy if watch is not None and not watch.task.done() else None

    def ended(self, tenant: str, conversation_id: str) -> None:
        """Wakes those of this process who wait for a compaction of the conversation."""
        self._wake(conversation_word(tenant, conversation_id))

    async def stop(self) -> None:
        """Nobody is woken any more; who still waits looks by itself."""
        await self.wakeups.stop()

    def _wake(self, word: str | None) -> None:
        for watch in self._watches.values():
            watch.hear(word)


class _Watch:
    """The common look-out of those who wait for the same thing."""

    def __init__(self, tenant: str, look: Look) -> None:
        self._tenant = tenant
        self._look = look
        self.busy: Busy | None = None
        self._woken = asyncio.Event()
        self.waiters = 0
        self.task = asyncio.ensure_future(self._run())
        """Ends with the lease, or with why the database could not be asked."""

    def hear(self, word: str | None) -> None:
        """Look at once, if the word may be meant for it; None is meant for all."""
        if word is None or self.busy is None or word == conversation_word(self._tenant, self.busy.conversation_id):
            self._woken.set()

    async def _run(self) -> str | None:
        while True:
            self._woken.clear()
            try:
                self.busy = await self._look()
            except StoreUnavailable as error:
                return error.reason
            if self.busy is None:
                return None
            await set_within(self._woken, POLL_SECONDS * random.uniform(0.75, 1.25))
