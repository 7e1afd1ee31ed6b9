"""Histories: the messages of each conversation's latest request, as they were sent, in one compressed row.

A request resends its whole history, so the latest one is all that is kept, and an earlier branch goes when another one
follows. It is written behind the answer, at most every five seconds a conversation. A replica writes it only while the
conversation's row says that no later request came, to whatever replica: an older history never takes a newer one's
place.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.authored_text import title_of
from app.conversation.identity import DIGEST_BYTES
from app.conversation.messages import Message
from app.conversation.secrets import without_secrets
from app.runtime.bounded import LogThrottle
from app.runtime.caches import Erased
from app.store.engine import DATABASE_ERRORS, Database, is_away
from app.store.tables import conversations, histories, insert_into, is_among, now_ms, owned

log = structlog.get_logger("steno.store")

EVERY_SECONDS = 5.0
"""Shortest time between two writes of a conversation's history."""
QUEUE_BYTES = 64 << 20
"""Bytes of messages that wait."""
BATCH_HISTORIES = 50
BATCH_BYTES = 1 << 20
"""Histories, and bytes of their messages, that are written in one transaction; one is in any case. SQLite has one
writer, for which the requests of others wait."""
ZLIB_LEVEL = 3

Key = tuple[str, str]
"""A tenant, and a conversation of its own."""


class LatestHistory(Struct, frozen=True):
    """The history of a request, on its way to be stored."""

    tenant: str
    conversation_id: str
    format: str
    leading: Sequence[Message]
    """Leading instructions; `messages` are those after them."""
    messages: Sequence[Message]
    alone: Callable[[bytes], bytes]
    """Function from a raw message to JSON that stands for itself."""
    digests: Sequence[bytes]
    """Digest of the history up to each of `messages`, inclusive."""
    tokens: Sequence[int]
    """Estimated tokens of each message, those of `leading` first."""

    @property
    def key(self) -> Key:
        return self.tenant, self.conversation_id

    @property
    def size(self) -> int:
        return sum(len(message.raw) for message in (*self.leading, *self.messages))


class StoredMessage(Struct, frozen=True):
    index: int
    """After the leading instructions, from 0; those count from -1 back."""
    format: str
    sent: str
    """JSON of the message, letter by letter, without secrets."""
    tokens: int


class StoredHistory(Struct, frozen=True):
    format: str
    messages: Sequence[StoredMessage]
    """All of them, leading instructions first."""
    head: bytes | None
    """Digest of the whole history; None where the release before stored it and its digest is not known."""
    digests: frozenset[bytes]
    """Digest of the history up to each message after the leading instructions; empty where the release before stored
    it."""
    is_latest: bool
    """Whether no later request of the conversation is known."""

    def between(self, first: int, last: int) -> list[StoredMessage]:
        """Messages from one index to another, both inclusive."""
        return [message for message in self.messages if first <= message.index <= last]


class _Sizes(Struct):
    """First line of what is compressed, as JSON. The messages follow it, one behind the other."""

    tokens: list[int]
    bytes: list[int]


