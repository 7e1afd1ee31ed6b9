"""The store's interface for the rest of Steno. Every wait is bounded, and every database error is a `StoreError`.

A query is a function in this folder that takes a connection and runs SQL. `Store` calls it with the connection,
transaction, timeout, retries and circuit breaker that the caller needs.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import sleep
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Concatenate, Literal, ParamSpec, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from app.compaction.chunks import FirstChunk, SummaryChunk
from app.conversation.identity import Head
from app.runtime.caches import Erased, LogThrottle
from app.store import chunks, conversations, leases, retention, schema
from app.store.engine import (
    CLOSE_SECONDS,
    COMMAND_SECONDS,
    DATABASE_ERRORS,
    MIGRATION_SECONDS,
    REMEDY,
    Contended,
    Database,
    DatabaseUnusable,
    Guard,
    StatementRefused,
    StoreUnavailable,
    Work,
    unopened,
)
from app.store.histories import StoredHistory, read_history
from app.store.leases import LEASE_SECONDS, Claim, Lease, Refusal
from app.store.write_behind import REMEDY as UNWRITABLE
from app.store.write_behind import WriteBehind

P = ParamSpec("P")
T = TypeVar("T")

Query = Callable[Concatenate[AsyncConnection, P], Awaitable[T]]

log = structlog.get_logger("steno.store")

TASK_SECONDS = 10.0
REST_SECONDS = 5.0
FLUSH_SECONDS = 5.0
CONNECT_PAUSE_SECONDS = 1.0
"""Pause between attempts to connect at the start."""
COMMIT_AT_SECONDS = (0.0, 0.3, 1.0, 3.0, 8.0, 16.0, 24.0)
"""Earliest times of the attempts to commit, in seconds after the first attempt. The last attempts are for a failover,
which takes twenty seconds or more."""
COMMIT_TRY_SECONDS = 1.7
SPARE_MS = 250
"""A waiting request also sees leases that were revoked up to this many milliseconds before its wait."""
LARGEST_HISTORY = 100 << 20
ERASED_ROWS = 500


class StoredPrefix(Struct, frozen=True):
    """Stored pins, chunks and masks that apply to a history."""

    pins: tuple[int, ...]
    """Positions of the pinned messages, ascending."""
    chunks: Sequence[SummaryChunk]
    masks: Sequence[tuple[bytes, bytes]]
    """Mask boundaries. Each has two digests, see `chunks.masks_in`."""


class Store:
    """One SQLite or PostgreSQL database. A store belongs to the event loop in which it is created."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 0.25,
        lease_ttl: float = LEASE_SECONDS,
        retention_days: int | None = None,
        largest_history: int = LARGEST_HISTORY,
        took: Callable[[float], object] = lambda _: None,
        secret: bytes | None = None,
    ) -> None:
        """Parse the URL without connecting. Raises DatabaseURLError. `timeout` (of calls for chat requests) and
        `lease_ttl` are in seconds. Without `retention_days`, retention deletes only leases. Histories of more than
        `largest_history` bytes are not stored. `took` is called with the seconds of each call for a chat request.

        With `secret`, the store does not start on a database that was created with another secret.
        """
        # Less than the timeout, so that the database reports a lock before the call counts as unanswered.
        self.database = Database(url, lock_seconds=0.8 * timeout)
        self.timeout = timeout
        self.lease_ttl_ms = round(1000 * lease_ttl)
        self._took = took
        self._secret_digest = None if secret is None else schema.digest_of(secret)
        self.guard = Guard(self.database)
        self.ready = asyncio.Event()
        """Set when the database is connected and migrated."""
        self._not_ready: str | None = "not started"
        self._connecting: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()
        self.writes = WriteBehind(self.database, self.guard, largest_history)
        """Queues of the recorded rows that are not stored yet, with the number of dropped rows."""
        self.retention_days = retention_days
        self._tidying_task: asyncio.Task[None] | None = None

    # Start and end

    async def start(self) -> None:
        """Connect and migrate; retry in the background if the database is unreachable. Raises DatabaseUnusable."""
        try:
            await self.connect()
        except StoreUnavailable as error:
            self._away(error.reason)
            self._connecting = asyncio.ensure_future(self._connect_later())
        self.writes.start(self.ready)
        self._tidying_task = asyncio.ensure_future(retention.run(self))

    async def close(self) -> None:
        """Flush the queues, for at most five seconds, and close every connection."""
        for task in (self._tidying_task, self._connecting):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        await self.writes.stop()
        if self.writes.waiting:
            try:
                await self.flush()
            except StoreUnavailable as error:
                log.warning("closed before everything was stored", reason=error.reason)
        await self.guard.close()
        await self.guard.abandoned_calls(CLOSE_SECONDS)
        await self.database.close()
        await self.guard.abandoned_calls(COMMAND_SECONDS)

    async def connect(self) -> None:
        """Connect and migrate. Raises StoreUnavailable if a retry may help, and DatabaseUnusable if not."""
        # Bounded: if the store is closed meanwhile, the attempt is abandoned, not cancelled (see `Guard`).
        await self.guard.bounded(self._open, MIGRATION_SECONDS)
        self._not_ready = None
        self.ready.set()

    async def _connect_later(self) -> None:
        began = monotonic()
        while not self.ready.is_set():
            await sleep(CONNECT_PAUSE_SECONDS)
            try:
                await self.connect()
            except (StoreUnavailable, DatabaseUnusable) as error:
                # Steno serves requests already: it continues without a store and logs the reason.
                self._away(str(error))
            except Exception:
                if (times := self._throttle.count("connect")) is not None:
                    log.exception("connecting to the database failed", times=times)
        log.info("database ready", seconds=round(monotonic() - began, 1))

    def _away(self, reason: str) -> None:
        if reason != self._not_ready:
            log.warning("database away", reason=reason, remedy=REMEDY)
        self._not_ready = reason

    async def _open(self) -> None:
        if not await schema.is_newest(self.database):
            await schema.upgrade(self.database, secret_digest=self._secret_digest)
            return
        schema.close_to_others(self.database)
        if await self.secret_fits() is False:
            raise schema.wrong_secret(self.database)

    async def migrate(self, export: Path | None = None) -> tuple[str | None, bool]:
        """Migrate the database, and bind it to the secret: see `schema.upgrade`."""
        return await schema.upgrade(self.database, export, self._secret_digest, binds=True)

    async def secret_fits(self) -> bool | None:
        """Whether the stored digest belongs to `secret`; None if either is missing. Raises StoreUnavailable."""
        belongs_to = partial(self._read, schema.belongs_to, self._secret_digest)
        return await self.guard.bounded(belongs_to, REST_SECONDS)

    async def revision(self) -> str | None:
        """Return the schema's revision, also before the start; None for an empty database. Raises StoreUnavailable if a
        retry may help, and DatabaseUnusable if not."""
        try:
            revision = await self.guard.bounded(partial(self._read, schema.current), REST_SECONDS)
        except StoreUnavailable as error:
            cause = error.__cause__
            raise (unopened(cause) if isinstance(cause, DATABASE_ERRORS) else error) from cause
        schema.refuse_unknown(revision)
        return revision

    @property
    def is_new(self) -> bool:
        """Whether the SQLite file does not exist yet. The first start creates it."""
        path = self.database.address.path
        return path is not None and not path.exists()

    @property
    def reason(self) -> str | None:
        """Why requests cannot read the store; None if they can. `writes.reason` reports failed writes."""
        return self._not_ready or self.guard.reason

    @property
    def remedy(self) -> str | None:
        """Advice to the operator; None if the store can be read and written."""
        if self.reason is not None:
            return REMEDY
        return None if self.writes.reason is None else UNWRITABLE

    # Methods that run a query. Each raises StoreUnavailable and the errors of the query.

    async def request(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read for a chat request: through the circuit breaker, within `timeout`."""
        return await self._guarded(partial(self._read, query, *arguments, **options))

    async def request_change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Change rows for a chat request in a transaction, through the circuit breaker, within `timeout`."""

        async def work() -> T:
            async with self.database.writing() as connection:
                return await change(connection, *arguments, **options)

        return await self._guarded(work)

    async def rest(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read for the REST API. Write queued requests and usage records first, so that the result includes them."""
        return await self._after_writes(partial(self._read, query, *arguments, **options))

    async def rest_change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Change rows for the REST API in a transaction. Write queued requests and usage records first."""
        return await self._after_writes(partial(self._change, change, *arguments, **options))

    async def task(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Read in the background, without rows that are still queued."""
        return await self._bounded(partial(self._read, query, *arguments, **options), TASK_SECONDS)

    async def task_change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Change rows in the background, in a transaction."""
        return await self._bounded(partial(self._change, change, *arguments, **options), TASK_SECONDS)

    async def _read(self, query: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        async with self.database.reading() as connection:
            return await query(connection, *arguments, **options)

    async def _change(self, change: Query[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        async with self.database.writing(patient=True) as connection:
            return await change(connection, *arguments, **options)

    async def _guarded(self, work: Work[T]) -> T:
        """Run `work` through the circuit breaker, within `timeout`. Then call `took` with the seconds."""
        self._require_ready()
        began = monotonic()
        try:
            return await self.guard.call(work, self.timeout)
        finally:
            self._took(monotonic() - began)

    async def _after_writes(self, work: Work[T]) -> T:
        # Not through the breaker, which is for chat requests: this call may be slow although the database works.
        async def flush_first() -> T:
            await self.writes.flush(())
            return await work()

        return await self._bounded(flush_first, REST_SECONDS)

    async def _bounded(self, work: Work[T], seconds: float) -> T:
        self._require_ready()
        return await self.guard.bounded(work, seconds)

    def _require_ready(self) -> None:
        if self._not_ready is not None:
            raise StoreUnavailable(self._not_ready)

    # For compactions, which also call `is_erased` and `is_stored`. Each raises StoreUnavailable.

    async def read_prefix(
        self,
        tenant: str,
        conversation_id: str,
        chain: Sequence[bytes],
        cuts: Sequence[bytes],
        *,
        series: str | None,
        masks: str | None,
        bind: bool = True,
    ) -> StoredPrefix:
        """Return the pins in `chain`, the chunks of `series`, and the boundaries set with the mask settings `masks`.
        Omit chunks and boundaries whose digests are not in `cuts`. If `series` is None, return no chunks; if `masks`
        is None, return no boundaries. Bind unbound pins to the chain, unless `bind` is False (a dry run).
        """

        async def read() -> tuple[Sequence[conversations.Pin], StoredPrefix]:
            async with self.database.reading() as connection:
                pins = await conversations.find_pins(connection, tenant, conversation_id)
                found = () if series is None else await chunks.chunks_in(connection, tenant, series, cuts)
                masked = () if masks is None else await chunks.masks_in(connection, tenant, masks, cuts)
            return pins, StoredPrefix((), found, masked)

        pins, stored = await self._guarded(read)
        unbound = [pin.position for pin in pins if pin.digest is None and pin.position + 1 < len(chain)]
        fresh = {position: chain[position + 1] for position in unbound}
        if fresh and bind:
            pins = await self.request_change(conversations.bind_pins, tenant, conversation_id, fresh)
            fresh = {}
        positions = tuple(pin.position for pin in pins if pin.position in fresh or pin.holds_in(chain))
        return replace(stored, pins=positions)

    async def read_chunks(self, tenant: str, series: str, cuts: Sequence[bytes]) -> list[SummaryChunk]:
        return await self.request(chunks.chunks_in, tenant, series, cuts)

    async def read_first_chunks(
        self, tenant: str, series: str, messages: Sequence[bytes], within_seconds: float
    ) -> list[FirstChunk]:
        return await self.request(chunks.recent_first_chunks, tenant, series, messages, within_seconds)

    async def heads(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        """Return the heads with these digests, queued heads included. See `conversations.find_heads`."""
        # Read the queue first, then the database: a head that is flushed in between is found twice, and not missed.
        unwritten = self.writes.heads(tenant, digests)
        return await self.request(conversations.find_heads, tenant, digests, unwritten)

    async def keep_mask(self, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str) -> None:
        await self.request_change(chunks.keep_mask, tenant, settings, digest, start, conversation_id)

    async def take_lease(self, claim: Claim, holder: str, most: int | None = None) -> Lease | Refusal:
        """Take the lease of a range. Return `busy` if a conflicting lease is live, and `too_many` if all processes
        together already compact `most` conversations of the tenant."""
        is_waiting = True

        async def work() -> Lease | Refusal:
            # First without a transaction, so that many waiting requests do not queue for the write lock.
            async with self.database.reading() as connection:
                if await leases.is_busy(connection, claim, self.lease_ttl_ms):
                    return "busy"
            async with self.database.writing() as connection:
                granted = await leases.acquire_lease(connection, claim, holder, self.lease_ttl_ms, most)
            if isinstance(granted, Lease) and not is_waiting:  # The caller gave up, and will not use the lease.
                await self._change(leases.release_lease, granted)
            return granted

        try:
            return await self._guarded(work)
        except Contended:
            # Many requests take leases at once, or a process died while it took a lease. Either delay ends soon.
            return "busy"
        finally:
            is_waiting = False

    async def is_busy(self, claim: Claim) -> bool:
        """Whether `take_lease` would return `busy`."""
        return await self.request(leases.is_busy, claim, self.lease_ttl_ms)

    async def await_lease(self, claim: Claim, seconds: float) -> Literal["ended", "revoked"] | None:
        """Wait until no live lease conflicts with the claim. Return None if one still does after `seconds`. Return
        `revoked` if a lease with the same start was revoked meanwhile, perhaps another conversation's; else `ended`."""
        began = monotonic()
        while await self.is_busy(claim):
            if (left := began + seconds - monotonic()) <= 0:
                return None
            # Random, because many requests may begin to wait together.
            await sleep(min(left, leases.POLL_SECONDS * random.uniform(0.75, 1.25)))
        waited_ms = round(1_000 * (monotonic() - began)) + SPARE_MS
        is_revoked = await self.task(leases.is_revoked_within, claim.tenant, claim.range, waited_ms)
        return "revoked" if is_revoked else "ended"

    async def renew_lease(self, held: Lease) -> bool:
        """Prolong a lease. Return False if the lease is lost: its chunk cannot be committed any more."""
        return await self.task_change(leases.renew_lease, held, self.lease_ttl_ms)

    async def release_lease(self, held: Lease) -> bool:
        """Delete a lease; return True if it was revoked before. Waiting requests continue after their next check."""
        return await self.task_change(leases.release_lease, held)

    async def keep_chunks(self, held: Lease, made: Sequence[SummaryChunk]) -> list[SummaryChunk] | None:
        """Store chunks, and return the stored chunk of each range; None if the lease was lost (see `commit_chunks`).

        On SQLite, wait longer for other writers than a request does, because several summaries of a compaction are
        often ready at once. If a summary is not stored, the later summaries cannot be used.
        """

        async def work() -> list[SummaryChunk] | None:
            async with self.database.writing(patient=self.database.is_sqlite) as connection:
                return await chunks.commit_chunks(connection, held, made)

        began = monotonic()
        for next_at in COMMIT_AT_SECONDS[1:]:
            try:
                return await self._bounded(work, COMMIT_TRY_SECONDS)
            except StatementRefused:
                raise
            except StoreUnavailable as error:
                log.warning("commit tried again", reason=error.reason)
                await sleep(max(0.0, began + next_at - monotonic()))
        return await self._bounded(work, COMMIT_TRY_SECONDS)

    # Other methods, most with more than one query. The coroutines raise StoreUnavailable.

    def is_erased(self, tenant: str, conversation_id: str, epoch: int) -> bool:
        return self.writes.is_erased(tenant, conversation_id, epoch)

    async def is_stored(self, tenant: str, conversation_id: str) -> bool:
        return await self.rest(conversations.find_conversation, tenant, conversation_id) is not None

    async def history(self, tenant: str, conversation_id: str) -> StoredHistory | None:
        """Return the history of the conversation's latest request; None if there is none. Flush the queued history
        first."""

        async def flush_and_read() -> StoredHistory | None:
            await self.writes.flush([(tenant, conversation_id)])
            return await self._read(read_history, tenant, conversation_id)

        return await self._bounded(flush_and_read, REST_SECONDS)

    async def flush(self) -> None:
        """Store all queued rows within five seconds; after an error the rest stays queued."""
        await self._bounded(self.writes.flush_everything, FLUSH_SECONDS)

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation; return False if it does not exist. Running compactions cannot commit afterwards."""
        erase = partial(self._change, conversations.erase_conversation, tenant, conversation_id)
        erased = await self._erase(Erased(tenant, conversation_id), erase)
        if erased:
            await retention.empty_log(self)
        return erased

    async def erase_tenant(self, tenant: str) -> bool:
        """Delete all rows of a tenant; return False if there are none. Running compactions cannot commit afterwards."""

        async def erase() -> bool:
            erased = False
            await self.task_change(leases.revoke_leases, tenant)
            while await self.task_change(retention.erase_some, tenant, ERASED_ROWS):
                erased = True
            return erased

        # Twice: the second call blocks flushes, and deletes the rows that were stored during the first call.
        found = [await erase(), await self._erase(Erased(tenant), erase)]
        await retention.empty_log(self)
        return any(found)

    async def _erase(self, what: Erased, erase: Work[bool]) -> bool:
        return await self._bounded(lambda: self.writes.erase(what, erase), REST_SECONDS)
