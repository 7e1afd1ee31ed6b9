"""Wake-ups: how this process hears that a compaction ended in another one, and what another one erased.

PostgreSQL notifies by NOTIFY, on one connection beside the pool. A SQLite file shows by its data version that somebody
wrote to it. Both are attended to only while somebody waits: of an end, which whoever misses it finds by polling, or of
erasures, of which nobody hears on SQLite.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import asyncpg
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from app.runtime.erased import Erased
from app.runtime.repeats import Repeats
from app.store.database import CONNECT_SECONDS, Database
from app.store.errors import StoreUnavailable, describe
from app.store.guard import Guard

if TYPE_CHECKING:
    Listener = asyncpg.Connection[asyncpg.Record]

log = structlog.get_logger("steno.store")

CHANNEL = "steno_leases"
KEEP_SECONDS = 60.0
"""Time that the listening connection outlives the last waiter."""
CHECK_SECONDS = 10.0
"""Time between two tries of the connection: a cut cable makes no sound."""
RECONNECT_SECONDS = 2.0
VERSION_SECONDS = 0.1
BOUND_SECONDS = 1.0

# What asyncpg raises where SQLAlchemy does not stand before it.
_LISTENER_ERRORS = (StoreUnavailable, asyncpg.PostgresError, asyncpg.InterfaceError)

Wake = Callable[[str | None], None]
"""Wakes those who wait for a conversation's word; None: everybody."""
Forget = Callable[[Erased | None], None]
"""Forgets what another process erased; None: something may have been erased that nobody heard of."""


class Wakeups:
    """Attends to the database while somebody waits."""

    def __init__(self, database: Database, guard: Guard, wake: Wake) -> None:
        self._database = database
        self._guard = guard
        self._wake = wake
        is_file = database.address.kind == "file"
        self._attend = self._listen if database.notifies else self._watch_file if is_file else None
        self._attending: asyncio.Task[None] | None = None
        self._waiting = 0
        self._left_at = 0.0
        self._forget: Forget = lambda _: None
        self._repeats = Repeats()

    def join(self) -> None:
        """Begin to wait, until `leave`."""
        self._waiting += 1
        if self._attend is not None and (self._attending is None or self._attending.done()):
            self._attending = asyncio.ensure_future(self._attend())

    def hear_of_erasures(self, forget: Forget) -> None:
        """Wait from now on for what other processes erase, where they can tell."""
        self._forget = forget
        if self._database.notifies:
            self.join()

    def leave(self) -> None:
        """Stop waiting. To be called once for each `join`."""
        self._waiting -= 1
        self._left_at = _now()

    async def stop(self) -> None:
        """Cancels a wait, never a statement: those are the guard's."""
        if self._attending is not None:
            self._attending.cancel()
            await asyncio.wait({self._attending})

    async def _listen(self) -> None:
        while self._waiting:
            lost = asyncio.Event()
            connecting = self._guard.bounded(
                lambda: self._database.listen(CHANNEL, self._hear, lost.set),  # noqa: B023 - called at once
                CONNECT_SECONDS + BOUND_SECONDS,
                _cut,
            )
            try:
                connection = await connecting
                try:
                    self._woken_again()
                    self._wake(None)  # Something may have ended before we listened.
                    self._forget(None)
                    await self._keep(connection, lost)
                finally:
                    connection.terminate()
            except _LISTENER_ERRORS as error:
                why = error.reason if isinstance(error, StoreUnavailable) else describe(error)
                if (times := self._repeats.again(self)) is not None:
                    log.warning("polling for other replicas", reason=why, times=times)
                await asyncio.sleep(RECONNECT_SECONDS * random.uniform(0.5, 1.5))

    def _hear(self, message: str) -> None:
        if (erased := Erased.told_by(message)) is not None:
            self._forget(erased)
        else:
            self._wake(message)

    def _woken_again(self) -> None:
        if (ended := self._repeats.over(self)) is not None:
            log.info("notified by other replicas again", times=ended[0], seconds=ended[1])

    async def _keep(self, connection: Listener, lost: asyncio.Event) -> None:
        """Keep the connection until it breaks, or nobody has waited for a while."""
        while self._waiting or _now() - self._left_at < KEEP_SECONDS:
            if await set_within(lost, CHECK_SECONDS):
                raise StoreUnavailable("the connection was lost")
            await self._guard.bounded(lambda: connection.execute("SELECT 1"), BOUND_SECONDS)

    async def _watch_file(self) -> None:
        while self._waiting:
            try:
                connection = await self._guard.bounded(
                    self._database.connect_to_read, BOUND_SECONDS, AsyncConnection.close
                )
                try:
                    self._woken_again()
                    await self._follow(connection)
                finally:
                    await self._guard.bounded(connection.close, BOUND_SECONDS)
            except StoreUnavailable as error:
                if (times := self._repeats.again(self)) is not None:
                    log.warning("polling for other replicas", reason=error.reason, times=times)
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self, connection: AsyncConnection) -> None:
        """Versions mean something only on one and the same connection."""

        async def read_version() -> int:
            return int((await connection.exec_driver_sql("PRAGMA data_version")).scalar_one())

        seen = None
        while self._waiting:
            version = await self._guard.bounded(read_version, BOUND_SECONDS)
            if version != seen:
                seen = version
                self._wake(None)
            await asyncio.sleep(VERSION_SECONDS)


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it was set in that time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def _cut(connection: Listener) -> None:
    connection.terminate()


def _now() -> float:
    return asyncio.get_running_loop().time()
