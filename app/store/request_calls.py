"""Calls of a request: what it asks on its way, what is recorded after it was answered, and what its answer taught."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.core.history.recognition import Head
from app.core.tokens.calibration import Calibration, Sample
from app.core.view.chunks import FirstChunk, SummaryChunk
from app.store import calibration_rows, chunks, conversation_rows, learned_windows, pins, places
from app.store.archive import Strand
from app.store.calibration_rows import CalibrationKey, StoredCalibration
from app.store.calls import TASK_SECONDS, Calls
from app.store.conversation_rows import ConversationSeen
from app.store.learned_windows import LearnedWindow
from app.store.usage_records import UsageRecord

FLUSH_SECONDS = 5.0
MOST_CALIBRATIONS = 10_000


class RequestCalls(Calls):
    """Calls that raise StoreUnavailable; the request then goes on without the store."""

    # On a request's path: never longer than its timeout

    async def chunks_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """The series' chunks that begin and end in the chain."""
        return await self._guarded(tenant, self._read(chunks.chunks_in, tenant, series, chain))

    async def chunks_named(self, tenant: str, ids: Sequence[str]) -> list[SummaryChunk]:
        """The tenant's chunks with these ids, in their order; missing ones are left out."""
        return await self._guarded(tenant, self._read(chunks.chunks_named, tenant, ids))

    async def masks_in(self, tenant: str, settings: str, chain: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """The mask boundaries for these settings that lie in the chain, each with where it starts to count."""
        return await self._guarded(tenant, self._read(places.masks_in, tenant, settings, chain))

    async def keep_mask(self, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str) -> None:
        """Store a new boundary, known to every replica from here on."""
        await self._guarded(tenant, self._write(places.keep_mask, tenant, settings, digest, start, conversation_id))

    async def prints_at(self, tenant: str, at: Sequence[bytes]) -> dict[bytes, frozenset[bytes]]:
        """Prints by place: what was sent when a history had come to it, as far as that was no copy of it."""
        return await self._guarded(tenant, self._read(places.prints_at, tenant, at))

    async def keep_print(self, tenant: str, place: bytes, print_: bytes, conversation_id: str) -> None:
        """Store a print, known to every replica from here on."""
        await self._guarded(tenant, self._write(places.keep_print, tenant, place, print_, conversation_id))

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
        """Chunks made recently of histories that end like parts of this one, under this chain or another."""
        within_ms = round(within_seconds * 1000)
        return await self._guarded(tenant, self._read(chunks.recent_first_chunks, tenant, series, messages, within_ms))

    async def heads(self, tenant: str, digests: Sequence[bytes]) -> list[Head]:
        """The digests that some conversation was seen with, each with the newest such conversation."""
        # Taken before the database is read: what is flushed in between is then seen twice rather than not at all.
        unwritten = self.writes.heads(tenant, digests)
        return await self._guarded(tenant, self._read(conversation_rows.find_heads, tenant, digests, unwritten))

    async def recovers(self) -> bool:
        """Wait for a database that does not answer; False once it has been away for some ten seconds."""
        return self._readiness.reason is None and await self._guard.recovers()

    # Recorded after the answer: none of these waits

    def soon(self, work: Callable[[], None]) -> None:
        """Queue a recording function; it runs within 5 ms, or before the next read."""
        self.writes.soon(work)

    def catch_up(self) -> None:
        """Run the queued recording functions now, for whoever needs their results outside the store."""
        self.writes.catch_up()

    def record(self, seen: ConversationSeen) -> None:
        """Record what a request showed: stored within about 0.2 s, visible in this process at once."""
        self.writes.record(seen)

    def record_usage(self, record: UsageRecord) -> None:
        """Record a call to a provider, as `record` does."""
        self.writes.record_usage(record)

    def record_messages(self, strand: Strand) -> None:
        """Record messages, as `record` does and after it: messages are kept with their conversation."""
        self.writes.record_messages(strand)

    async def flush(self) -> None:
        """Store what was recorded, within five seconds. Raises StoreUnavailable; the rest then still waits."""
        await self._bounded(self.writes.flush_all, FLUSH_SECONDS)

    # In the background: what the providers' answers taught, kept for all replicas

    async def learn(self, samples: Mapping[CalibrationKey, Sequence[Sample]]) -> dict[CalibrationKey, Calibration]:
        """Add samples, in one transaction, and return the calibrations with those of other replicas."""
        return await self._bounded(self._write_patiently(calibration_rows.learn_calibrations, samples), TASK_SECONDS)

    async def calibrations(self, changed_within_seconds: float | None = None) -> list[StoredCalibration]:
        """Calibrations of all tenants, at most 10,000, the latest to change first. None: whenever they changed."""
        within_ms = None if changed_within_seconds is None else round(changed_within_seconds * 1000)
        return await self._bounded(
            self._read(calibration_rows.read_calibrations, MOST_CALIBRATIONS, within_ms), TASK_SECONDS
        )

    async def learn_window(self, upstream: str, model: str, tenant: str, limit: int, seconds: float) -> None:
        """Keep a limit, in tokens, that a tenant learnt, for so long, or the smaller one that is there."""
        learn = self._write(learned_windows.learn_window, upstream, model, tenant, limit, round(seconds * 1000))
        await self._bounded(learn, TASK_SECONDS)

    async def forget_window(self, upstream: str, model: str, tenant: str, below: int) -> None:
        """Drop what a tenant learnt of a model, if it is less than that many tokens."""
        await self._bounded(self._write(learned_windows.forget_window, upstream, model, tenant, below), TASK_SECONDS)

    async def learned_windows(self, upstream: str, most: int) -> list[LearnedWindow]:
        """Limits that all replicas learnt about the models of an upstream. Needs no started store."""
        read = self._read(learned_windows.read_learned_windows, upstream, most)
        return await self._guard.bounded(read, TASK_SECONDS)
