"""The store as the rest of Steno sees it: every wait bounded, every database error one of `errors`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import structlog
from msgspec import Struct

from app.conversation.recognition import Head
from app.conversation.secrets import Scrub, without_secrets
from app.runtime.caches import Erased
from app.store import conversation_rows, schema, tenant_rows
from app.store.calls import REST_SECONDS, Calls
from app.store.database import CLOSE_SECONDS, COMMAND_SECONDS, Database
from app.store.errors import DATABASE_ERRORS, DatabaseUnusable, SchemaTooNew, SchemaTooOld, StoreUnavailable
from app.store.guard import REMEDY as UNREADABLE
from app.store.histories import HistoryQueue, StoredHistory, read_history
from app.store.lease import revoke_leases
from app.store.lease_calls import LeaseCalls
from app.store.remains import empty_log
from app.store.tidying import Tidying
from app.store.write_behind import REMEDY as UNWRITABLE

log = structlog.get_logger("steno.store")

FLUSH_SECONDS = 5.0
LARGEST_HISTORY = 100 << 20
ERASED_ROWS = 500


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
    secret_fits: bool | None = None
    """Whether it belongs to the secret; None if it belongs to none yet, or was not asked."""


class Store(Calls):
    """One database, SQLite or PostgreSQL. Made in the event loop that uses it.

    `store.request(query, tenant, ...)` calls a query of this folder for a request, `store.rest(query, tenant, ...)`
    for the REST API. Here are those calls that are more than one query.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 0.25,
        lease_ttl: float = 15.0,
        retention_days: int | None = None,
        scrub: Scrub = without_secrets,
        largest_history: int = LARGEST_HISTORY,
        took: Callable[[float], object] = lambda _: None,
        secret: bytes | None = None,
    ) -> None:
        """Connects to nothing yet; raises DatabaseURLError. `timeout`, of a request's calls, and `lease_ttl` are
        seconds; without `retention_days` everything is kept. `scrub` makes of a message what is stored of it, and
        histories of more than `largest_history` bytes are not stored. `took` is called with the seconds of each
        request's call.

        With `secret` the store does not start on a database of another one.
        """
        # Whoever is in the way, the database is well, and can say so before the request gives up.
        database = Database(url, lock_seconds=0.8 * timeout)
        histories = HistoryQueue(scrub, largest_history)
        super().__init__(database, timeout, histories=histories, took=took, secret=secret)
        self.leases = LeaseCalls(self, lease_ttl)
        self.tidying = Tidying(self, retention_days)
        self._tidying_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Migrate, or go on trying in the background while the database is unreachable; raise DatabaseUnusable."""
        await self.readiness.start()
        self.writes.start(self.readiness.ready)
        self._tidying_task = asyncio.ensure_future(self.tidying.run())

    async def close(self) -> None:
        """Flush what waits, for at most five seconds, and close every connection."""
        if self._tidying_task is not None:
            self._tidying_task.cancel()
            await asyncio.wait({self._tidying_task})
        await self.readiness.stop()
        await self.writes.stop()
        if self.writes.waiting:
            await self._flush_last()
        await self.guard.close()
        await self.guard.abandoned_calls(CLOSE_SECONDS)
        await self.database.close()
        await self.guard.abandoned_calls(COMMAND_SECONDS)

    @property
    def state(self) -> Literal["ok", "degraded"]:
        """Degraded: a request goes on without what is stored. Whether something can be stored is `not_written`."""
        return "ok" if self.reason is None else "degraded"

    @property
    def reason(self) -> str | None:
        """Why the store is degraded; None while it is well."""
        return self.readiness.reason or self.guard.reason

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
        return self.database.address.place

    async def check(self) -> Check:
        """Look without changing anything; raises nothing."""
        place, head = self.place, schema.newest()
        path = self.database.address.path
        if path is not None and not path.exists():
            return Check(place, False, None, head, f"{path} does not exist yet", is_new=True)
        revision = None
        try:
            revision = await self.guard.bounded(self.read(schema.current), REST_SECONDS)
            schema.refuse_unknown(revision)
            fits = await self.secret_fits()
        except (SchemaTooNew, SchemaTooOld) as error:
            return Check(place, True, revision, head, str(error), unusable=True)
        except StoreUnavailable as error:
            cause = error.__cause__
            why = schema.translated(cause) if isinstance(cause, DATABASE_ERRORS) else error
            return Check(place, False, None, head, str(why), unusable=isinstance(why, DatabaseUnusable))
        return Check(place, True, revision, head, None, unusable=fits is False, secret_fits=fits)

    async def heads(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        """The digests that some conversation was seen with, each with the newest such conversation."""
        # Taken before the database is read: what is flushed in between is then seen twice rather than not at all.
        unwritten = self.writes.heads(tenant, digests)
        return await self.request(conversation_rows.find_heads, tenant, digests, unwritten)

    async def history(self, tenant: str, conversation_id: str) -> StoredHistory | None:
        """The history of the conversation's latest request, what this process has not written yet included; None where
        none is kept. Raises StoreUnavailable."""
        self.writes.histories.hasten(tenant, conversation_id)
        return await self.rest(read_history, tenant, conversation_id)

    async def flush(self) -> None:
        """Store what was recorded, within five seconds. Raises StoreUnavailable; the rest then still waits."""
        await self.bounded(self.writes.flush_all, FLUSH_SECONDS)

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation; False if it was not there. A compaction that is under way can no longer commit."""
        what = Erased(tenant, conversation_id)
        erase = self.change(conversation_rows.erase_conversation, tenant, conversation_id)
        erased = await self.bounded(lambda: self.writes.erase(what, erase), REST_SECONDS)
        if erased:
            await empty_log(self)
        return erased

    async def erase_tenant(self, tenant: str) -> bool:
        """Erase all of a tenant; False if there was nothing. No compaction that is under way can commit any more."""
        await self.change_at_once(revoke_leases, tenant)
        erased = False
        while await self.change_at_once(tenant_rows.erase_some, tenant, ERASED_ROWS):
            erased = True
        rest = self.change(tenant_rows.erase_rest, tenant)
        erased = await self.bounded(lambda: self.writes.erase(Erased(tenant), rest), REST_SECONDS) or erased
        await empty_log(self)
        return erased

    async def _flush_last(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable as error:
            log.warning("closed before everything was stored", reason=error.reason)
