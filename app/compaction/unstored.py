"""Unstored compaction: while the database is away a summary is still made where nothing else would do.

It is kept in memory and stored by the next compaction it would save. Other processes know nothing of it, and there is
no lease; within this process requests that need the same summary wait for the one that is being made.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from app.compaction.performer import Course, Performer
from app.compaction.request import ChatRequest
from app.core.deciding.effects import MakeUnstored
from app.core.reasons import Code, Reason, Reasons, because
from app.core.summary.flow import Compaction, Outcome
from app.core.summary.plan import Plan
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.runtime.lineages import Lineage


class UnstoredCompaction:
    def __init__(self, performer: Performer) -> None:
        self._performer = performer
        self._under_way: dict[ChunkRange, asyncio.Task[Compaction]] = {}

    async def make(self, course: Course, asked: MakeUnstored) -> Compaction | None:
        """Make the summary that is due; None if another request's is of use, and was waited for."""
        request, plan, performer = course.request, asked.plan, self._performer
        undertaking = request.history(Code.STORAGE)
        if performer.tasks.draining:
            return _not_begun()
        if (paused := performer.setbacks.pauses(undertaking)) is not None:
            return _not_begun((*paused, Reason(Code.SUMMARY_FAILED_LATELY)))
        if not course.seconds_left:
            return _not_begun()
        if (work := self._of_use(request, plan)) is not None:
            course.announce(plan)
            await asyncio.wait({work}, timeout=course.seconds_left)
            return None
        if not performer.quotas.begin(*request.place):
            return _not_begun(because(Code.TOO_MANY_COMPACTIONS))
        running = self._run(course, asked, undertaking)
        work = self._under_way[plan.range] = performer.start(request, plan, running)
        work.add_done_callback(lambda _: self._under_way.pop(plan.range, None))
        return await performer.result(course, work) or _not_begun()

    def _of_use(self, request: ChatRequest, plan: Plan) -> asyncio.Task[Compaction] | None:
        """Return the compaction under way that begins where the plan does, and ends in the same history."""
        wanted, places = plan.range, request.conversation.chain.positions
        found = (
            work
            for made, work in self._under_way.items()
            if (made.series, made.from_digest) == (wanted.series, wanted.from_digest) and made.through_digest in places
        )
        return next(found, None)

    async def _run(self, course: Course, asked: MakeUnstored, undertaking: Lineage) -> Compaction:
        request, plan, began = course.request, asked.plan, monotonic()

        async def keep(chunk: SummaryChunk) -> SummaryChunk:
            self._performer.memory.keep(request.tenant, [chunk], stored=False)
            return chunk

        compaction = await self._performer.perform(asked.flow, request, keep, lambda: course.announce(plan))
        self._performer.ended(request, plan, undertaking, compaction, began, stored=False)
        return compaction


def _not_begun(why: Reasons = ()) -> Compaction:
    return Compaction((), Outcome.NOT_BEGUN, why)
