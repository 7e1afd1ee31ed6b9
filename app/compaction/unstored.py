"""Unstored compaction: while the database is away a summary is still made where nothing else would do.

It is kept in memory and stored by the next compaction it would save. Other processes know nothing of it, and there is
no lease; within this process requests that need the same summary wait for the one that is being made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from app.compaction.job import CompactionStart, Job
from app.compaction.performer import Performer
from app.compaction.progress import Progress
from app.core.reasons import Code, Reason, Reasons, because
from app.core.summary.flow import Compaction, Flow, Outcome
from app.core.summary.plan import Plan
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.runtime.lineages import Lineage


class UnstoredCompaction:
    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._under_way: dict[ChunkRange, asyncio.Task[Compaction]] = {}

    async def recall(self, progress: Progress) -> None:
        """Use what this process remembers, and mask where even that is too large."""
        job = progress.job
        remembered = self._performer.memory.chunks_in(job.tenant, job.series, job.conversation.cut_digests)
        progress.case = progress.case.with_chunks(remembered)
        if not await progress.can_do_without_summary() and (due := await progress.due_mask()) is not None:
            progress.case = progress.case.with_boundaries([due])

    async def make(self, progress: Progress) -> None:
        """Make the summary that is due, or wait for it; that the database is away is reported in any case."""
        why = await self._attempt(progress)
        progress.attempted(Compaction((), Outcome.STORE_AWAY, (Reason(Code.STORAGE), *why)))

    async def _attempt(self, progress: Progress) -> Reasons:
        """Return the reason why there is no summary, if there is more to say than that the database is away."""
        job = progress.job
        undertaking = job.history(Code.STORAGE)
        while not (self._performer.tasks.draining or await progress.is_settled()):
            if (paused := self._performer.setbacks.pauses(undertaking)) is not None:
                return (*paused, Reason(Code.SUMMARY_FAILED_LATELY))
            plan = await progress.due_plan()
            if plan is None or not progress.seconds_left:
                break
            if (work := self._of_use(job, plan)) is None:
                return await self._begin(progress, plan, undertaking)
            progress.tell(CompactionStart.by(plan))
            await asyncio.wait({work}, timeout=progress.seconds_left)
            await self.recall(progress)
        return ()

    def _of_use(self, job: Job, plan: Plan) -> asyncio.Task[Compaction] | None:
        """Return the compaction under way that begins where the plan does, and ends in the same history."""
        wanted, places = plan.range, job.conversation.chain.positions
        found = (
            work
            for made, work in self._under_way.items()
            if (made.series, made.from_digest) == (wanted.series, wanted.from_digest) and made.through_digest in places
        )
        return next(found, None)

    async def _begin(self, progress: Progress, plan: Plan, undertaking: Lineage) -> Reasons:
        job, begun = progress.job, CompactionStart.by(plan)
        if (too_much := self._performer.quotas.begin(*job.place)) is not None:
            return because(too_much)
        running = self._run(job, job.flow(progress.case, plan), plan, undertaking, lambda: progress.tell(begun))
        work = self._under_way[plan.range] = self._performer.start(job, plan, running)
        work.add_done_callback(lambda _: self._under_way.pop(plan.range, None))
        compaction = await self._performer.result(progress, work)
        return compaction.reasons if compaction else ()

    async def _run(
        self, job: Job, flow: Flow, plan: Plan, undertaking: Lineage, announce: Callable[[], None]
    ) -> Compaction:
        async def keep(chunk: SummaryChunk) -> SummaryChunk:
            self._performer.memory.keep(job.tenant, [chunk], stored=False)
            return chunk

        began = monotonic()
        compaction = await self._performer.perform(flow, job, keep, announce)
        self._performer.ended(job, plan, undertaking, compaction, began, stored=False)
        return compaction
