"""The store as the rest of Steno sees it: every wait bounded, every database error one of `errors`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, TypeVar

import structlog
from sqlalchemy import text

from app.core.history.recognition import Head
from app.core.tokens.calibration import Calibration, Sample
from app.core.view.chunks import ChunkRange, FirstChunk, SummaryChunk
from app.store import (
    calibrations,
    chunks,
    conversations,
    learned_windows,
    lease,
    masks,
    pins,
    retention,
    search,
    tenants,
    usage,
)
from app.store.calibrations import CalibrationKey, StoredCalibration
from app.store.conversations import Conversation, ConversationSeen
from app.store.database import CLOSE_SECONDS, COMMAND_SECONDS, MIGRATION_SECONDS, Database
from app.store.errors import (
    DATABASE_ERRORS,
    Contended,
    DatabaseUnusable,
    Queued,
    SchemaTooNew,
    StatementRefused,
    StoreUnavailable,
)
from app.store.guard import Guard
from app.store.learned_windows import LearnedWindow
from app.store.lease import Busy, Lease
from app.store.pages import Order, Page
from app.store.pins import Pin
from app.store.readiness import Readiness
from app.store.turns import Turn, Turns
from app.store.usage import Usage, UsageRecord
from app.store.waiters import Waiters
from app.store.wakeups import CHANNEL, wake_word
from app.store.words import words_in
from app.store.write_behind import WriteBehind

T = TypeVar("T")

log = structlog.get_logger("steno.store")

TASK_SECONDS = 10.0
REST_SECONDS = 5.0
FLUSH_AT_CLOSE_SECONDS = 5.0
REQUEST_TURNS = 8
"""Calls of one tenant's requests that are under way at once: about half of the connections."""
QUEUE_SECONDS = 2.0
"""How long a request waits for others of this process that write."""
REST_TURNS = 2
ALL_REST_TURNS = 4
"""Calls for the REST API likewise, of one tenant and of all: what they cost is not bounded by a request's history."""
COMMIT_AT_SECONDS = (0.0, 0.3, 1.0, 3.0, 8.0)
"""When a commit is tried, at the earliest: a database that restarts refuses at once, a silent one takes its time."""
COMMIT_TRY_SECONDS = 1.7
MOST_CALIBRATIONS = 10_000
DAY_MS = 24 * 3_600_000
TIDY_START_SECONDS = 10.0
TIDY_SECONDS = 3_600.0
TIDY_ROWS = 500
INDEXED_ROWS = 100
REMOVED_ROWS = 100
"""Of conversations and the like, each of which has rows in other tables."""
EXPORT_ROWS = 100
TIDY_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Check:
    """What `steno doctor` says about the database."""

    place: str
    """Which database, without its password."""
    reachable: bool
    current_revision: str | None
    head_revision: str
    reason: str | None
    """Why it cannot be used now."""
    is_new: bool = False
    """It is made at the first start."""
    unusable: bool = False
    """Nothing starts with it before somebody changes something."""