class HistoryQueue:
    """Histories that wait to be stored: the latest one of each conversation."""

    def __init__(self, largest: int) -> None:
        """`largest`: bytes of a history that is kept."""
        self._largest = largest
        self._waiting: dict[Key, LatestHistory] = {}
        self._bytes = 0
        self._written: dict[Key, float] = {}
        """Time of each conversation's last write, by the clock, for `EVERY_SECONDS`."""
        self._throttle = LogThrottle()
        self.dropped = 0
        """Histories that were left out: too large, or the queue was full, or the database refused them."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def record(self, history: LatestHistory) -> None:
        """Queue a history in place of an earlier one of its conversation; it is dropped and counted where it is too
        large or the queue is full."""
        self._take_out(history.key)
        size = history.size
        if not history.messages:
            return
        if size > self._largest or (self._waiting and self._bytes + size > QUEUE_BYTES):
            self._drop(1, "it is too large" if size > self._largest else "the queue is full")
            return
        self._waiting[history.key] = history
        self._bytes += size

    def hasten(self, tenant: str, conversation_id: str) -> None:
        """Have a conversation's history written by the next flush, however short the time since the last one."""
        key = tenant, conversation_id
        self._written.pop(key, None)
        if (history := self._waiting.pop(key, None)) is not None:
            self._waiting = {key: history, **self._waiting}

    def next_batch(self, *, everything: bool = False) -> list[LatestHistory]:
        """Some of those that are due, or of all."""
        batch: list[LatestHistory] = []
        room = BATCH_BYTES
        for key in list(self._waiting) if everything else self.due():
            history = self._waiting[key]
            room -= history.size
            if batch and (room < 0 or len(batch) == BATCH_HISTORIES):
                break
            batch.append(history)
        return batch

    async def write(
        self, database: Database, batch: Sequence[LatestHistory], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store a batch, as these rows, in one transaction, and one by one if the database refuses something of it.
        Raises and keeps them if the database is away. No other write may be in flight."""
        refused = 0
        if await _is_refused(database, rows):
            refused = sum([await _is_refused(database, [row]) for row in rows])
        if refused:
            self._drop(refused, "the database refused it")
        elif (ended := self._throttle.end("dropped")) is not None:
            log.info("histories stored again", times=ended[0], seconds=ended[1])
        now = monotonic()
        for history in batch:
            if self._waiting.get(history.key) is history:
                self._take_out(history.key)
            self._written[history.key] = now

    def erase(self, erased: Erased) -> None:
        """Drop what waits of what was erased. Not in a flush."""
        for key in [key for key in self._waiting if erased.covers(*key)]:
            self._take_out(key)

    def due(self) -> list[Key]:
        before = monotonic() - EVERY_SECONDS
        self._written = {key: at for key, at in self._written.items() if at > before}
        return [key for key in self._waiting if key not in self._written]

    def _take_out(self, key: Key) -> None:
        if (history := self._waiting.pop(key, None)) is not None:
            self._bytes -= history.size

    def _drop(self, number: int, reason: str) -> None:
        self.dropped += number
        if (times := self._throttle.count("dropped")) is not None:
            log.warning("history not stored", reason=reason, dropped=self.dropped, times=times)


async def _is_refused(database: Database, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Store rows; True if the database refused one of them."""
    try:
        async with database.writing(patient=True) as connection:
            await write_histories(connection, rows)
    except DATABASE_ERRORS as error:
        if is_away(error):
            raise
        return True
    return False


def rows_of_histories(histories: Sequence[LatestHistory]) -> list[dict[str, Any]]:
    """Runs in a worker thread: removing secrets and compressing take their time."""
    return [_row(history) for history in histories]


def _row(history: LatestHistory) -> dict[str, Any]:
    sent = (history.alone(message.raw).decode("utf-8", "replace") for message in (*history.leading, *history.messages))
    kept = [without_secrets(each).encode("utf-8", "replace") for each in sent]
    sizes = msgspec.json.encode(_Sizes(list(history.tokens), list(map(len, kept))))
    return {
        "tenant": history.tenant,
        "conversation_id": history.conversation_id,
        "format": history.format,
        "instructions": len(history.leading),
        "title": without_secrets(title_of(history.messages)),
        "head": history.digests[-1],
        "digests": b"".join(history.digests),
        "content": zlib.compress(b"\n".join((sizes, b"".join(kept))), ZLIB_LEVEL),
    }


async def write_histories(connection: AsyncConnection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Store histories, but for those whose conversation is gone or has had a later request: its row says so, and stays
    locked until the transaction ends. Needs a transaction."""
    for row in sorted(rows, key=lambda row: (row["tenant"], row["conversation_id"])):
        own = owned(conversations, row["tenant"], id=row["conversation_id"], head=row["head"])
        if (await connection.execute(select(conversations.c.id).where(own).with_for_update())).first() is None:
            continue
        added = insert_into(connection, histories).values(**row, updated_at=now_ms())
        changed = {column.name: added.excluded[column.name] for column in histories.c if not column.primary_key}
        await connection.execute(added.on_conflict_do_update(index_elements=list(histories.primary_key), set_=changed))


async def read_history(connection: AsyncConnection, tenant: str, conversation_id: str) -> StoredHistory | None:
    """The history of the conversation's latest request; None where none is kept."""
    own = owned(histories, tenant, conversation_id=conversation_id)
    joined = histories.join(
        conversations,
        (conversations.c.tenant == histories.c.tenant) & (conversations.c.id == histories.c.conversation_id),
    )
    is_latest = (conversations.c.head == histories.c.head).label("is_latest")
    row = (await connection.execute(select(histories, is_latest).select_from(joined).where(own))).first()
    return None if row is None else await asyncio.to_thread(_stored, row)


async def find_titles(connection: AsyncConnection, tenant: str, conversation_ids: Sequence[str]) -> dict[str, str]:
    """Titles by conversation; those are missing of which no words of the user are kept."""
    among = owned(histories, tenant), is_among(connection, histories.c.conversation_id, conversation_ids)
    rows = await connection.execute(select(histories.c.conversation_id, histories.c.title).where(*among))
    return {row.conversation_id: row.title for row in rows if row.title}


def _stored(row: Row[Any]) -> StoredHistory:
    first_line, _, content = zlib.decompress(row.content).partition(b"\n")
    sizes = msgspec.json.decode(first_line, type=_Sizes)
    messages, start = list[StoredMessage](), 0
    for index, (tokens, size) in enumerate(zip(sizes.tokens, sizes.bytes, strict=True), -row.instructions):
        messages.append(StoredMessage(index, row.format, content[start : start + size].decode(), tokens))
        start += size
    ends = range(0, len(row.digests), DIGEST_BYTES)
    digests = frozenset(row.digests[start : start + DIGEST_BYTES] for start in ends)
    return StoredHistory(row.format, messages, row.head, digests, bool(row.is_latest))
