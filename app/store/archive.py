"""The archive: what clients sent, on its way to be kept.

A request resends its whole history. What of it is new follows from the places of its messages, each of which is a
digest of all up to it: a history is known as far as its deepest place that was seen before. So a request costs its new
messages and nothing else, and a branch keeps its own from where it leaves. What is known is only a hint: the database
has the last word, and takes no message without the one it follows (`message_rows`). Then the hint is dropped, and the
next request brings all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.core.history.messages import Message
from app.core.history.secrets import Scrub
from app.runtime.caches import Cache, Caches
from app.runtime.erased import Erased
from app.runtime.repeats import Repeats
from app.store.message_rows import MessageRow, message_id

log = structlog.get_logger("steno.store")

QUEUE_BYTES = 64 << 20
"""Bytes of messages that wait. They are held a second time as text, and a third where they are in no reader's
memory."""
PLACE_BYTES = 250
"""Size in memory of a place by which a history is known, of which there are two for each request."""
BATCH_MESSAGES = 200
BATCH_BYTES = 1 << 20
FLUSH_BATCHES = 4
"""Batches written in one flush, so that others have their turn: after an outage it may take a minute until all is
stored."""


class Strand(Struct, frozen=True):
    """The messages of a request in order, or the instructions that lead it, which have a place of their own."""

    tenant: str
    conversation_id: str
    request_id: str
    format: str
    messages: Sequence[Message]
    alone: Callable[[bytes], bytes]
    """A raw message as JSON that stands for itself."""
    places: Sequence[bytes]
    """`places[i]` stands for the first i messages: one more than there are messages."""
    root: bytes
    """The place before the first message of all."""
    tokens: Sequence[int]
    """Estimated tokens of each message."""
    ratio: float
    """Tokens the provider counts for one that is estimated."""
    first: int
    """Position of the first message."""
    marks: Sequence[bytes]
    """The places at which the next request's history may go on."""


@dataclass(slots=True, eq=False)
class Part:
    """Part of a strand that waits to be stored."""

    strand: Strand
    next: int
    """Index of the message that is stored next."""
    size: int
    """Bytes of the messages that waited at first."""

    @property
    def left(self) -> int:
        return len(self.strand.messages) - self.next


Write = Callable[[Sequence[MessageRow]], Awaitable[Sequence[MessageRow]]]
"""Stores rows and returns those that it could not store."""


class Archive:
    """A bounded queue of messages that are not stored yet."""

    def __init__(self, scrub: Scrub, caches: Caches | None = None) -> None:
        self._scrub = scrub
        self._parts: deque[Part] = deque()
        self._bytes = 0
        self._known: Cache[tuple[str, bytes], str] = (caches or Caches()).cache("archive", lambda *_: PLACE_BYTES)
        """Tenant by conversation and place, for each history that was recorded."""
        self._repeats = Repeats()
        self.dropped = 0
        """Messages that were left out: the queue was full, or the database did not take them. What follows them brings
        them once more."""

    @property
    def waiting(self) -> int:
        """Strands of which something is not stored."""
        return len(self._parts)

    @property
    def messages(self) -> int:
        """Messages that are not stored."""
        return sum(part.left for part in self._parts)

    def record(self, strand: Strand) -> None:
        """Queue what is new of a strand; it is dropped and counted where the queue is full."""
        start = self._known_to(strand)
        if start == len(strand.messages):
            return
        size = sum(len(message.raw) for message in strand.messages[start:])
        if self._parts and self._bytes + size > QUEUE_BYTES:
            self._drop(len(strand.messages) - start, "the queue is full")
            return
        self._parts.append(Part(_from(strand, start), 0, size))
        self._bytes += size
        for place in strand.marks:
            self._known.keep((strand.conversation_id, place), strand.tenant)

    async def flush(self, write: Write, strands: int) -> None:
        """Store some batches of the first so many strands. Whatever `write` raises it raises, too, and keeps the rest.
        Nobody else may flush meanwhile."""
        for _ in range(FLUSH_BATCHES):
            if not strands:
                return
            batch = self._next_batch(strands)
            rows = await asyncio.to_thread(_rows_of, batch, self._scrub)
            left = await write(rows)
            for part, number in batch:
                part.next = number + 1
            while self._parts and not self._parts[0].left:
                self._bytes -= self._parts.popleft().size
                strands -= 1
            if left:
                self._forget({row.conversation_id for row in left})
                self._drop(len(left), "the database did not take them")
            elif not self._parts and (ended := self._repeats.over("dropped")) is not None:
                log.info("messages archived again", times=ended[0], seconds=ended[1])

    def erase(self, erased: Erased) -> None:
        """Drop what waits of what was erased, and what is known of it. Not in a flush."""
        kept = [part for part in self._parts if not erased.covers(part.strand.tenant, part.strand.conversation_id)]
        self._parts, self._bytes = deque(kept), sum(part.size for part in kept)
        self._known.drop(lambda known, owner: erased.covers(owner, known[0]))

    def _known_to(self, strand: Strand) -> int:
        """Number of the strand's messages that were recorded before."""
        known, conversation_id, places = self._known, strand.conversation_id, strand.places
        for length in range(len(strand.messages), 0, -1):
            if (conversation_id, places[length]) in known:
                return length
        return 0

    def _next_batch(self, strands: int) -> list[tuple[Part, int]]:
        batch: list[tuple[Part, int]] = []
        size = 0
        for part in islice(self._parts, strands):
            for number in range(part.next, len(part.strand.messages)):
                size += len(part.strand.messages[number].raw)
                if batch and (size > BATCH_BYTES or len(batch) == BATCH_MESSAGES):
                    return batch
                batch.append((part, number))
        return batch

    def _forget(self, conversations: set[str]) -> None:
        self._known.drop(lambda known, _: known[0] in conversations)

    def _drop(self, number: int, reason: str) -> None:
        self.dropped += number
        if (times := self._repeats.again("dropped")) is not None:
            log.warning("messages not archived", reason=reason, dropped=self.dropped, times=times)


def _from(strand: Strand, start: int) -> Strand:
    """The messages from `start` on, without holding the rest."""
    return replace(
        strand,
        messages=strand.messages[start:],
        places=strand.places[start:],
        tokens=strand.tokens[start:],
        first=strand.first + start,
    )


def _rows_of(batch: Sequence[tuple[Part, int]], scrub: Scrub) -> list[MessageRow]:
    """Rows of a batch. Runs in a worker thread: removing secrets takes its time."""
    return [_row(part.strand, number, scrub) for part, number in batch]


def _row(strand: Strand, number: int, scrub: Scrub) -> MessageRow:
    message, name = strand.messages[number], strand.conversation_id
    before, place = strand.places[number : number + 2]
    return MessageRow(
        tenant=strand.tenant,
        id=message_id(name, place),
        conversation_id=name,
        previous_id=None if before == strand.root else message_id(name, before),
        position=strand.first + number,
        kind=message.kind.name.lower(),
        role=message.role,
        format=strand.format,
        sent=scrub(strand.alone(message.raw).decode("utf-8", "replace")),
        tokens=round(strand.ratio * strand.tokens[number]),
        request_id=strand.request_id,
    )
