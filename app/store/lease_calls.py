"""Calls of a compaction: the lease, those who wait for it, and the commit under it. The theory is in `lease`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Sequence
from time import monotonic

import structlog

from app.compaction.chunks import ChunkRange, SummaryChunk
from app.store import chunks, lease
from app.store.calls import Calls
from app.store.database import PATIENT_LOCK_SECONDS
from app.store.errors import Contended, StatementRefused, StoreUnavailable
from app.store.lease import Busy, Lease, TooMany

log = structlog.get_logger("steno.store")

COMMIT_AT_SECONDS = (0.0, 0.3, 1.0, 3.0, 8.0, 16.0, 24.0)
"""Earliest times of the tries of a commit: a database that restarts refuses at once, a silent one takes its time, and
another one takes over after twenty seconds or more."""
COMMIT_TRY_SECONDS = 1.7
POLL_SECONDS = 0.25
"""Time between two looks of a request that waits for a compaction of another one."""


class LeaseCalls:
    """Calls about leases, which raise StoreUnavailable."""

    def __init__(self, calls: Calls, ttl_seconds: float) -> None:
        self._calls = calls
        self.ttl_ms = round(1000 * ttl_seconds)

    # On a request's path

    async def acquire(
        self,
        tenant: str,
        conversation_id: str,
        wanted: ChunkRange,
        chain: Collection[bytes],
        holder: str,
        most: int | None = None,
    ) -> Lease | Busy | TooMany:
        """Take the lease of a range; Busy if waiting is better than making the chunk, see `lease`; TooMany if `most`
        conversations of the tenant are being compacted, by all processes."""

        async def work() -> Lease | Busy | TooMany:
            place = tenant, conversation_id, wanted, chain
            # A crowd that has to wait should not queue for a write lock to hear it.
            async with self._calls.database.reading() as connection:
                if found := await lease.find_live(connection, *place, self.ttl_ms):
                    return found
            async with self._calls.database.writing() as connection:
                return await lease.acquire_lease(connection, *place, holder, self.ttl_ms, most)

        try:
            return await self._calls.guarded(work, late=self._give_back)
        except Contended:
            # A crowd takes its turns, or a process was cut off in the middle of its own: either is over soon.
            return Busy(conversation_id, self._calls.timeout)

    async def live(
        self, tenant: str, conversation_id: str, wanted: ChunkRange, chain: Collection[bytes]
    ) -> Busy | None:
        """The lease that `acquire` would have to wait for; None if nothing is."""
        return await self._calls.request(lease.find_live, tenant, conversation_id, wanted, chain, self.ttl_ms)

    async def ended(
        self, tenant: str, conversation_id: str, wanted: ChunkRange, chain: Collection[bytes], seconds: float
    ) -> bool:
        """Wait until `acquire` would not have to wait; False if that takes longer than so many seconds.

        Raises StoreUnavailable as soon as the database cannot be asked.
        """
        ends = monotonic() + seconds
        while await self.live(tenant, conversation_id, wanted, chain):
            if (left := ends - monotonic()) <= 0:
                return False
            # Spread, as those of a crowd begin together.
            await asyncio.sleep(min(left, POLL_SECONDS * random.uniform(0.75, 1.25)))
        return True

    # In compaction tasks

    async def renew(self, held: Lease) -> bool:
        """Prolong a lease; False: it was taken over, and what is being made can no longer be committed."""
        return await self._calls.task_change(lease.renew_lease, held, self.ttl_ms)

    async def release(self, held: Lease) -> None:
        """Let others in: those who wait see it when they look next."""
        await self._calls.task_change(lease.release_lease, held)

    async def commit(self, held: Lease, made: Sequence[SummaryChunk]) -> list[SummaryChunk] | None:
        """Store chunks and return them as stored; None if the lease was lost.

        On SQLite it waits for its turn longer than a request may: summaries that are made side by side are often done
        together, while others write, too, and behind one that is not stored no later one is of use.
        """
        has_turns = self._calls.database.address.kind != "postgresql"
        seconds = COMMIT_TRY_SECONDS + (PATIENT_LOCK_SECONDS if has_turns else 0)

        async def work() -> list[SummaryChunk] | None:
            async with self._calls.database.writing(patient=has_turns) as connection:
                return await chunks.commit_chunks(connection, held, made)

        began = monotonic()
        for next_at in COMMIT_AT_SECONDS[1:]:
            try:
                return await self._calls.bounded(work, seconds)
            except StatementRefused:
                raise
            except StoreUnavailable as error:
                log.warning("commit tried again", reason=error.reason)
                await asyncio.sleep(max(0.0, began + next_at - monotonic()))
        return await self._calls.bounded(work, seconds)

    async def _give_back(self, granted: Lease | Busy | TooMany) -> None:
        """Release a lease that came after its request had given up: it would keep everybody waiting for nobody."""
        if isinstance(granted, Lease):
            await self.release(granted)
