"""Calls: how all that the store is asked is carried out: in bounded time, and with something left for other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.memory.caches import Caches
from app.store import remains, revisions
from app.store.database import MIGRATION_SECONDS, Database
from app.store.errors import Queued, StoreUnavailable
from app.store.files import close_to_others
from app.store.guard import Guard, Work
from app.store.readiness import Readiness
from app.store.slots import Slot, Slots
from app.store.waiters import Waiters
from app.store.write_behind import WriteBehind

P = ParamSpec("P")
T = TypeVar("T")

Query = Callable[Concatenate[AsyncConnection, P], Awaitable[T]]
"""A function beside this module that asks or changes something on a connection."""
OwnQuery = Callable[Concatenate[AsyncConnection, str, P], Awaitable[T]]
"""A query whose first argument is a tenant."""

TASK_SECONDS = 10.0
REST_SECONDS = 5.0
REQUEST_SLOTS = 8
"""Calls of one tenant's requests that are under way at once: about half of the connections."""
QUEUE_SECONDS = 2.0
"""Longest wait of a request for other writers of this process."""
REST_SLOTS = 2
ALL_REST_SLOTS = 4
"""REST calls under way at once, of one tenant and of all: what they cost is not bounded by a request's history."""
DAY_MS = 24 * 3_600_000


class Calls:
    """Base of all calls, and the three ways to make one: for a request, for the REST API, in the background."""

    def __init__(
        self,
        database: Database,
        timeout: float,
        lease_ttl: float,
        retention_days: int | None,
        *,
        listen: bool,
        took: Callable[[float], object],
        caches: Caches | None,
    ) -> None:
        """`timeout` bounds a request's calls, in seconds, as `lease_ttl` is; `took` is called with those of each."""
        self._database = database
        self._timeout = timeout
        self._took = took
        self._ttl_ms = round(lease_ttl * 1000)
        self._kept_ms = None if retention_days is None else retention_days * DAY_MS
        self._guard = Guard(self._ping, opened=database.doubt_idle)
        # Bounded, so that closing the store in the middle abandons the attempt: see `guard`.
        self._readiness = Readiness(lambda: self._guard.bounded(self.migrate, MIGRATION_SECONDS))
        self.writes = WriteBehind(database, self._guard, caches)
        """The queues of what is recorded and not stored yet, and how much was dropped."""
        self._request_slots = Slots(REQUEST_SLOTS)
        self._rest_slots = Slots(REST_SLOTS, ALL_REST_SLOTS)
        self._waiters = Waiters(database, self._guard, listen=listen)

    async def migrate(self) -> tuple[str | None, str]:
        """The revisions before and after; None before: the database was empty.

        Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not.
        """
        if await revisions.is_newest(self._database):
            if (path := self._database.address.path) is not None:
                close_to_others(path)
            return revisions.newest(), revisions.newest()
        from app.store import migrations  # noqa: PLC0415 - alembic is slow to import and needed once

        migrated = await migrations.upgrade(self._database)
        return migrated.before, migrated.after

    # What is to be done, as work that can be begun once or again

    def _read(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> Work[T]:
        """Work that runs a query without a transaction."""

        async def work() -> T:
            async with self._database.reading() as connection:
                return await query(connection, *arguments, **options)

        return work

    def _write(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> Work[T]:
        """Work that runs a change in a transaction, which waits for locks as long as a request may."""

        async def work() -> T:
            async with self._database.writing() as connection:
                return await change(connection, *arguments, **options)

        return work

    def _write_patiently(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> Work[T]:
        """Work that runs a change in a transaction, which waits some seconds for locks."""

        async def work() -> T:
            async with self._database.writing(patient=True) as connection:
                return await change(connection, *arguments, **options)

        return work

    # The three ways to do it. Each raises StoreUnavailable.

    async def _guarded(self, tenant: str, work: Work[T], late: Callable[[T], Awaitable[object]] | None = None) -> T:
        """Do work on a request's path: through the breaker, within the request's timeout. `late`: see `Guard.call`."""
        self._require_ready()
        came = monotonic()
        try:
            # Waiting for one's own other requests says nothing about the database, and its time does not count as such.
            async with self._request_slots.taken(tenant):
                return await self._patiently(work, late)
        finally:
            self._took(monotonic() - came)

    async def _patiently(self, work: Work[T], late: Callable[[T], Awaitable[object]] | None) -> T:
        began = monotonic()
        while True:
            try:
                return await self._guard.call(work, self._timeout, late)
            except Queued:
                if monotonic() - began > QUEUE_SECONDS:
                    raise

    async def rest(self, query: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Run a query about a tenant's rows for the REST API. Raises what the query does, too."""
        return await self._rest(tenant, self._read(query, tenant, *arguments, **options))

    async def rest_change(self, change: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Change a tenant's rows for the REST API, in a transaction."""
        return await self._rest(tenant, self._write_patiently(change, tenant, *arguments, **options))

    async def _rest(self, tenant: str, work: Work[T]) -> T:
        """Do work for the REST API: whoever looks after a request sees what the request showed.

        Not through the breaker, which is there for requests: this may be slow while the database is well.
        """
        self._require_ready()
        slot = await self._rest_slot(tenant)

        async def flush_first() -> T:
            try:
                await self.writes.flush()
                return await work()
            finally:
                # Not when its caller gives up: until it ends the database is still at it.
                slot.end()

        return await self._bounded(flush_first, REST_SECONDS)

    async def _merge_indexes(self) -> None:
        """Merge SQLite's search indexes, so that they hold no words of what was deleted."""
        if self._database.address.path is None:
            return
        for search in remains.SEARCHES:
            first = True
            while await self._bounded(self._write_patiently(remains.merge_some, search, first=first), REST_SECONDS):
                first = False

    async def _empty_log(self) -> None:
        """Empty SQLite's log, so that it holds nothing of what was deleted."""
        if self._database.address.path is not None:
            await self._bounded(self._read(remains.empty_log), REST_SECONDS)

    async def _bounded(self, work: Work[T], seconds: float) -> T:
        """Do work in the background, or for somebody who can wait."""
        self._require_ready()
        return await self._guard.bounded(work, seconds)

    async def _rest_slot(self, tenant: str) -> Slot:
        try:
            async with asyncio.timeout(REST_SECONDS):
                return await self._rest_slots.take(tenant)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"no turn within {REST_SECONDS:.0f} s: at most {REST_SLOTS} such requests of a tenant are carried out"
                f" at once, and {ALL_REST_SLOTS} of all tenants"
            ) from error

    def _require_ready(self) -> None:
        if self._readiness.reason is not None:
            raise StoreUnavailable(self._readiness.reason)

    async def _ping(self) -> None:
        async with self._database.reading() as connection:
            await connection.execute(text("SELECT 1"))
