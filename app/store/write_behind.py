"""Write-behind: what requests showed is stored after they were answered, and never holds one up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

import structlog
from msgspec import Struct
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.recognition import Head
from app.runtime.bounded import Repeats
from app.runtime.caches import Erased
from app.store.conversations import ConversationSeen, UnwrittenRequests, is_committed, write_conversations
from app.store.engine import DATABASE_ERRORS, Contended, Database, Guard, StoreUnavailable, describe, is_away
from app.store.histories import HistoryQueue, LatestHistory, write_histories
from app.store.usage import UsageRecord, write_usage

log = structlog.get_logger("steno.store")

SOON_SECONDS = 0.005
"""Delay of the working out of records, which waits for a moment in which nobody waits for an answer."""
MOST_SOON = 16
"""Pieces of such work that wait; with one more all are done, so that nobody has to wait for many."""
PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
TRIAL_SECONDS = 5.0
"""Time without anything to store after which it is tried whether something could be."""
FLUSH_SECONDS = 10.0
QUEUE_CONVERSATIONS = 10_000
BATCH = 500
"""Conversations, and records, that are stored in one transaction."""
QUEUE_RECORDS = 20_000
"""Usage records, about 1 kB each."""
REMEDY = (
    "See that the database runs, that its disk has room, and that Steno may write to it: no read-only volume or file, "
    "no standby. Meanwhile stored summaries are used and no new ones are made; what waits is stored once it can be."
)
_TRIALS = {
    # A page of the file, so that a full disk is noticed, too.
    "file": text("UPDATE alembic_version SET version_num = version_num"),
    # Changes nothing, and is refused where nothing may be changed. Not the table above: the role that serves may have
    # no right to it, where another one migrates.
    "postgresql": text("DELETE FROM leases WHERE tenant = ''"),
}

K = TypeVar("K")
T = TypeVar("T")

Key = tuple[str, str]
Write = Callable[[Mapping[K, T]], Awaitable[Exception | None]]
"""Stores all of them in one transaction, or says why the database refused something among them."""


class Doubt(Struct, frozen=True):
    """A transaction that was cut off, perhaps after its last word."""

    transaction: int
    """Number of the transaction, for `is_committed`."""
    seen: dict[Key, UnwrittenRequests]
    """Requests that the transaction was to store."""


class WriteBehind:
    """Bounded queues: of requests with one entry per conversation, of usage records, and of histories. The
    first two are written every 0.2 s.

    What waits here is already visible to this process: an agent's next request comes sooner than the next flush.
    """

    def __init__(self, database: Database, guard: Guard, histories: HistoryQueue) -> None:
        self._database = database
        self._guard = guard
        self._queue: dict[Key, UnwrittenRequests] = {}
        self._in_flight: dict[Key, UnwrittenRequests] = {}
        self._records: dict[str, UsageRecord] = {}
        self._records_in_flight: dict[str, UsageRecord] = {}
        self._doubt: Doubt | None = None
        self.histories = histories
        self._writing = asyncio.Lock()
        self._ready: asyncio.Event | None = None
        self._recorded = asyncio.Event()
        self._soon: list[Callable[[], None]] = []
        self._repeats = Repeats()
        self._task: asyncio.Task[None] | None = None
        self.reason: str | None = None
        """Why nothing can be written; None while it can be, as far as is known."""
        self.dropped = 0
        """Requests that will not be in the store: the queue was full, or the database refused what they held."""
        self.dropped_records = 0
        """Usage records that will not be in the store, for the same reasons."""

    def soon(self, work: Callable[[], None]) -> None:
        """Queue a recording function for when there is time: an agent's next request comes at once, and is not to wait
        for what its last one leaves behind. Before anything recorded is read it is done."""
        self._soon.append(work)
        if len(self._soon) == 1:
            asyncio.get_running_loop().call_later(SOON_SECONDS, self.catch_up)
        elif len(self._soon) > MOST_SOON:
            self.catch_up()

    def catch_up(self) -> None:
        """Run what was queued by `soon`."""
        waiting, self._soon = self._soon, []
        for work in waiting:
            try:
                work()
            except Exception:
                log.exception("nothing was recorded of a request")

    def record(self, seen: ConversationSeen) -> None:
        """Queue what a request showed; it is dropped and counted where the queue is full."""
        key = (seen.tenant, seen.conversation_id)
        if (waiting := self._queue.pop(key, None)) is not None:
            waiting.add(UnwrittenRequests.of(seen))
            self._queue[key] = waiting  # As the latest.
            return
        # What is in flight comes back if the database is away.
        if sum(map(len, self._waiting)) >= QUEUE_CONVERSATIONS and not any(key in some for some in self._waiting):
            self.dropped += 1
            return
        self._queue[key] = UnwrittenRequests.of(seen)
        self._recorded.set()

    def record_usage(self, record: UsageRecord) -> None:
        """Queue a usage record; it is dropped and counted where the queue is full."""
        if len(self._records) + len(self._records_in_flight) >= QUEUE_RECORDS:
            self.dropped_records += 1
            return
        if not self._records:
            self._recorded.set()
        self._records[record.id] = record

    def record_history(self, history: LatestHistory) -> None:
        """Queue a history; it is dropped and counted where the queue is full."""
        self.histories.record(history)
        self._recorded.set()

    @property
    def waiting(self) -> bool:
        """Whether anything is not stored yet."""
        return bool(self._is_due or self.histories.waiting)

    @property
    def _is_due(self) -> bool:
        """Whether anything may be stored now."""
        self.catch_up()
        return bool(any(self._waiting) or self.records or self.histories.is_due)

    @property
    def requests(self) -> int:
        """Requests that are not stored yet."""
        return sum(seen.requests for waiting in self._waiting for seen in waiting.values())

    @property
    def records(self) -> int:
        """Usage records that are not stored yet."""
        return len(self._records) + len(self._records_in_flight)

    @property
    def _waiting(self) -> tuple[dict[Key, UnwrittenRequests], ...]:
        """Conversations that may not be stored yet, the oldest requests first."""
        return self._doubt.seen if self._doubt else {}, self._in_flight, self._queue

    def start(self, ready: asyncio.Event) -> None:
        """Flush in the background from when the tables are there."""
        self._ready = ready
        self._task = asyncio.ensure_future(self._run(ready))

    async def stop(self) -> None:
        """Cancels a wait, never a statement: those are the guard's."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def flush(self, *, everything: bool = False) -> None:
        """Write what was recorded before the call, and a batch of the histories that are due, or of all. If the
        database cannot be reached, it raises and keeps the rest."""
        self.catch_up()
        async with self._writing:
            if self._ready is not None and not self._ready.is_set():
                raise StoreUnavailable("the database is not ready")
            await self._settle()
            # Before the conversations: what comes meanwhile may be of one that is not stored yet.
            histories = self.histories.next_batch(everything=everything)
            self._in_flight, self._queue = self._queue, {}
            self._records_in_flight, self._records = self._records, {}
            try:
                while self._in_flight or self._records_in_flight:
                    await self._write_next()
                # After their conversations, without which they are not taken.
                await self.histories.flush(histories, self._write_histories)
            finally:
                self._put_back()

    async def flush_all(self) -> None:
        """Flush until nothing waits any more."""
        await self.flush(everything=True)
        while self.histories.waiting:
            await self.flush(everything=True)

    async def erase(self, what: Erased, erase: Callable[[], Awaitable[bool]]) -> bool:
        """Erase while no flush is in flight, and with it what waits. Whether there was anything."""
        async with self._writing:
            erased = await erase()
            return self._drop(what) or erased

    def _drop(self, erased: Erased) -> bool:
        self.catch_up()
        waiting = [(some, key) for some in self._waiting for key in some if erased.covers(*key)]
        for some, key in waiting:
            del some[key]
        for record in list(self._records.values()):
            if erased.covers(record.tenant, record.conversation_id):
                del self._records[record.id]
        self.histories.erase(erased)
        return bool(waiting)

    def heads(self, tenant: str, digests: Iterable[bytes]) -> list[Head]:
        """Heads that are not in the database yet; of one digest the newest comes last."""
        self.catch_up()
        wanted = set(digests)
        return [
            Head(digest, conversation_id, turn, seen.turns)
            for waiting in self._waiting
            for (owner, conversation_id), seen in waiting.items()
            if owner == tenant
            for digest, turn in seen.heads.items()
            if digest in wanted
        ]

    def _queue_before(self, older: dict[Key, UnwrittenRequests]) -> None:
        newer, self._queue = self._queue, dict(older)
        for key, seen in newer.items():
            if (waiting := self._queue.pop(key, None)) is not None:
                waiting.add(seen)
            self._queue[key] = waiting or seen

    async def _settle(self) -> None:
        """Ask what became of the transaction of which nobody knows. Raises while it is under way."""
        if (doubt := self._doubt) is None:
            return
        try:
            async with self._database.reading() as connection:
                committed = await is_committed(connection, doubt.transaction)
        except DATABASE_ERRORS as error:
            if is_away(error):
                raise
            committed = False  # It is another server, or an older state of it: nothing that it knows of.
        if committed is None:
            raise StoreUnavailable("the last transaction of this process is still under way")
        self._doubt = None
        if not committed:
            self._queue_before(doubt.seen)

    def _put_back(self) -> None:
        self._queue_before(self._in_flight)
        self._in_flight = {}
        self._records, self._records_in_flight = {**self._records_in_flight, **self._records}, {}

    async def _run(self, ready: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TRIAL_SECONDS):
                    await self._recorded.wait()
            await ready.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._recorded.clear()
            try:
                await self._guard.bounded(self.flush if self._is_due else self._try_out, FLUSH_SECONDS)
            except StoreUnavailable as error:
                if not isinstance(error, Contended):
                    self.reason = error.reason
                if (times := self._repeats.again("flush")) is not None:
                    reason, waiting = error.reason, self.requests
                    log.warning("database not written", reason=reason, waiting=waiting, remedy=REMEDY, times=times)
            except Exception:  # Whatever it was, what waits must not wait for ever.
                if (times := self._repeats.again("flush")) is not None:
                    log.exception("database not written", times=times)
            else:
                self.reason = None
                if (ended := self._repeats.over("flush")) is not None:
                    log.info("database written again", times=ended[0], seconds=ended[1])
                if self.histories.is_due:
                    self._recorded.set()
                continue
            self._recorded.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _try_out(self) -> None:
        """A disk may be full, or a file read-only, long before there is something to store."""
        if (trial := _TRIALS.get(self._database.address.kind)) is not None:
            async with self._writing, self._database.writing(patient=True) as connection:
                await connection.execute(trial)

    async def _write_next(self) -> None:
        """A batch of conversations and one of records, which are taken out, in one transaction; each kind in one of its
        own if the database refuses something among them."""
        seen = dict(islice(self._in_flight.items(), BATCH))
        records = dict(islice(self._records_in_flight.items(), BATCH))
        if await self._store(seen, records) is None:
            _take_out(self._in_flight, seen)
            _take_out(self._records_in_flight, records)
            return
        async for key, is_stored in self._each(seen, lambda some: self._store(some, {})):
            self.dropped += 0 if is_stored else seen[key].requests
            del self._in_flight[key]
        async for record, is_stored in self._each(records, lambda some: self._store({}, some)):
            self.dropped_records += not is_stored
            del self._records_in_flight[record]

    async def _write_histories(self, rows: Mapping[Key, dict[str, Any]]) -> int:
        """Store histories, and return how many of them the database refused."""

        async def store(some: Mapping[Key, dict[str, Any]]) -> Exception | None:
            return await self._refusal(lambda connection: write_histories(connection, list(some.values())))

        return [is_stored async for _, is_stored in self._each(rows, store)].count(False)

    async def _each(self, entries: Mapping[K, T], store: Write[K, T]) -> AsyncIterator[tuple[K, bool]]:
        """Yield each key as it is over, and whether it was stored: all in one transaction; one by one if the database
        refuses something among them. Where it goes away meanwhile, those that were stored are known."""
        if not entries or await store(entries) is None:
            for key in entries:
                yield key, True
            return
        for key, entry in entries.items():
            refusal = await store({key: entry})
            if refusal is not None and (times := self._repeats.again("drop")) is not None:
                log.warning("record not stored", reason=describe(refusal), times=times)
            yield key, refusal is None

    async def _store(
        self, seen: Mapping[Key, UnwrittenRequests], records: Mapping[str, UsageRecord]
    ) -> Exception | None:
        """Store all in one transaction. The error if the database refused something of it; None if it is stored."""
        transaction: int | None = None

        async def write(connection: AsyncConnection) -> None:
            nonlocal transaction
            if seen:
                transaction = await write_conversations(connection, list(seen.values()))
            if records:
                await write_usage(connection, list(records.values()))

        try:
            return await self._refusal(write)
        except DATABASE_ERRORS:
            # Perhaps after its last word: requests must not be counted again then. Records do not mind.
            if transaction is not None:
                self._doubt = Doubt(transaction, {key: self._in_flight.pop(key) for key in seen})
            raise

    async def _refusal(self, write: Callable[[AsyncConnection], Awaitable[None]]) -> Exception | None:
        """Write in one transaction. The error if the database refused something; None if it is stored."""
        try:
            async with self._database.writing(patient=True) as connection:
                await write(connection)
        except DATABASE_ERRORS as error:
            if is_away(error):
                raise
            return error
        return None


def _take_out(waiting: dict[K, T], stored: Iterable[K]) -> None:
    for key in stored:
        del waiting[key]
