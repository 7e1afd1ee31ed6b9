"""The store as the rest of Steno sees it: every wait bounded, every database error one of `errors`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import structlog
from msgspec import Struct

from app.memory.caches import Caches
from app.store.calls import REST_SECONDS
from app.store.database import CLOSE_SECONDS, COMMAND_SECONDS, Database
from app.store.errors import DATABASE_ERRORS, DatabaseUnusable, SchemaTooNew, StoreUnavailable
from app.store.guard import REMEDY as UNREADABLE
from app.store.lease_calls import LeaseCalls
from app.store.request_calls import RequestCalls
from app.store.rest_calls import RestCalls
from app.store.tidying import Tidying
from app.store.write_behind import REMEDY as UNWRITABLE

log = structlog.get_logger("steno.store")

LOOK_SECONDS = 5.0
"""Time between two looks whether a SQLite file is still the one of that name."""
REPLACED = "the database file was deleted or replaced, and is opened anew"
REPLACED_REMEDY = (
    "Steno goes on with the file that is there now, or with a new one; what was in the old one alone is lost. "
    "To put a backup in its place, stop Steno, restore it with its secret, and start Steno again."
)


class Check(Struct, frozen=True):
    """State of the database, for `steno doctor`."""

    place: str
    """The database's URL or path, without its password."""
    reachable: bool
    current_revision: str | None
    head_revision: str
    reason: str | None
    """Why it cannot be used now."""
    is_new: bool = False
    """Whether the file is missing and made at the first start."""
    unusable: bool = False
    """Whether Steno cannot start with this database until an operator fixes it."""


class Store(RequestCalls, LeaseCalls, RestCalls, Tidying):
    """One database, SQLite or PostgreSQL. Made in the event loop that uses it, by `open`.

    Its calls stand by who makes them in the modules it is put together from; `calls` is what they share.
    """

    _tidying: asyncio.Task[None] | None = None
    _watching: asyncio.Task[None] | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        timeout: float = 0.25,
        statement_cache: bool = True,
        lease_ttl: float = 15.0,
        retention_days: int | None = None,
        took: Callable[[float], object] = lambda _: None,
        caches: Caches | None = None,
    ) -> Store:
        """Connects to nothing yet; raises DatabaseURLError. `timeout`, of a request's calls, and `lease_ttl` are
        seconds; without `retention_days` everything is kept. `took` is called with the seconds of each request's call;
        what is remembered is among `caches`.

        `statement_cache=False` is for PgBouncer in transaction mode, behind which nothing is heard either.
        """
        # Whoever is in the way, the database is well, and can say so before the request gives up.
        database = Database(url, statement_cache=statement_cache, lock_seconds=0.8 * timeout)
        return cls(database, timeout, lease_ttl, retention_days, listen=statement_cache, took=took, caches=caches)

    async def start(self) -> None:
        """Migrate, or go on trying in the background while the database is unreachable; raise DatabaseUnusable."""
        await self._readiness.start()
        self.writes.start(self._readiness.ready)
        self._tidying = asyncio.ensure_future(self._tidy())
        if self._database.address.kind == "file":
            self._watching = asyncio.ensure_future(self._watch_file())

    async def close(self) -> None:
        """Flush what waits, for at most five seconds, and close every connection."""
        for task in (self._watching, self._tidying):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self._readiness.stop()
        await self.writes.stop()
        await self._waiters.stop()
        if self.writes.waiting:
            await self._flush_last()
        await self._guard.close()
        await self._guard.abandoned_calls(CLOSE_SECONDS)
        await self._database.close()
        await self._guard.abandoned_calls(COMMAND_SECONDS)

    @property
    def state(self) -> Literal["ok", "degraded"]:
        """Degraded: a request goes on without what is stored. Whether something can be stored is `not_written`."""
        return "ok" if self.reason is None else "degraded"

    @property
    def reason(self) -> str | None:
        """Why the store is degraded; None while it is well."""
        return self._readiness.reason or self._guard.reason

    @property
    def not_written(self) -> str | None:
        """Why nothing can be stored, whether it can be read or not; None while it can be, as far as is known."""
        return self.writes.reason

    @property
    def remedy(self) -> str | None:
        """Advice to the operator; None while the store is well."""
        if self.reason is not None:
            return UNREADABLE
        return None if self.not_written is None else UNWRITABLE

    @property
    def place(self) -> str:
        """The database's URL or path, without its password."""
        return self._database.address.place

    async def wait_ready(self, timeout: float) -> bool:  # noqa: ASYNC109 - answers False instead of raising
        """Whether it is connected and migrated within so many seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._readiness.ready.wait()
        except TimeoutError:
            return False
        return True

    async def check(self) -> Check:
        """Look without changing anything; raises nothing."""
        from app.store import migrations  # noqa: PLC0415 - alembic is slow to import and needed once

        place, head = self.place, migrations.head_revision()
        path = self._database.address.path
        if path is not None and not path.exists():
            return Check(place, False, None, head, f"{path} does not exist yet", is_new=True)
        revision = None
        try:
            revision = await self._guard.bounded(self._read(migrations.current_revision), REST_SECONDS)
            migrations.refuse_newer(revision)
        except SchemaTooNew as error:
            return Check(place, True, revision, head, str(error), unusable=True)
        except StoreUnavailable as error:
            cause = error.__cause__
            why = migrations.translated(cause) if isinstance(cause, DATABASE_ERRORS) else error
            return Check(place, False, None, head, str(why), unusable=isinstance(why, DatabaseUnusable))
        return Check(place, True, revision, head, None)

    async def _watch_file(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if await asyncio.to_thread(self._database.is_replaced):
                await self._reopen()

    async def _reopen(self) -> None:
        """Go on with the file that has the name now, or with a new one."""
        await self._readiness.stop()
        self._readiness.lose(REPLACED)
        log.warning("database file deleted or replaced", path=self.place, remedy=REPLACED_REMEDY)
        await self._waiters.stop()
        await self.writes.pause()
        await self._database.let_go()
        self._is_indexed = False
        self._readiness.regain()

    async def _flush_last(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable as error:
            log.warning("closed before everything was stored", reason=error.reason)
