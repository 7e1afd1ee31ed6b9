"""The write-behind queue: Steno stores the rows of a request after its answer, so that no request waits for a write.

Steno writes conversations and usage records every 0.2 s, and each conversation's history at most every five seconds.
Requests to the same process see the queued rows. Steno flushes the queues before the REST API reads and before Steno
stops. A killed process loses its queued rows: rows of the last 0.2 s, histories of the last five seconds, and during a
database outage all rows since the outage began. Summaries, masks and pins are never queued. If the connection ends
before a commit is acknowledged, Steno writes the rows again, and their requests may count twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from time import monotonic
from typing import Any, TypeVar, cast

import structlog
from msgspec.structs import replace

from app.conversation.identity import Head
from app.runtime.caches import Erased, LogThrottle
from app.store.conversations import ConversationSeen, write_conversations
from app.store.engine import DATABASE_ERRORS, Contended, Database, Guard, StoreUnavailable, describe, is_away
from app.store.histories import LatestHistory, write_histories
from app.store.usage import UsageRecord, write_usage

log = structlog.get_logger("steno.store")

SOON_SECONDS = 0.005
"""Delay between an answer and its recording, so that the event loop first handles the client's next request."""
PAUSE_SECONDS = 0.2
RETRY_SECONDS = 1.0
FLUSH_SECONDS = 10.0
MOST_ERASED = 10_000
"""Maximum number of erasures that Steno remembers. If more happen during a request, Steno cannot know whether the
request's conversation was erased, and does not store the request's rows."""
QUEUE_CONVERSATIONS = 10_000
QUEUE_RECORDS = 20_000
"""Maximum number of queued usage records. A record has about 1 kB."""
QUEUE_BYTES = 64 << 20
"""Maximum bytes of all queued histories. An empty queue also accepts one larger history."""
BATCH = 500
"""Maximum number of conversations and usage records in one transaction."""
BATCH_HISTORIES = 50
BATCH_BYTES = 1 << 20
"""Maximum bytes of histories in one transaction. A larger history gets its own transaction. Transactions are short
because SQLite has one writer at a time."""
HISTORY_SECONDS = 5.0
"""Shortest time between two writes of a conversation's history."""
REMEDY = (
    "See that the database runs, that its disk has room, and that Steno may write to it: no read-only volume or file, "
    "no standby. Meanwhile stored summaries are used and no new ones are made; what waits is stored once it can be."
)

T = TypeVar("T")
Key = tuple[str, ...]
"""Tenant, conversation and, for a usage record, its id."""


class Queue(dict[Key, T]):
    """Rows that are not stored yet. The most recently changed row is the last."""

    dropped = 0
    """Number of rows that the full queue or the database refused. A row counts once for each of its requests."""

    @property
    def number(self) -> int:
        """Number of rows in the queue, counted like `dropped`."""
        return sum(map(_requests_of, self.values()))

    def entries(self) -> list[tuple[Queue[T], Key, T]]:
        return [(self, key, row) for key, row in self.items()]

    def remove(self, key: Key, row: T) -> None:
        """Remove a row that the database stored or refused. Requests merged into the row meanwhile stay queued."""
        later = self.get(key)
        if later is row:
            del self[key]
        elif isinstance(later, ConversationSeen):
            self[key] = cast("T", replace(later, requests=later.requests - _requests_of(row)))


def _requests_of(row: object) -> int:
    return row.requests if isinstance(row, ConversationSeen) else 1


