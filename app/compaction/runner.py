"""Runs compactions in tasks that the application owns, with what those of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import structlog

from app.compaction.breakers import CompactionBackoff
from app.compaction.hints import hint_for
from app.compaction.job import CompactionJob, CompactionStart
from app.compaction.memory import ChunkMemory
from app.compaction.quotas import Quotas
from app.compaction.request import ChatRequest
from app.compaction.request_rates import RequestRates
from app.compaction.routing import SummaryRouting
from app.compaction.running import RunningCompactions
from app.compaction.summariser import PAUSED, Summariser
from app.core.history.exact_values import kept_share
from app.core.reasons import joined
from app.core.summary.flow import (
    Announce,
    Compaction,
    Effect,
    Failure,
    Flow,
    Reply,
    StoreChunk,
    Summarise,
    Together,
    drive_async,
)
from app.core.summary.gate import SummaryAnswer, visible_text
from app.core.summary.plan import Plan
from app.core.view.chunks import SummaryChunk
from app.providers.ledger import Ledger
from app.runtime.lineages import Lineage
from app.runtime.owned import OwnedTasks
from app.runtime.threads import Work
from app.telemetry.metrics import Metrics
from app.tokens.usage import Made

log = structlog.get_logger("steno.compactor")

SIDE_BY_SIDE = 8
"""Summary calls of one compaction that are under way at once: providers limit how much may be for one key."""
ATTEMPTS = 2
"""Time for all calls for one summary, with retries and other models, as a multiple of one call's timeout."""

Keep = Callable[[SummaryChunk], Awaitable[SummaryChunk | None]]
"""Function that keeps a chunk and returns it as kept; None if the right to that was lost."""


@dataclass(slots=True)
class CompactionRunner:
    summariser: Summariser
    routing: SummaryRouting
    tasks: OwnedTasks
    work: Work
    ledger: Ledger
    quotas: Quotas
    metrics: Metrics
    rates: RequestRates
    memory: ChunkMemory
    backoff: CompactionBackoff = field(default_factory=CompactionBackoff)
    running: RunningCompactions = field(default_factory=RunningCompactions)

    def start(
        self, request: ChatRequest, plan: Plan, running: Coroutine[Any, Any, Compaction]
    ) -> asyncio.Task[Compaction]:
        """Start a compaction that the quotas have begun, in a task the application owns."""
        task = self.tasks.start(self._tracked(request, plan, running), f"compaction {CompactionStart.of(plan).id}")
        task.add_done_callback(lambda _: self.quotas.end(*request.place))
        return task

    async def _tracked(self, request: ChatRequest, plan: Plan, running: Coroutine[Any, Any, Compaction]) -> Compaction:
        """Run a compaction that the inspector shows meanwhile."""
        with self.running.during(request.place, plan.messages, ahead=request.purpose == "background"):
            return await running

    @staticmethod
    async def result(job: CompactionJob, task: asyncio.Task[Compaction]) -> Compaction | None:
        """Return the result of the request's own compaction; None if it takes too long."""
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({task}, timeout=job.seconds_left)
        return task.result() if task.done() else None

    async def perform(self, flow: Flow, request: ChatRequest, keep: Keep, announce: Callable[[], None]) -> Compaction:
        """Drive a flow to its end."""
        answered: list[_Answered] = []
        """Latest answer that is not in the ledger yet, until it is known whether it is kept."""

        def settle() -> None:
            while answered:
                answered.pop().record(self.ledger)

        async def perform(effect: Effect) -> Reply:
            match effect:
                case Announce():
                    announce()
                    return None
                case Summarise() as asked:
                    settle()
                    return await self._ask(asked, request, answered)
                case Together(flows):
                    return await self._together(flows, request, keep)
                case StoreChunk(chunk):
                    kept = await keep(chunk)
                    if kept is not None and answered:
                        answered[-1].kept = kept
                    return kept

        try:
            return await drive_async(flow, perform, lambda step: request.beside(self.work.do, step))
        finally:
            settle()

    def ended(
        self,
        request: ChatRequest,
        plan: Plan,
        key: Lineage,
        compaction: Compaction,
        began: float,
    ) -> None:
        """Count and log a compaction that came to an end, and learn from it. `began` is the monotonic clock's."""
        self.backoff.learn(key, compaction)
        seconds = monotonic() - began
        self.metrics.compacted(request.purpose, compaction.outcome, compaction.reasons, len(compaction.made), seconds)
        self._log(request, plan, compaction, seconds)

    async def _together(self, flows: Sequence[Flow], request: ChatRequest, keep: Keep) -> tuple[Compaction, ...]:
        free = asyncio.Semaphore(SIDE_BY_SIDE)

        async def one(flow: Flow) -> Compaction:
            async with free:
                return await self.perform(flow, request, keep, lambda: None)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(flow)) for flow in flows]
        return tuple(task.result() for task in tasks)

    async def _ask(self, asked: Summarise, request: ChatRequest, answered: list[_Answered]) -> SummaryAnswer | Failure:
        call, prefix = asked.request, None
        if (view := call.shown) is not None:
            prefix = await request.beside(self.work.do, lambda: self.routing.prefix(request, view))
        began = monotonic()
        deadline, routes = began + self.summariser.timeout_seconds * ATTEMPTS, self.routing.routes(request)
        reply = await self.summariser.ask(call, routes, prefix, deadline, request.tenant, request.request_id)
        self.metrics.summary_called(() if isinstance(reply, SummaryAnswer) else reply.why)
        if isinstance(reply, SummaryAnswer):
            seconds = monotonic() - began
            self.rates.summarised((reply.upstream, reply.model), seconds)
            answered.append(_Answered(request, reply, asked, seconds))
        return reply

    def _log(self, request: ChatRequest, plan: Plan, compaction: Compaction, seconds: float) -> None:
        reasons = compaction.reasons
        if reasons == (PAUSED,):
            return  # The summariser reports it, once, with a count.
        tell = log.info if compaction.is_whole else log.warning
        tell(
            "compacted" if compaction.is_whole else "compaction failed",
            request_id=request.request_id,
            conversation_id=request.conversation_id,
            model=request.measure.rules.summary.model or request.model,
            messages=plan.messages,
            chunks=len(compaction.made),
            seconds=round(seconds, 2),
            purpose=request.purpose,
            reason=joined(reasons),
            remedy=None if compaction.is_whole else hint_for(reasons),
        )


@dataclass(slots=True)
class _Answered:
    request: ChatRequest
    answer: SummaryAnswer
    asked: Summarise
    seconds: float
    kept: SummaryChunk | None = None
    """Result of the call: if two replicas made the same summary at once, the stored one."""

    def record(self, ledger: Ledger) -> None:
        """Record the call's own tokens: savings are seen in the request that it was made for, and in later ones."""
        request, answer, ratio = self.request, self.answer, self.request.budget.line.ratio
        ledger.record(
            tenant=request.tenant,
            conversation_id=request.conversation_id,
            request_id=request.request_id,
            turn=request.turn,
            purpose=request.purpose,
            upstream=answer.upstream,
            format_=answer.format,
            model=answer.model,
            status=200,
            tokens=answer.usage,
            bill=answer.bill,
            values_kept=kept_share(self.asked.values, visible_text(answer.text)),
            made=Made(
                seconds=round(self.seconds, 3),
                replaced=round(ratio * self.asked.replaces),
                summary=round(ratio * self.kept.tokens) if self.kept else None,
                summary_id=self.kept.id if self.kept else None,
            ),
        )
