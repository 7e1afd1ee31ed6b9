"""Leased compaction: made under a lease, in a task the application owns.

Theory: any request of a conversation may find that a compaction is due, at any replica, and usually several do at
once. Whoever acquires the lease of its range makes it; the others wait for its *result*, not for the lease, and look
again. The lease is a row with an expiry and not a lock of the database: the work takes minutes of a model's time, in
which no connection and no transaction may be held, and a holder that dies is waited for until the row expires and no
longer. A holder keeps its row alive by a beat. One that could not, because it was cut off or stopped, may come back
after somebody else took over, so each taking raises the row's epoch, and what is stored names the epoch it was granted:
an older one is refused. So a lost lease means that the work was in vain, never that anything is wrong: another one's
result is there or on its way, and the request looks again, three times at most. One loss is of another kind: a deletion
of the conversation revokes the lease, and then nothing is to be made for it again. The lease saves money; what keeps a
history right is that chunks are content-addressed. If the client leaves, or its time is over, only its waiting ends:
the summary is paid for, and the next request has use for it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import structlog

from app.compaction.chunks import SummaryChunk
from app.compaction.request import ChatRequest
from app.compaction.results import Compaction, Outcome
from app.compaction.runner import CompactionJob, CompactionRunner
from app.conversation.reasons import Code, because
from app.runtime.caches import Erased
from app.store import Lease, Store, StoreUnavailable
from app.store.chunks import chunks_in
from app.store.conversation_rows import read_pulse
from app.store.lease import TooMany, is_revoked

log = structlog.get_logger("steno.compactor")

HEARTBEAT_SECONDS = 5.0
MISSED_BEATS = 2
"""Missed beats in a row after which the lease counts as lost."""
RACE_SECONDS = 0.25


class _LeaseLost(Exception):
    """The lease was lost: another holder may have it now."""


@dataclass(slots=True)
class LeasedCompaction:
    store: Store
    runner: CompactionRunner
    holder: str
    """Name of this process."""

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction | None:
        """Take the lease and make a compaction, in a task that the application owns. The result may not have begun, or
        take too long; None if another process has the lease. Raises `StoreUnavailable`."""
        plan = job.plan
        if job.is_again:
            await asyncio.sleep(min(job.seconds_left, RACE_SECONDS * random.random()))
        quotas = self.runner.quotas
        if not quotas.begin(*request.place):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        lease = None
        try:
            chain = request.conversation.chain.positions
            lease = await self.store.leases.acquire(*request.place, plan.range, chain, self.holder, quotas.compactions)
        finally:
            if not isinstance(lease, Lease):
                quotas.end(*request.place)
        if isinstance(lease, TooMany):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        if not isinstance(lease, Lease):
            return None
        running = self._run(request, job, lease)
        compaction = await self.runner.result(job, self.runner.start(request, plan, running))
        return compaction or Compaction((), Outcome.TAKES_TOO_LONG)

    async def wait(self, request: ChatRequest, job: CompactionJob) -> bool:
        """Wait for the result of another process's compaction, not for the lease; False if it takes too long. Raises
        `StoreUnavailable`."""
        job.announce()
        place, began = (*request.place, job.plan.range, request.conversation.chain.positions), monotonic()
        try:
            while job.seconds_left:
                if await self.store.leases.ended(*place, job.seconds_left):
                    return True
            return False
        finally:
            self.runner.metrics.lease_waits.observe(monotonic() - began)

    async def _run(self, request: ChatRequest, job: CompactionJob, lease: Lease) -> Compaction:
        """Run from the lease to its release, also where no request waits any more."""
        plan, began = job.plan, monotonic()
        compaction = Compaction((), Outcome.LEASE_LOST)  # Unless one of the branches below comes to its end.

        async def keep(chunk: SummaryChunk) -> SummaryChunk | None:
            if stored := await self.store.leases.commit(lease, [chunk]):
                self.runner.memory.add(request.place, request.series, stored[0])
                return stored[0]
            return None

        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(lease))
                if request.purpose == "background" and not await self._is_stored(request):
                    compaction = Compaction((), Outcome.DELETED)
                elif await self._is_overtaken(request, job.known):
                    compaction = Compaction((), Outcome.AWAITED)
                else:
                    compaction = await self.runner.make_chunks(job, request, keep)
                beating.cancel()
        except* _LeaseLost:
            pass
        except* StoreUnavailable:
            compaction = Compaction((), Outcome.STORE_AWAY)
        finally:
            await self._release(lease)
        if compaction.outcome is Outcome.AWAITED:
            return compaction  # Nothing was begun, so that there is nothing to log, count or learn from.
        if compaction.outcome is Outcome.LEASE_LOST and await self._is_revoked(lease):
            compaction = Compaction((), Outcome.DELETED)
            self.runner.memory.forget(Erased(*request.place))
        self.runner.ended(request, plan, request.compaction_key(plan), compaction, began)
        return compaction

    async def _is_stored(self, request: ChatRequest) -> bool:
        """False if the conversation was deleted before the lease was taken, of which a deletion could not know."""
        # As for REST, after what waits to be stored: a conversation that just began may be in it.
        pulse = await self.store.rest(read_pulse, *request.place, self.store.leases.ttl_ms)
        return pulse.updated_at is not None

    async def _is_overtaken(self, request: ChatRequest, known: Sequence[SummaryChunk]) -> bool:
        """True if a chunk was stored between our look and our lease: it may be the one that is to be made."""
        ids = {chunk.id for chunk in known}
        found = await self.store.request(chunks_in, request.tenant, request.series, request.conversation.cut_digests)
        return any(chunk.id not in ids for chunk in found)

    async def _beat(self, lease: Lease) -> None:
        """Keep the lease alive. Raises `_LeaseLost` once it is lost, because the work is then in vain."""
        missed = 0
        while missed < MISSED_BEATS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await self.store.leases.renew(lease):
                    break
                missed = 0
            except StoreUnavailable:
                missed += 1
        raise _LeaseLost

    async def _release(self, lease: Lease) -> None:
        try:
            await self.store.leases.release(lease)
        except StoreUnavailable:
            log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)

    async def _is_revoked(self, lease: Lease) -> bool:
        """True if the conversation was deleted: then a summary for the request is not to be made again for it."""
        try:
            return await self.store.task(is_revoked, lease)
        except StoreUnavailable:
            return False
