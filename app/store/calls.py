"""Calls: how all that the store is asked is carried out in bounded time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import schema, settings_check
from app.store.database import MIGRATION_SECONDS, Database
from app.store.errors import Queued, StoreUnavailable, WrongSecret
from app.store.files import close_to_others
from app.store.guard import Guard, Work
from app.store.histories import HistoryQueue
from app.store.readiness import Readiness
from app.store.write_behind import WriteBehind

if TYPE_CHECKING:
    from app.store.release_0_1 import Decryption, Export

P = ParamSpec("P")
T = TypeVar("T")

Query = Callable[Concatenate[AsyncConnection, P], Awaitable[T]]
"""A function beside this module that asks or changes something on a connection."""
OwnQuery = Callable[Concatenate[AsyncConnection, str, P], Awaitable[T]]
"""A query whose first argument is a tenant."""
OwnSteps = Callable[Concatenate[Database, str, P], Awaitable[T]]
"""Queries in steps, of which each takes a connection of its own; the first argument is a tenant."""

TASK_SECONDS = 10.0
REST_SECONDS = 5.0
QUEUE_SECONDS = 2.0
"""Longest wait of a request for other writers of this process."""


class Calls:
    """The ways to call the database with a query: for a request, for the REST API, in the background.

    A query knows its SQL, and nothing else. Connections, transactions, timeouts, retries and the breaker are
    here, by who calls.
    """

    def __init__(
        self,
        database: Database,
        timeout: float,
        *,
        histories: HistoryQueue,
        took: Callable[[float], object],
        secret: bytes | None = None,
    ) -> None:
        """`timeout` bounds a request's calls, in seconds; `took` is called with those of each. A database of another
        `secret` is refused."""
        self.database = database
        self.timeout = timeout
        self._took = took
        self._secret_digest = None if secret is None else settings_check.digest_of(secret)
        self.guard = Guard(self._ping, opened=database.doubt_idle)
        # Bounded, so that closing the store in the middle abandons the attempt: see `guard`.
        self.readiness = Readiness(lambda: self.guard.bounded(self.migrate, MIGRATION_SECONDS))
        self.writes = WriteBehind(database, self.guard, histories)
        """The queues of what is recorded and not stored yet, and how much was dropped."""

    async def migrate(
        self, decryption: Decryption | None = None, export: Export | None = None
    ) -> tuple[str | None, str]:
        """The revisions before and after; None before: the database was empty, and belongs to the secret from now on.

        Raises StoreUnavailable if trying again may help, and DatabaseUnusable if not.
        """
        if await schema.is_newest(self.database):
            if (path := self.database.address.path) is not None:
                close_to_others(path)
            await self._refuse_another_secret()
            return schema.newest(), schema.newest()
        if await schema.make(self.database, self._secret_digest):
            return None, schema.newest()
        await self._refuse_another_secret()
        from app.store import migrations  # noqa: PLC0415 - alembic is slow to import and needed once

        return await migrations.upgrade(self.database, decryption, export), schema.newest()

    async def bind_secret(self) -> bool:
        """Let a migrated database belong to the secret; False if it does already. Raises as `migrate` does."""
        if (digest := self._secret_digest) is None:
            return False
        async with schema.alone(self.database) as connection:
            is_new = await settings_check.keep_digest(connection, digest)
        await self._refuse_another_secret()
        return is_new

    async def _refuse_another_secret(self) -> None:
        """Raise WrongSecret if the database belongs to another secret."""
        if await self.secret_fits() is False:
            place = self.database.address.place
            text = f"The database {place} {settings_check.MADE_WITH_ANOTHER}. {settings_check.WAYS_OUT}"
            raise WrongSecret(text)

    async def secret_fits(self) -> bool | None:
        """Whether the database belongs to the secret; None if it belongs to none yet. Raises StoreUnavailable."""
        if (digest := self._secret_digest) is None:
            return None
        found = await self.before_start(settings_check.read_digest)
        return None if found is None else found == digest

    # Each raises StoreUnavailable, and what the query raises.

    async def request(self, query: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Read a tenant's rows on a request's path: through the breaker, within the request's timeout."""
        return await self.guarded(self.read(query, tenant, *arguments, **options))

    async def request_change(self, change: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Change a tenant's rows on a request's path, in a transaction that waits for locks no longer than that."""

        async def work() -> T:
            async with self.database.writing() as connection:
                return await change(connection, tenant, *arguments, **options)

        return await self.guarded(work)

    async def request_steps(self, steps: OwnSteps[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Read and change a tenant's rows on a request's path, in several steps that have one timeout together."""
        return await self.guarded(lambda: steps(self.database, tenant, *arguments, **options))

    async def rest(self, query: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Read a tenant's rows for the REST API: whoever looks after a request sees what the request showed."""
        return await self._after_writes(self.read(query, tenant, *arguments, **options))

    async def rest_change(self, change: OwnQuery[P, T], tenant: str, *arguments: P.args, **options: P.kwargs) -> T:
        """Change a tenant's rows for the REST API, in a transaction, as `rest` reads them."""
        return await self._after_writes(self.change(change, tenant, *arguments, **options))

    async def rest_of_all(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read rows of all tenants, as `rest` reads those of one."""
        return await self._after_writes(self.read(query, *arguments, **options))

    async def at_once(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read for the REST API; what waits to be stored is not seen yet."""
        return await self.bounded(self.read(query, *arguments, **options), REST_SECONDS)

    async def change_at_once(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Change rows for the REST API in a transaction, without what waits to be stored."""
        return await self.bounded(self.change(change, *arguments, **options), REST_SECONDS)

    async def task(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read in the background."""
        return await self.bounded(self.read(query, *arguments, **options), TASK_SECONDS)

    async def task_change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Change rows in the background, in a transaction."""
        return await self.bounded(self.change(change, *arguments, **options), TASK_SECONDS)

    async def before_start(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read as a task does, also while the store is not started."""
        return await self.guard.bounded(self.read(query, *arguments, **options), TASK_SECONDS)

    def read(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> Work[T]:
        """Work that runs a query without a transaction."""

        async def work() -> T:
            async with self.database.reading() as connection:
                return await query(connection, *arguments, **options)

        return work

    def change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> Work[T]:
        """Work that runs a change in a transaction, which waits some seconds for locks."""

        async def work() -> T:
            async with self.database.writing(patient=True) as connection:
                return await change(connection, *arguments, **options)

        return work

    # What they are made of, also for calls of more than one step

    async def guarded(self, work: Work[T], late: Callable[[T], Awaitable[object]] | None = None) -> T:
        """Do work on a request's path: through the breaker, within the request's timeout. `late`: see `Guard.call`."""
        self._require_ready()
        began = monotonic()
        try:
            while True:
                try:
                    return await self.guard.call(work, self.timeout, late)
                except Queued:
                    if monotonic() - began > QUEUE_SECONDS:
                        raise
        finally:
            self._took(monotonic() - began)

    async def _after_writes(self, work: Work[T]) -> T:
        """Do work for the REST API, after what waits to be stored.

        Not through the breaker, which is there for requests: this may be slow while the database is well.
        """

        async def flush_first() -> T:
            await self.writes.flush()
            return await work()

        return await self.bounded(flush_first, REST_SECONDS)

    async def bounded(self, work: Work[T], seconds: float) -> T:
        """Do work in the background, or for somebody who can wait."""
        self._require_ready()
        return await self.guard.bounded(work, seconds)

    def _require_ready(self) -> None:
        if self.readiness.reason is not None:
            raise StoreUnavailable(self.readiness.reason)

    async def _ping(self) -> None:
        async with self.database.reading() as connection:
            await connection.execute(text("SELECT 1"))