class Store:
    """One database, SQLite or PostgreSQL. Made in the event loop that uses it, by `open`."""

    def __init__(
        self, database: Database, timeout: float, lease_ttl: float, retention_days: int | None, *, listen: bool
    ) -> None:
        self._database = database
        self._timeout = timeout
        self._ttl_ms = round(lease_ttl * 1000)
        self._kept_ms = None if retention_days is None else retention_days * DAY_MS
        self._guard = Guard(self._ping, opened=database.doubt_idle)
        # Bounded, so that closing the store in the middle abandons the attempt: see `guard`.
        self._readiness = Readiness(lambda: self._guard.bounded(self.migrate, MIGRATION_SECONDS))
        self._writes = WriteBehind(database, self._guard)
        self._request_turns = Turns(REQUEST_TURNS)
        self._rest_turns = Turns(REST_TURNS, ALL_REST_TURNS)
        self._waiters = Waiters(database, self._guard, listen=listen)
        self._tidying: asyncio.Task[None] | None = None

    @classmethod
    def open(
        cls,
        url: str,
        *,
        timeout: float = 0.25,
        statement_cache: bool = True,
        listen_notify: bool = True,
        lease_ttl: float = 15.0,
        retention_days: int | None = None,
    ) -> Store:
        """Connects to nothing yet. `statement_cache=False` is for PgBouncer in transaction mode, behind which nothing
        is heard either."""
        # Whoever is in the way, the database is well, and can say so before the request gives up.
        database = Database(url, statement_cache=statement_cache, lock_seconds=0.8 * timeout)
        return cls(database, timeout, lease_ttl, retention_days, listen=listen_notify and statement_cache)

    async def start(self) -> None:
        """Migrate, or go on trying in the background while the database is unreachable; raise DatabaseUnusable."""
        await self._readiness.start()
        self._writes.start(self._readiness.ready)
        self._tidying = asyncio.ensure_future(self._tidy())

    async def close(self) -> None:
        """Flush what waits, for at most five seconds, and close every connection."""
        await self._readiness.stop()
        await self._writes.stop()
        await self._waiters.stop()
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.wait({self._tidying})
        if self._writes.waiting:
            await self._flush_last()
        await self._guard.close()
        await self._guard.abandoned_calls(CLOSE_SECONDS)
        await self._database.close()
        await self._guard.abandoned_calls(COMMAND_SECONDS)

    @property
    def state(self) -> Literal["ok", "degraded"]:
        return "ok" if self.reason is None else "degraded"

    @property
    def reason(self) -> str | None:
        """Why the store is degraded."""
        return self._readiness.reason or self._guard.reason

    @property
    def place(self) -> str:
        """Which database it is, without its password."""
        return self._database.address.place

    async def wait_ready(self, timeout: float) -> bool:  # noqa: ASYNC109 - answers False instead of raising
        try:
            async with asyncio.timeout(timeout):
                await self._readiness.ready.wait()
        except TimeoutError:
            return False
        return True

    # On a request's path

    async def chunks_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """The series' chunks that begin and end in the chain."""
        return await self._guarded(tenant, self._read(chunks.chunks_in, tenant, series, chain))

    async def masks_in(self, tenant: str, settings: str, chain: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The mask boundaries for these settings that lie in the chain, each with where it starts to count."""
        return await self._guarded(tenant, self._read(masks.masks_in, tenant, settings, chain))

    async def keep_mask(self, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str) -> None:
        """A new boundary, known to every replica from here on."""
        await self._guarded(tenant, self._write(masks.keep_mask, tenant, settings, digest, start, conversation_id))

    async def pins_of(
        self, tenant: str, conversation_id: str, chain: Sequence[bytes], *, bind: bool = True
    ) -> tuple[int, ...]:
        """The positions of the conversation's pinned messages in this chain, ascending.

        Pins that no request has shown yet are bound to it; a dry run only looks (`bind=False`).
        """
        return await self._guarded(tenant, lambda: self._pins_of(tenant, conversation_id, chain, bind))

    async def recent_first_chunks(
        self, tenant: str, series: str, messages: Sequence[bytes], within_seconds: float
    ) -> list[FirstChunk]:
        """Where histories that end like parts of this one were summarised of late, under this chain or another."""
        within_ms = round(within_seconds * 1000)
        return await self._guarded(tenant, self._read(chunks.recent_first_chunks, tenant, series, messages, within_ms))

    async def heads(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        """The digests that some conversation was seen with, each with the newest such conversation."""
        # Taken before the database is read: what is flushed in between is then seen twice rather than not at all.
        unwritten = self._writes.heads(tenant, digests)
        return await self._guarded(tenant, self._read(conversations.find_heads, tenant, digests, unwritten))

    async def acquire(
        self,
        tenant: str,
        conversation_id: str,
        range: ChunkRange,  # noqa: A002 - the noun of the design
        chain: Collection[bytes],
        holder: str,
    ) -> Lease | Busy:
        """Busy if waiting is better than making the chunk: see `lease`."""
        if busy := self._waiters.awaited(tenant, (conversation_id, range, frozenset(chain))):
            return busy
        look = self._read(lease.find_live, tenant, conversation_id, range, chain, self._ttl_ms)
        take = self._write(lease.acquire_lease, tenant, conversation_id, range, chain, holder, self._ttl_ms)

        async def work() -> Lease | Busy:
            # A crowd that is told to wait should not queue for a write lock to hear it.
            return await look() or await take()

        try:
            return await self._guarded(tenant, work, late=self._give_back)
        except Contended:
            # A crowd takes its turns, or a process was cut off in the middle of its own: either is over soon.
            return Busy(conversation_id, self._timeout)

    async def live_lease(
        self,
        tenant: str,
        conversation_id: str,
        range: ChunkRange,  # noqa: A002 - the noun of the design
        chain: Collection[bytes],
    ) -> Busy | None:
        """What `acquire` would be told to wait for."""
        return await self._guarded(
            tenant, self._read(lease.find_live, tenant, conversation_id, range, chain, self._ttl_ms)
        )

    async def lease_ended(
        self,
        tenant: str,
        conversation_id: str,
        range: ChunkRange,  # noqa: A002 - the noun of the design
        chain: Collection[bytes],
        seconds: float,
    ) -> bool:
        """Wait until `acquire` would not be told to wait; False if that takes longer than so many seconds.

        Raises StoreUnavailable as soon as the database cannot be asked.
        """
        what = conversation_id, range, frozenset(chain)

        async def look() -> Busy | None:
            return await self.live_lease(tenant, conversation_id, range, chain)

        return await self._waiters.wait(tenant, what, look, seconds)

    async def recovers(self) -> bool:
        """Wait for a database that does not answer; False once it has been away for some ten seconds."""
        return self._readiness.reason is None and await self._guard.recovers()

    def record(self, seen: ConversationSeen) -> None:
        """Never waits: stored within about 0.2 s, visible in this process at once."""
        self._writes.record(seen)

    def record_usage(self, record: UsageRecord) -> None:
        """Never waits, as `record`."""
        self._writes.record_usage(record)

    async def flush(self) -> None:
        """Store what was recorded."""
        await self._bounded(self._writes.flush, FLUSH_AT_CLOSE_SECONDS)

    @property
    def dropped(self) -> int:
        """Recorded requests that will not be stored."""
        return self._writes.dropped

    @property
    def dropped_records(self) -> int:
        """Usage records that will not be stored."""
        return self._writes.dropped_records

    # In the background

    async def learn(self, samples: Mapping[CalibrationKey, Sequence[Sample]]) -> dict[CalibrationKey, Calibration]:
        """What the calibrations are after these samples, and those of other replicas. One transaction."""
        return await self._bounded(self._write(calibrations.learn_calibrations, samples, patient=True), TASK_SECONDS)

    async def calibrations(self, changed_within_seconds: float | None = None) -> list[StoredCalibration]:
        """Of all tenants, the latest 10,000 to change; the newest first."""
        within_ms = None if changed_within_seconds is None else round(changed_within_seconds * 1000)
        return await self._bounded(
            self._read(calibrations.read_calibrations, MOST_CALIBRATIONS, within_ms), TASK_SECONDS
        )

    async def learn_window(self, upstream: str, model: str, tenant: str, limit: int, seconds: float) -> None:
        """Keep a limit that a tenant was told for so long, or the smaller one that is there."""
        learn = self._write(learned_windows.learn_window, upstream, model, tenant, limit, round(seconds * 1000))
        await self._bounded(learn, TASK_SECONDS)

    async def forget_window(self, upstream: str, model: str, tenant: str, below: int) -> None:
        """Drop what a tenant was told of a model, if it is less than that."""
        await self._bounded(self._write(learned_windows.forget_window, upstream, model, tenant, below), TASK_SECONDS)

    async def learned_windows(self, upstream: str, most: int) -> list[LearnedWindow]:
        """What all replicas learnt about the models of an upstream, and still holds. Needs no started store."""
        read = self._read(learned_windows.read_learned_windows, upstream, most)
        return await self._guard.bounded(read, TASK_SECONDS)

    async def index_summaries(self) -> None:
        """Those that no search finds, because an earlier release stored them; a few at a time."""
        last: tuple[str, str] | None = None
        while True:
            found = await self._bounded(self._read(search.find_unindexed, last, INDEXED_ROWS), TASK_SECONDS)
            if found.missing:
                words = await asyncio.to_thread(lambda: [(*key, words_in(text)) for *key, text in found.missing])  # noqa: B023 - awaited here
                await self._bounded(self._write(search.index_summaries, words, patient=True), TASK_SECONDS)
            if (last := found.last) is None:
                return
            await asyncio.sleep(TIDY_PAUSE_SECONDS)

    async def remove_old_leases(self) -> None:
        """Those that ended a day ago."""
        await self._repeat(self._write(lease.remove_old_leases, TIDY_ROWS, patient=True), TIDY_ROWS)

    async def remove_unused(self) -> None:
        """What nobody used for as long as things are kept."""
        await self._repeat(self._write(retention.date_chunks, TIDY_ROWS, patient=True), TIDY_ROWS)
        if self._kept_ms is None:
            return
        for remove in retention.REMOVALS:
            await self._repeat(self._write(remove, self._kept_ms, REMOVED_ROWS, patient=True), REMOVED_ROWS)

    async def _repeat(self, change: Callable[[], Coroutine[Any, Any, int]], most: int) -> None:
        """A few at a time, so that nobody waits long for the write lock of SQLite."""
        changed = most
        while changed == most:
            changed = await self._bounded(change, TASK_SECONDS)
            await asyncio.sleep(TIDY_PAUSE_SECONDS)

    # In compaction tasks

    async def renew(self, lease_held: Lease) -> bool:
        """False: it was taken over, and what is being made can no longer be committed."""
        renew = self._write(lease.renew_lease, lease_held, self._ttl_ms, patient=True)
        return await self._bounded(renew, TASK_SECONDS)

    async def release(self, lease_held: Lease) -> None:
        """Lets others in, and wakes those who wait for what was made."""
        place = lease_held.tenant, lease_held.conversation_id

        async def work() -> None:
            async with self._database.writing(patient=True) as connection:
                if await lease.release_lease(connection, lease_held) and self._waiters.by_notify:
                    await lease.tell_waiters(connection, CHANNEL, wake_word(*place))

        await self._bounded(work, TASK_SECONDS)
        self._waiters.ended(*place)

    async def revoked(self, lease_held: Lease) -> bool:
        """Whether a lease that was lost was lost to a deletion of its conversation."""
        return await self._bounded(self._read(lease.is_revoked, lease_held), TASK_SECONDS)

    async def commit(self, lease_held: Lease, made: Sequence[SummaryChunk]) -> list[SummaryChunk] | None:
        """The chunks as stored; None if the lease was lost. Repeats itself on connection errors, which is safe."""
        work, began = self._write(chunks.commit_chunks, lease_held, made), monotonic()
        for next_at in COMMIT_AT_SECONDS[1:]:
            try:
                return await self._bounded(work, COMMIT_TRY_SECONDS)
            except StatementRefused:
                raise
            except StoreUnavailable as error:
                log.warning("commit tried again", reason=error.reason)
                await asyncio.sleep(max(0.0, began + next_at - monotonic()))
        return await self._bounded(work, COMMIT_TRY_SECONDS)

    # For the REST API

    async def conversations(self, tenant: str, *, limit: int, after: str | None, order: Order) -> Page[Conversation]:
        """By creation. Raises UnknownCursor if no conversation of the tenant is called `after`."""
        return await self._rest(
            tenant, self._read(conversations.list_conversations, tenant, limit=limit, after=after, order=order)
        )

    async def conversation(self, tenant: str, conversation_id: str) -> Conversation | None:
        return await self._rest(tenant, self._read(conversations.find_conversation, tenant, conversation_id))

    async def delete_conversation(self, tenant: str, conversation_id: str) -> bool:
        """Whether it was there. A compaction of it that is under way can no longer commit."""
        erase = self._write(conversations.erase_conversation, tenant, conversation_id, patient=True)
        return await self._bounded(lambda: self._writes.erase(tenant, conversation_id, erase), REST_SECONDS)

    async def erase_tenant(self, tenant: str) -> bool:
        """Whether there was anything. No compaction that is under way can commit any more.

        In many transactions, so that nobody else waits long: where one fails, some of it is erased, and doing it again
        erases the rest.
        """
        await self._bounded(self._write(tenants.revoke_all, tenant, patient=True), REST_SECONDS)
        some, erased = self._write(tenants.erase_some, tenant, TIDY_ROWS, patient=True), False
        while await self._bounded(some, REST_SECONDS):
            erased = True
        rest = self._write(tenants.erase_rest, tenant, patient=True)
        return await self._bounded(lambda: self._writes.erase(tenant, None, rest), REST_SECONDS) or erased

    async def export(self, tenant: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """All rows of the tenant, each with the name of its table; a few are read at a time."""
        for table in tenants.EXPORTED:
            after: list[Any] | None = None
            while True:
                rows = await self._rest(tenant, self._read(tenants.read_rows, tenant, table, after, EXPORT_ROWS))
                for row in rows:
                    yield str(table.name), row
                if len(rows) < EXPORT_ROWS:
                    break
                after = tenants.key_of(table, rows[-1])

    async def summaries(
        self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order
    ) -> Page[SummaryChunk]:
        """The chunks it made or its last payload used. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant, self._read(chunks.list_summaries, tenant, conversation_id, limit=limit, after=after, order=order)
        )

    async def summary(self, tenant: str, conversation_id: str, chunk_id: str) -> SummaryChunk | None:
        return await self._rest(tenant, self._read(chunks.find_summary, tenant, conversation_id, chunk_id))

    async def search_summaries(
        self, tenant: str, words: Sequence[str], *, limit: int, after: str | None, order: Order
    ) -> Page[SummaryChunk]:
        """The tenant's chunks that hold every one of `words_in` a query, or a word that begins with it.

        Raises UnknownCursor if `after` is none of them.
        """
        return await self._rest(
            tenant, self._read(chunks.search_summaries, tenant, words, limit=limit, after=after, order=order)
        )

    async def pins(self, tenant: str, conversation_id: str) -> list[Pin]:
        return await self._rest(tenant, self._read(pins.find_pins, tenant, conversation_id))

    async def replace_pins(self, tenant: str, conversation_id: str, positions: Sequence[int]) -> list[Pin] | None:
        """The new pins; None if nobody knows the conversation."""
        return await self._rest(
            tenant, self._write(pins.replace_pins, tenant, conversation_id, positions, patient=True)
        )

    async def usage(self, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order) -> Usage:
        """A page of the conversation's records with its sums. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant, self._read(usage.read_usage, tenant, conversation_id, limit=limit, after=after, order=order)
        )

    async def calibrations_of(
        self, tenant: str, *, limit: int, after: str | None, order: Order
    ) -> Page[StoredCalibration]:
        """Of the models in the tenant's conversations. Raises UnknownCursor if `after` is none of them."""
        return await self._rest(
            tenant, self._read(calibrations.list_calibrations, tenant, limit=limit, after=after, order=order)
        )

    async def models_used(self, tenant: str, most: int = 1_000) -> list[str]:
        """The models in the tenant's conversations, the latest first."""
        return await self._rest(tenant, self._read(learned_windows.read_models_used, tenant, most))

    # For the command line

    async def migrate(self) -> tuple[str | None, str]:
        """The revisions before and after. Raises StoreUnavailable or DatabaseUnusable."""
        from app.store import migrations  # noqa: PLC0415 - alembic is slow to import and needed once

        migrated = await migrations.upgrade(self._database)
        return migrated.before, migrated.after

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

    # How each of them is carried out

    def _read(
        self, query: Callable[..., Awaitable[T]], *arguments: Any, **options: Any
    ) -> Callable[[], Coroutine[Any, Any, T]]:
        async def work() -> T:
            async with self._database.reading() as connection:
                return await query(connection, *arguments, **options)

        return work

    def _write(
        self, change: Callable[..., Awaitable[T]], *arguments: Any, patient: bool = False
    ) -> Callable[[], Coroutine[Any, Any, T]]:
        async def work() -> T:
            async with self._database.writing(patient=patient) as connection:
                return await change(connection, *arguments)

        return work

    async def _pins_of(self, tenant: str, conversation_id: str, chain: Sequence[bytes], bind: bool) -> tuple[int, ...]:
        found = await self._read(pins.find_pins, tenant, conversation_id)()
        fresh = pins.to_bind(found, chain)
        if fresh and bind:
            found, fresh = await self._write(pins.bind_pins, tenant, conversation_id, fresh)(), {}
        return tuple(pin.position for pin in found if pin.position in fresh or pin.holds_in(chain))

    async def _guarded(
        self,
        tenant: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        late: Callable[[T], Awaitable[object]] | None = None,
    ) -> T:
        self._require_ready()
        # Waiting for one's own other requests says nothing about the database, and its time does not count as such.
        async with self._request_turns.taken(tenant):
            began = monotonic()
            while True:
                try:
                    return await self._guard.call(work, self._timeout, late)
                except Queued:
                    if monotonic() - began > QUEUE_SECONDS:
                        raise

    async def _bounded(self, work: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        self._require_ready()
        return await self._guard.bounded(work, seconds)

    async def _rest(self, tenant: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Whoever looks after a request sees what the request showed.

        Not through the breaker, which is there for requests: this may be slow while the database is well.
        """
        self._require_ready()
        turn = await self._rest_turn(tenant)

        async def flush_first() -> T:
            try:
                await self._writes.flush()
                return await work()
            finally:
                # Not when its caller gives up: until it ends the database is still at it.
                turn.end()

        return await self._bounded(flush_first, REST_SECONDS)

    async def _rest_turn(self, tenant: str) -> Turn:
        try:
            async with asyncio.timeout(REST_SECONDS):
                return await self._rest_turns.take(tenant)
        except TimeoutError as error:
            raise StoreUnavailable(
                f"no turn within {REST_SECONDS:.0f} s: at most {REST_TURNS} such requests of a tenant are carried out"
                f" at once, and {ALL_REST_TURNS} of all tenants"
            ) from error

    def _require_ready(self) -> None:
        if self._readiness.reason is not None:
            raise StoreUnavailable(self._readiness.reason)

    async def _flush_last(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable as error:
            log.warning("closed before everything was stored", reason=error.reason)

    async def _give_back(self, granted: Lease | Busy) -> None:
        """A lease that came after its request had given up would keep everybody waiting for nobody."""
        if isinstance(granted, Lease):
            await self.release(granted)

    async def _tidy(self) -> None:
        """Soon after the start, then about once an hour; nobody waits for it."""
        await self._readiness.ready.wait()
        await asyncio.sleep(TIDY_START_SECONDS * random.uniform(0.5, 1.5))
        while True:
            for tidy in (self.remove_old_leases, self.index_summaries, self.remove_unused):
                try:
                    await tidy()
                except StoreUnavailable as error:
                    log.warning("tidying put off", task=tidy.__name__, reason=error.reason)
                except Exception:
                    log.exception("tidying put off", task=tidy.__name__)
            await asyncio.sleep(TIDY_SECONDS * random.uniform(0.5, 1.5))

    async def _ping(self) -> None:
        async with self._database.reading() as connection:
            await connection.execute(text("SELECT 1"))
