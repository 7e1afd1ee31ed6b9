"""The leased compaction: made under a lease, in a task the application owns.

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
from collections.abc import Callable, Collection, Sequence
from time import monotonic

import structlog
from msgspec.structs import replace

from app.compaction.job import CompactionStart, Job
from app.compaction.memory import ChunkMemory
from app.compaction.performer import Performer
from app.compaction.progress import Progress
from app.compaction.quotas import Quotas
from app.compaction.setbacks import Setbacks
from app.core.reasons import because
from app.core.summary.flow import Compaction, Flow, Outcome
from app.core.summary.plan import Plan
from app.core.view.chunks import SummaryChunk
from app.store import Busy, Lease, Store, StoreUnavailable
from app.tasks.owned import OwnedTasks

log = structlog.get_logger("steno.compactor")

HEARTBEAT_SECONDS = 5.0
MISSED_BEATS = 2
"""In a row, after which the lease counts as lost."""
RACE_SECONDS = 0.25


class _LeaseLost(Exception):
    """Another holder may have it now."""


class LeasedCompaction:
    def __init__(
        self,
        store: Store,
        performer: Performer,
        tasks: OwnedTasks,
        quotas: Quotas,
        setbacks: Setbacks,
        memory: ChunkMemory,
        holder: str,
    ) -> None:
        """`holder` names this process."""
        self._store = store
        self._performer = performer
        self._tasks = tasks
        self._quotas = quotas
        self._setbacks = setbacks
        self._memory = memory
        self._holder = holder

    async def make(self, progress: Progress, plan: Plan) -> Compaction:
        """Makes the due compaction, or waits for whoever makes it. Raises `StoreUnavailable`."""
        job = progress.job
        if progress.waited:
            # Whom we waited for made nothing of use. All who waited know it now, and one of them is to try.
            await asyncio.sleep(min(progress.seconds_left, RACE_SECONDS * random.random()))
        if (too_much := self._quotas.begin(*job.place)) is not None:
            return Compaction((), Outcome.NOT_BEGUN, because(too_much))
        lease = None
        try:
            chain = job.conversation.chain.positions
            lease = await self._store.acquire(job.tenant, job.conversation_id, plan.range, chain, self._holder)
        finally:
            if not isinstance(lease, Lease):
                self._quotas.end(*job.place)
        if isinstance(lease, Busy):
            if job.purpose == "background":
                return Compaction((), Outcome.TAKES_TOO_LONG)  # Nobody needs it yet: it is not waited for.
            progress.tell(CompactionStart.by(plan))
            return await self._wait(progress, plan)
        return await self._begin(progress, plan, lease)

    async def recovers(self, progress: Progress) -> bool:
        """Whether the database may be asked once more, instead of doing without."""
        return progress.asks_again() and not self._tasks.draining and await self._store.recovers()

    async def _begin(self, progress: Progress, plan: Plan, lease: Lease) -> Compaction:
        job, case, begun = progress.job, progress.case, CompactionStart.by(plan)
        known = frozenset(chunk.id for chunk in case.chunks)
        running = self._run(job, job.flow(case, plan), plan, lease, known, lambda: progress.tell(begun))
        work = self._tasks.start(self._performer.seen(job, plan, running), f"compaction {begun.id}")
        work.add_done_callback(lambda _: self._quotas.end(*job.place))
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({work}, timeout=progress.seconds_left)
        if not work.done():
            return Compaction((), Outcome.TAKES_TOO_LONG)
        compaction = work.result()
        progress.ended(compaction)
        return compaction

    async def _wait(self, progress: Progress, plan: Plan) -> Compaction:
        """Waits for the result of somebody else's compaction, not for the lease."""
        began = monotonic()
        try:
            return await self._awaited(progress, plan)
        finally:
            self._performer.metrics.waited_for_lease(monotonic() - began)

    async def _awaited(self, progress: Progress, plan: Plan) -> Compaction:
        place = (*progress.job.place, plan.range, progress.job.conversation.chain.positions)
        progress.waited = True
        while progress.seconds_left:
            try:
                if await self._store.lease_ended(*place, progress.seconds_left):
                    return Compaction((), Outcome.AWAITED)
            except StoreUnavailable:
                if await progress.can_do_without_summary() or not await self.recovers(progress):
                    raise
        return Compaction((), Outcome.TAKES_TOO_LONG)

    async def _run(
        self, job: Job, flow: Flow, plan: Plan, lease: Lease, known: Collection[str], announce: Callable[[], None]
    ) -> Compaction:
        """The owned task: from the lease to its release, whoever is still waiting. `known` are the chunks it was
        planned with."""
        began = monotonic()
        compaction = Compaction((), Outcome.LEASE_LOST)
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(lease))
                if not await self._is_overtaken(job, known):
                    late = await self._store_late(lease, job, plan)
                    compaction = late or await self._perform(flow, job, lease, announce)
                beating.cancel()
        except* _LeaseLost:
            pass
        except* StoreUnavailable:
            compaction = Compaction((), Outcome.STORE_AWAY)
        finally:
            await self._release(lease)
        if compaction.outcome is Outcome.LEASE_LOST and await self._is_revoked(lease):
            compaction = Compaction((), Outcome.DELETED)
            self._memory.forget(*job.place)
        self._setbacks.learn(job.undertaking(plan), compaction)
        self._performer.ended(job, plan, compaction, began)
        return compaction

    async def _perform(self, flow: Flow, job: Job, lease: Lease, announce: Callable[[], None]) -> Compaction:
        async def keep(chunk: SummaryChunk) -> SummaryChunk | None:
            return next(iter(await self._keep(lease, job, [chunk])), None)

        return await self._performer.perform(flow, job, keep, announce)

    async def _keep(self, lease: Lease, job: Job, made: Sequence[SummaryChunk]) -> Sequence[SummaryChunk]:
        """The chunks as stored, none once the lease is lost. What is paid for and cannot be stored is remembered."""
        try:
            stored = await self._store.commit(lease, made) or ()
        except (StoreUnavailable, asyncio.CancelledError):
            self._memory.keep(job.tenant, made, stored=False)
            raise
        self._memory.keep(job.tenant, stored)
        return stored

    async def _store_late(self, lease: Lease, job: Job, plan: Plan) -> Compaction | None:
        """What this was to make and was made while the database was away: it is paid for, and was sent already."""
        chain = job.conversation.chain
        start = chain.positions[plan.range.from_digest]
        made = self._memory.take_unstored(job.tenant, job.series, job.conversation.cut_digests)
        # It is this conversation's from now on: whose it was may be deleted by now.
        due = [
            replace(chunk, conversation_id=job.conversation_id)
            for chunk in made
            if chain.positions[chunk.from_digest] >= start
        ]
        if not due:
            return None
        if stored := await self._keep(lease, job, due):
            return Compaction(tuple(stored))
        self._memory.keep(job.tenant, due, stored=False)
        return Compaction((), Outcome.LEASE_LOST)

    async def _is_overtaken(self, job: Job, known: Collection[str]) -> bool:
        """Whether a chunk was stored between our look and our lease: what is to be made may have been made."""
        found = await self._store.chunks_in(job.tenant, job.series, job.conversation.cut_digests)
        return any(chunk.id not in known for chunk in found)

    async def _beat(self, lease: Lease) -> None:
        """Keeps the lease alive. Raises `_LeaseLost` once it is, because the work is then in vain."""
        missed = 0
        while missed < MISSED_BEATS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await self._store.renew(lease):
                    break
                missed = 0
            except StoreUnavailable:
                missed += 1
        raise _LeaseLost

    async def _release(self, lease: Lease) -> None:
        try:
            await self._store.release(lease)
        except StoreUnavailable:
            log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)

    async def _is_revoked(self, lease: Lease) -> bool:
        """Whether the conversation was deleted: then what the request needs is not to be made again for it."""
        try:
            return await self._store.revoked(lease)
        except StoreUnavailable:
            return False