class WriteBehind:
    """Queues of conversations, usage records and histories. A row stays until the database stores or refuses it."""

    def __init__(self, database: Database, guard: Guard, largest_history: int) -> None:
        """Histories of more than `largest_history` bytes are not stored."""
        self._database = database
        self._guard = guard
        self._largest_history = largest_history
        self.conversations: Queue[ConversationSeen] = Queue()
        self.usage: Queue[UsageRecord] = Queue()
        self.histories: Queue[LatestHistory] = Queue()
        self._written: dict[Key, float] = {}
        """Monotonic times of the latest writes of histories. Entries older than `HISTORY_SECONDS` are removed."""
        self.epoch = 0
        """Number of erasures in this process. A request passes the number at its start to `is_erased`."""
        self._erased: deque[Erased] = deque(maxlen=MOST_ERASED)
        """The latest erasures, the newest last."""
        self._writing = asyncio.Lock()
        self._recorded = asyncio.Event()
        self._soon: list[Callable[[], None]] = []
        self._throttle = LogThrottle()
        self._task: asyncio.Task[None] | None = None
        self.reason: str | None = None
        """Why the last flush failed; None if it succeeded. A flush that did not get a lock in time does not count."""

    def soon(self, work: Callable[[], None]) -> None:
        """Call `work`, which records a request, after `SOON_SECONDS`, or earlier when a method reads the queues."""
        self._soon.append(work)
        if len(self._soon) == 1:
            asyncio.get_running_loop().call_later(SOON_SECONDS, self.catch_up)

    def catch_up(self) -> None:
        """Run the functions that `soon` delayed."""
        waiting, self._soon = self._soon, []
        for work in waiting:
            try:
                work()
            except Exception:
                log.exception("nothing was recorded of a request")

    # If the queue is full, these methods drop the new row and count it in `Queue.dropped`.

    def record(self, seen: ConversationSeen) -> None:
        """Queue the conversation's state after a request."""
        key, queue = (seen.tenant, seen.conversation_id), self.conversations
        earlier = queue.pop(key, None)
        if earlier is None and len(queue) >= QUEUE_CONVERSATIONS:
            queue.dropped += 1
            return
        queue[key] = earlier.with_later(seen) if earlier else seen
        self._recorded.set()

    def record_usage(self, record: UsageRecord) -> None:
        if len(self.usage) >= QUEUE_RECORDS:
            self.usage.dropped += 1
            return
        self.usage[record.tenant, record.conversation_id, record.id] = record
        self._recorded.set()

    def record_history(self, history: LatestHistory) -> None:
        """Queue a history. Remove the conversation's earlier history, even if the new history is dropped."""
        self.histories.pop(history.key, None)
        if not history.messages:
            return
        waiting_bytes = sum(each.size for each in self.histories.values())
        is_too_large = history.size > self._largest_history
        if is_too_large or (waiting_bytes and waiting_bytes + history.size > QUEUE_BYTES):
            self.histories.dropped += 1
            self._log_dropped_history("it is too large" if is_too_large else "the queue is full")
            return
        self.histories[history.key] = history
        self._recorded.set()

    def _log_dropped_history(self, reason: str) -> None:
        if (times := self._throttle.count("dropped history")) is not None:
            log.warning("history not stored", reason=reason, dropped=self.histories.dropped, times=times)

    @property
    def waiting(self) -> bool:
        """Whether any queue has rows that are not stored yet."""
        self.catch_up()
        return bool(self.conversations or self.usage or self.histories)

    def heads(self, tenant: str, digests: Iterable[bytes]) -> list[Head]:
        """Return the queued heads with these digests. If a digest has several heads, the newest comes last."""
        self.catch_up()
        wanted = set(digests)
        return [
            Head(digest, seen.conversation_id, turn, seen.turns)
            for seen in self.conversations.values()
            if seen.tenant == tenant
            for digest, turn in seen.heads
            if digest in wanted
        ]

    def start(self, ready: asyncio.Event) -> None:
        """Start a background task that flushes as soon as the database is ready."""
        self._task = asyncio.ensure_future(self._run(ready))

    async def stop(self) -> None:
        """End the background task. `Guard` does not cancel the running statement, but abandons it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def flush(self, conversations: Sequence[Key] | None = None) -> None:
        """Write the queued conversations and usage records, and one batch of histories: those of `conversations`, or by
        default the due histories. Raise if the database cannot be reached. Rows that are not written stay queued."""
        self.catch_up()
        # Choose the histories before the conversations are written: a history needs its conversation's row. Compress
        # them before the lock, so that no other task waits for the compression.
        if batch := self._next_histories(self.due_histories() if conversations is None else conversations):
            await asyncio.to_thread(lambda: [history.row for history in batch])
        async with self._writing:
            records: list[tuple[Queue[Any], Key, Any]] = [*self.conversations.entries(), *self.usage.entries()]
            for start in range(0, len(records), BATCH):
                await self._store(records[start : start + BATCH])
            # Skip the histories that a later request has replaced meanwhile.
            still, dropped = [entry for entry in self.histories.entries() if entry[2] in batch], self.histories.dropped
            await self._store(still)
            if still and self.histories.dropped == dropped and (ended := self._throttle.end("dropped history")):
                log.info("histories stored again", times=ended[0], seconds=ended[1])
            self._written |= {key: monotonic() for _, key, _ in still}

    async def flush_everything(self) -> None:
        """Write all queued rows, like `flush`."""
        await self.flush([*self.histories])
        if self.histories:
            await self.flush_everything()

    async def erase(self, what: Erased, erase: Callable[[], Awaitable[bool]]) -> bool:
        """Call `erase` while no flush runs, and remove the queued rows of `what`. Return whether any row was found."""
        async with self._writing:
            erased = await erase()
            self.catch_up()
            queues: tuple[Queue[Any], ...] = self.conversations, self.usage, self.histories
            waited = [(queue, key) for queue in queues for key in queue if what.covers(*key[:2])]
            for queue, key in waited:
                del queue[key]
            self.epoch += 1
            self._erased.append(what)
            return erased or bool(waited)

    def is_erased(self, tenant: str, conversation_id: str, epoch: int) -> bool:
        """True if this process erased the conversation after the epoch, or may have forgotten such an erasure."""
        later = self.epoch - epoch
        if not later:
            return False
        erased = islice(reversed(self._erased), later)
        return later > len(self._erased) or any(what.covers(tenant, conversation_id) for what in erased)

    def due_histories(self) -> list[Key]:
        before = monotonic() - HISTORY_SECONDS
        self._written = {key: at for key, at in self._written.items() if at > before}
        return [key for key in self.histories if key not in self._written]

    def _next_histories(self, conversations: Sequence[Key]) -> list[LatestHistory]:
        batch: list[LatestHistory] = []
        room = BATCH_BYTES
        for history in [self.histories[key] for key in conversations if key in self.histories][:BATCH_HISTORIES]:
            room -= history.size
            if batch and room < 0:
                break
            batch.append(history)
        return batch

    async def _store(self, batch: Sequence[tuple[Queue[Any], Key, Any]]) -> None:
        """Store these rows in one transaction. If the database refuses it, store each row in a transaction of its own,
        and drop refused rows. If the database is unreachable, raise and keep the rows."""
        if not batch:
            return
        try:
            async with self._database.writing(patient=True) as connection:
                await write_conversations(connection, [row for queue, _, row in batch if queue is self.conversations])
                await write_usage(connection, [row for queue, _, row in batch if queue is self.usage])
                await write_histories(connection, [row for queue, _, row in batch if queue is self.histories])
        except DATABASE_ERRORS as error:
            if is_away(error):
                raise
            if len(batch) > 1:
                for entry in batch:
                    await self._store([entry])
                return
            [(queue, _, row)] = batch
            queue.dropped += _requests_of(row)
            if queue is self.histories:
                self._log_dropped_history("the database refused it")
            elif (times := self._throttle.count("dropped record")) is not None:
                log.warning("record not stored", reason=describe(error), times=times)
        for queue, key, row in batch:
            queue.remove(key, row)

    async def _run(self, ready: asyncio.Event) -> None:
        await ready.wait()
        while True:
            with suppress(TimeoutError):
                # Python 3.11's wait_for may lose a cancellation.
                async with asyncio.timeout(HISTORY_SECONDS):
                    await self._recorded.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._recorded.clear()
            try:
                await self._guard.bounded(self.flush, FLUSH_SECONDS)
            except StoreUnavailable as error:
                if not isinstance(error, Contended):
                    self.reason = error.reason
                if (times := self._throttle.count("flush")) is not None:
                    reason, waiting = error.reason, self.conversations.number
                    log.warning("database not written", reason=reason, waiting=waiting, remedy=REMEDY, times=times)
            except Exception:  # The task must go on after any error, or no row is stored.
                if (times := self._throttle.count("flush")) is not None:
                    log.exception("database not written", times=times)
            else:
                self.reason = None
                if (ended := self._throttle.end("flush")) is not None:
                    log.info("database written again", times=ended[0], seconds=ended[1])
                if self.due_histories():
                    self._recorded.set()
                continue
            self._recorded.set()
            await asyncio.sleep(RETRY_SECONDS)
