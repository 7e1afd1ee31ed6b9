"""Calls of a compaction: the lease, those who wait for it, and the commit under it. The theory is in `lease`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from time import monotonic

import structlog

from app.core.view.chunks import ChunkRange, SummaryChunk
from app.store import chunks, lease
from app.store.calls import TASK_SECONDS, Calls
from app.store.errors import Contended, StatementRefused, StoreUnavailable
from app.store.lease import Busy, Lease
from app.store.wakeups import CHANNEL, wake_word

log = structlog.get_logger("steno.store")

COMMIT_AT_SECONDS = (0.0, 0.3, 1.0, 3.0, 8.0)
"""Earliest times of the tries of a commit: a database that restarts refuses at once, a silent one takes its time."""
COMMIT_TRY_SECONDS = 1.7


class LeaseCalls(Calls):
    """Calls that raise StoreUnavailable."""

    # On a request's path

    async def acquire(
        self,
        tenant: str,
        conversation_id: str,
        range: ChunkRange,  # noqa: A002 - the noun of the design
        chain: Collection[bytes],
        holder: str,
    ) -> Lease | Busy:
        """Take the lease of a range; Busy if waiting is better than making the chunk, see `lease`."""
        if busy := self._waiters.awaited(tenant, (conversation_id, range, frozenset(chain))):
            return busy
        look = self._read(lease.find_live, tenant, conversation_id, range, chain, self._ttl_ms)
        take = self._write(lease.acquire_lease, tenant, conversation_id, range, chain, holder, self._ttl_ms)

        async def work() -> Lease | Busy:
            # A crowd that has to wait should not queue for a write lock to hear it.
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
        """The lease that `acquire` would have to wait for; None if nothing is."""
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
        """Wait until `acquire` would not have to wait; False if that takes longer than so many seconds.

        Raises StoreUnavailable as soon as the database cannot be asked.
        """
        what = conversation_id, range, frozenset(chain)

        async def look() -> Busy | None:
            return await self.live_lease(tenant, conversation_id, range, chain)

        return await self._waiters.wait(tenant, what, look, seconds)

    # In compaction tasks

    async def renew(self, lease_held: Lease) -> bool:
        """Prolong a lease; False: it was taken over, and what is being made can no longer be committed."""
        return await self._bounded(self._write_patiently(lease.renew_lease, lease_held, self._ttl_ms), TASK_SECONDS)

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
        """Store chunks and return them as stored; None if the lease was lost."""
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

    async def _give_back(self, granted: Lease | Busy) -> None:
        """Release a lease that came after its request had given up: it would keep everybody waiting for nobody."""
        if isinstance(granted, Lease):
            await self.release(granted)
