"""What a request asks on its way: never longer than its timeout, and what it shows is stored after it was answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.core.history.recognition import Head
from app.core.view.chunks import FirstChunk, SummaryChunk
from app.store import chunks, conversation_rows, masks, pins, prints
from app.store.archive import Strand
from app.store.calls import Calls
from app.store.conversation_rows import ConversationSeen
from app.store.usage_records import UsageRecord

FLUSH_SECONDS = 5.0


class RequestCalls(Calls):
    """What is asked raises StoreUnavailable; the request then goes on without the store."""

    async def chunks_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """The series' chunks that begin and end in the chain."""
        return await self._guarded(tenant, self._read(chunks.chunks_in, tenant, series, chain))

    async def chunks_named(self, tenant: str, ids: Sequence[str]) -> list[SummaryChunk]:
        """Those of the tenant's that are there, in the order of their ids."""
        return await self._guarded(tenant, self._read(chunks.chunks_named, tenant, ids))

    async def masks_in(self, tenant: str, settings: str, chain: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The mask boundaries for these settings that lie in the chain, each with where it starts to count."""
        return await self._guarded(tenant, self._read(masks.masks_in, tenant, settings, chain))

    async def keep_mask(self, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str) -> None:
        """A new boundary, known to every replica from here on."""
        await self._guarded(tenant, self._write(masks.keep_mask, tenant, settings, digest, start, conversation_id))

    async def prints_at(self, tenant: str, places: Sequence[bytes]) -> dict[bytes, frozenset[bytes]]:
        """What was sent when a history had come to one of these places, as far as that was no copy of it."""
        return await self._guarded(tenant, self._read(prints.prints_at, tenant, places))

    async def keep_print(self, tenant: str, place: bytes, print_: bytes, conversation_id: str) -> None:
        """Known to every replica from here on."""
        await self._guarded(tenant, self._write(prints.keep_print, tenant, place, print_, conversation_id))

    async def pins_of(
        self, tenant: str, conversation_id: str, chain: Sequence[bytes], *, bind: bool = True
    ) -> tuple[int, ...]:
        """The positions of the conversation's pinned messages in this chain, ascending.

        Pins that no request has shown yet are bound to it; a dry run only looks (`bind=False`).
        """

        async def work() -> tuple[int, ...]:
            found = await self._read(pins.find_pins, tenant, conversation_id)()
            fresh = pins.to_bind(found, chain)
            if fresh and bind:
                found, fresh = await self._write(pins.bind_pins, tenant, conversation_id, fresh)(), {}
            return tuple(pin.position for pin in found if pin.position in fresh or pin.holds_in(chain))

        return await self._guarded(tenant, work)

    async def recent_first_chunks(
        self, tenant: str, series: str, messages: Sequence[bytes], within_seconds: float
    ) -> list[FirstChunk]:
        """Where histories that end like parts of this one were summarised recently, under this chain or another."""
        within_ms = round(within_seconds * 1000)
        return await self._guarded(tenant, self._read(chunks.recent_first_chunks, tenant, series, messages, within_ms))

    async def heads(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        """The digests that some conversation was seen with, each with the newest such conversation."""
        # Taken before the database is read: what is flushed in between is then seen twice rather than not at all.
        unwritten = self._writes.heads(tenant, digests)
        return await self._guarded(tenant, self._read(conversation_rows.find_heads, tenant, digests, unwritten))

    async def recovers(self) -> bool:
        """Wait for a database that does not answer; False once it has been away for some ten seconds."""
        return self._readiness.reason is None and await self._guard.recovers()

    def soon(self, work: Callable[[], None]) -> None:
        """What records something: done in a moment, and before anything that is recorded is read."""
        self._writes.soon(work)

    def catch_up(self) -> None:
        """Does what was to be done soon, for whoever needs the result outside the store."""
        self._writes.catch_up()

    def record(self, seen: ConversationSeen) -> None:
        """Never waits: stored within about 0.2 s, visible in this process at once."""
        self._writes.record(seen)

    def record_usage(self, record: UsageRecord) -> None:
        """Never waits, as `record`."""
        self._writes.record_usage(record)

    def record_messages(self, strand: Strand) -> None:
        """Never waits, as `record`. After `record`: messages are kept with their conversation."""
        self._writes.record_messages(strand)

    async def flush(self) -> None:
        """Store what was recorded, within five seconds. Raises StoreUnavailable; the rest then still waits."""
        await self._bounded(self._writes.flush_all, FLUSH_SECONDS)

    @property
    def waiting(self) -> int:
        """Recorded requests that are not stored yet."""
        return self._writes.requests

    @property
    def waiting_records(self) -> int:
        """Usage records that are not stored yet."""
        return self._writes.records

    @property
    def waiting_messages(self) -> int:
        """Messages that are not archived yet."""
        return self._writes.messages

    @property
    def dropped(self) -> int:
        """Recorded requests that will not be stored."""
        return self._writes.dropped

    @property
    def dropped_records(self) -> int:
        """Usage records that will not be stored."""
        return self._writes.dropped_records

    @property
    def dropped_messages(self) -> int:
        """Messages that were not archived. What follows them brings them once more."""
        return self._writes.dropped_messages
