"""The write-behind queue: what requests showed is stored after they were answered, and never holds one up.

Conversations (one entry each) and usage records are written every 0.2 s, histories at most every five seconds a
conversation. What waits is visible to this process at once, and to the REST API, which flushes first. A process that is
killed loses what waits: requests, heads and usage records of the last 0.2 s, histories of the last five, and all since
the database went away. It loses no summary, mask or pin: those are stored before they are used. A shutdown flushes.
Requests may be counted twice whose commit was not acknowledged, because the connection ended in that moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import structlog
from sqlalchemy import text

from app.conversation.identity import Head
from app.runtime.bounded import LogThrottle
from app.runtime.caches import Erased
from app.store.conversations import ConversationSeen, write_conversations
from app.store.engine import DATABASE_ERRORS, Contended, Database, Guard, StoreUnavailable, describe, is_away
from app.store.histories import HistoryQueue, LatestHistory, rows_of_histories
from app.store.usage import UsageRecord, write_usage

log = structlog.get_logger("steno.store")

SOON_SECONDS = 0.005
"""Delay of recording, so that it runs at a moment in which no request waits for an answer."""
MOST_SOON = 16
"""Pieces of recording that wait; with one more all are done, so that no request has to wait for many."""
PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
TRIAL_SECONDS = 5.0
"""Time without anything to store after which it is tried whether something could be."""
FLUSH_SECONDS = 10.0
MOST_ERASED = 10_000
"""Erasures that are remembered."""
QUEUE_CONVERSATIONS = 10_000
QUEUE_RECORDS = 20_000
"""Usage records, about 1 kB each."""
BATCH = 500
"""Conversations, and records, that are stored in one transaction."""
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

K = TypeVar("K", bound=tuple[str, ...])
T = TypeVar("T")


@dataclass(slots=True)
class Batch:
    """Conversations and usage records that wait."""

    seen: dict[tuple[str, str], ConversationSeen] = field(default_factory=dict)
    """Requests by tenant and conversation."""
    usage: dict[tuple[str, str, str], UsageRecord] = field(default_factory=dict)
    """Usage records by tenant, conversation and id."""

    def __len__(self) -> int:
        return len(self.seen) + len(self.usage)

    @property
    def requests(self) -> int:
        return sum(seen.requests for seen in self.seen.values())

    def add(self, newer: Batch) -> None:
        """Add later requests and records; their conversations become the latest."""
        for key, seen in newer.seen.items():
            earlier = self.seen.pop(key, None)
            self.seen[key] = seen if earlier is None else earlier.with_later(seen)
        self.usage |= newer.usage

    def take(self, most: int) -> Batch:
        """Take out the first conversations and records, at most so many of each; of one, a conversation if any."""
        seen = _take(self.seen, most)
        return Batch(seen, _take(self.usage, most if most > 1 or not seen else 0))

    def erase(self, what: Erased) -> bool:
        """Remove what was erased. Whether there was anything."""
        before = len(self)
        self.seen = {key: seen for key, seen in self.seen.items() if not what.covers(*key)}
        self.usage = {key: record for key, record in self.usage.items() if not what.covers(key[0], key[1])}
        return len(self) < before


def _take(queue: dict[K, T], most: int) -> dict[K, T]:
    return {key: queue.pop(key) for key in list(islice(queue, most))}


class WriteBehind:
    """Bounded queues of conversations, usage records and histories."""

    def __init__(self, database: Database, guard: Guard, histories: HistoryQueue) -> None:
        self._database = database
        self._guard = guard
        self.histories = histories
        self._queue = Batch()
        self._in_flight = Batch()
        self.epoch = 0
        """Number of erasures at this process. A request stores nothing of what was erased in a later epoch than its."""
        self._erased: deque[Erased] = deque(maxlen=MOST_ERASED)
        """Latest erasures, in order."""
        self._writing = asyncio.Lock()
        self._ready: asyncio.Event | None = None
        self._recorded = asyncio.Event()
        self._soon: list[Callable[[], None]] = []
        self._throttle = LogThrottle()
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
        key, waiting = (seen.tenant, seen.conversation_id), (self._in_flight.seen, self._queue.seen)
        # What is in flight comes back if the database is away.
        if sum(map(len, waiting)) >= QUEUE_CONVERSATIONS and not any(key in queue for queue in waiting):
            self.dropped += 1
            return
        self._queue.add(Batch({key: seen}))
        self._recorded.set()

    def record_usage(self, record: UsageRecord) -> None:
        """Queue a usage record; it is dropped and counted where the queue is full."""
        if self.records >= QUEUE_RECORDS:
            self.dropped_records += 1
            return
        self._queue.usage[record.tenant, record.conversation_id, record.id] = record
        self._recorded.set()

    def record_history(self, history: LatestHistory) -> None:
        """Queue a history; it is dropped and counted where the queue is full."""
        self.histories.record(history)
        self._recorded.set()

    @property
    def waiting(self) -> bool:
        """Whether anything is not stored yet."""
        self.catch_up()
        return bool(self._in_flight or self._queue or self.histories.waiting)

    @property
    def requests(self) -> int:
        """Requests that are not stored yet."""
        return self._in_flight.requests + self._queue.requests

    @property
    def records(self) -> int:
        """Usage records that are not stored yet."""
        return len(self._in_flight.usage) + len(self._queue.usage)

    def heads(self, tenant: str, digests: Iterable[bytes]) -> list[Head]:
        """Heads that are not in the database yet; of one digest the newest comes last."""
        self.catch_up()
        wanted = set(digests)
        return [
            Head(digest, conversation_id, turn, seen.turns)
            for batch in (self._in_flight, self._queue)
            for (owner, conversation_id), seen in batch.seen.items()
            if owner == tenant
            for digest, turn in seen.heads
            if digest in wanted
        ]

    def start(self, ready: asyncio.Event) -> None:
        """Flush in the background from when the tables are there."""
        self._ready = ready
        self._task = asyncio.ensure_future(self._run(ready))

    async def stop(self) -> None:
        """Cancel a wait, never a statement: those are the guard's."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def flush_records(self) -> None:
        """Write the requests and usage records that were recorded before the call. If the database cannot be reached,
        it raises and keeps the rest."""
        self.catch_up()
        async with self._writing:
            await self._write_records()

    async def flush(self, *, everything: bool = False) -> None:
        """Write these, and a batch of the histories that are due, or of all."""
        self.catch_up()
        # Chosen before the conversations are written, without which they are not taken. Compressed before others have
        # to wait.
        histories = self.histories.next_batch(everything=everything)
        rows = await asyncio.to_thread(rows_of_histories, histories)
        async with self._writing:
            await self._write_records()
            if histories:
                await self.histories.write(self._database, histories, rows)

    async def flush_all(self) -> None:
        """Flush until nothing waits any more."""
        await self.flush(everything=True)
        while self.histories.waiting:
            await self.flush(everything=True)

    async def erase(self, what: Erased, erase: Callable[[], Awaitable[bool]]) -> bool:
        """Erase while no flush is in flight, and with it what waits. Whether there was anything."""
        async with self._writing:
            erased = await erase()
            self.catch_up()
            waited = [self._in_flight.erase(what), self._queue.erase(what)]
            self.histories.erase(what)
            self._erased.append(what)
            self.epoch += 1
            return erased or any(waited)

    def is_erased(self, tenant: str, conversation_id: str, epoch: int) -> bool:
        """True if a conversation was erased at this process after an epoch; also if that is too long ago to say."""
        later = self.epoch - epoch
        latest = islice(reversed(self._erased), later)
        return later > MOST_ERASED or any(erased.covers(tenant, conversation_id) for erased in latest)

    async def _write_records(self) -> None:
        if self._ready is not None and not self._ready.is_set():
            raise StoreUnavailable("the database is not ready")
        left, alone = len(self._queue), 0
        while left > 0 and self._queue:
            if stored := await self._write_next(1 if alone else BATCH):
                left, alone = left - stored, max(0, alone - stored)
            else:
                alone = 2 * BATCH

    async def _write_next(self, most: int) -> int:
        """Store the first conversations and records in one transaction, and return how many that were; 0 if the
        database refused something among them. If there is only one, it is dropped then."""
        self._in_flight = batch = self._queue.take(most)
        try:
            async with self._database.writing(patient=True) as connection:
                await write_conversations(connection, list(batch.seen.values()))
                await write_usage(connection, list(batch.usage.values()))
            self._in_flight = Batch()
        except DATABASE_ERRORS as error:
            if is_away(error):
                raise
            if len(batch) > 1:
                return 0
            self._in_flight = Batch()
            self.dropped += batch.requests
            self.dropped_records += len(batch.usage)
            if (times := self._throttle.count("drop")) is not None:
                log.warning("record not stored", reason=describe(error), times=times)
        finally:
            # What is still in flight comes before what was recorded meanwhile.
            self._in_flight.add(self._queue)
            self._queue, self._in_flight = self._in_flight, Batch()
        return len(batch)

    async def _run(self, ready: asyncio.Event) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(TRIAL_SECONDS):  # Python 3.11's wait_for may lose a cancellation.
                    await self._recorded.wait()
            await ready.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._recorded.clear()
            try:
                self.catch_up()
                is_due = self.requests or self.records or self.histories.due()
                await self._guard.bounded(self.flush if is_due else self._try_out, FLUSH_SECONDS)
            except StoreUnavailable as error:
                if not isinstance(error, Contended):
                    self.reason = error.reason
                if (times := self._throttle.count("flush")) is not None:
                    reason, waiting = error.reason, self.requests
                    log.warning("database not written", reason=reason, waiting=waiting, remedy=REMEDY, times=times)
            except Exception:  # Whatever it was, what waits must not wait for ever.
                if (times := self._throttle.count("flush")) is not None:
                    log.exception("database not written", times=times)
            else:
                self.reason = None
                if (ended := self._throttle.end("flush")) is not None:
                    log.info("database written again", times=ended[0], seconds=ended[1])
                if self.histories.due():
                    self._recorded.set()
                continue
            self._recorded.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _try_out(self) -> None:
        """Try a statement: a disk may be full, or a file read-only, long before there is something to store."""
        if (trial := _TRIALS.get(self._database.address.kind)) is not None:
            async with self._writing, self._database.writing(patient=True) as connection:
                await connection.execute(trial)
