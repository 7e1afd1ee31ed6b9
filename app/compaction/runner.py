"""Runs compactions in tasks that the application owns, with what those of a process share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import structlog

from app.compaction.breakers import CompactionBackoff
from app.compaction.chunk_builder import SummaryCall
from app.compaction.chunks import SummaryChunk
from app.compaction.exact_values import kept_share
from app.compaction.hints import hint_for
from app.compaction.job import CompactionJob, CompactionStart
from app.compaction.memory import ChunkMemory
from app.compaction.plan import Plan
from app.compaction.quotas import Quotas
from app.compaction.request import ChatRequest
from app.compaction.request_rates import RequestRates
from app.compaction.results import Compaction, Failure
from app.compaction.routing import SummaryRouting
from app.compaction.running import RunningCompactions
from app.compaction.summariser_client import PAUSED, Summariser
from app.compaction.summarizer import make_chunks
from app.compaction.summary_validation import SummaryAnswer, visible_text
from app.conversation.reasons import joined
from app.providers.ledger import Ledger
from app.runtime.lineages import Lineage
from app.runtime.owned import OwnedTasks
from app.runtime.threads import Work
from app.telemetry.metrics import Metrics
from app.tokens.usage import SummaryStats

log = structlog.get_logger("steno.compactor")

T = TypeVar("T")

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

    async def make_chunks(self, job: CompactionJob, request: ChatRequest, keep: Keep) -> Compaction:
        calls = _Calls(self, request, keep, job.announce)
        try:
            return await make_chunks(job.work, calls)
        finally:
            calls.record_unkept()

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


class _Calls:
    """Calls for the summaries of one compaction, each of which is recorded in the ledger once."""

    def __init__(
        self, runner: CompactionRunner, request: ChatRequest, keep: Keep, announce: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._request = request
        self._keep = keep
        self.announce = announce
        self._free = asyncio.Semaphore(SIDE_BY_SIDE)
        self._answered: dict[int, _Answered] = {}
        """Calls that are not in the ledger yet, by the identity of the answer, until it is known whether it is kept."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure:
        runner, request, prefix = self._runner, self._request, None
        if (view := call.request.shown) is not None:
            prefix = await self.compute(lambda: runner.routing.prefix(request, view))
        began = monotonic()
        deadline, routes = began + runner.summariser.timeout_seconds * ATTEMPTS, runner.routing.routes(request)
        reply = await runner.summariser.ask(call.request, routes, prefix, deadline, request.tenant, request.request_id)
        runner.metrics.summary_called(() if isinstance(reply, SummaryAnswer) else reply.why)
        if isinstance(reply, SummaryAnswer):
            seconds = monotonic() - began
            runner.rates.summarised((reply.upstream, reply.model), seconds)
            self._answered[id(reply)] = _Answered(request, reply, call, seconds)
        return reply

    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        kept = await self._keep(chunk)
        if kept is not None:
            self._answered.pop(id(answer)).record(self._runner.ledger, kept)
        return kept

    def reject(self, answer: SummaryAnswer) -> None:
        self._answered.pop(id(answer)).record(self._runner.ledger, None)

    async def side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
        async def one(part: Callable[[], Awaitable[Compaction]]) -> Compaction:
            async with self._free:
                return await part()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(part)) for part in parts]
        return [task.result() for task in tasks]

    async def compute(self, step: Callable[[], T]) -> T:
        return await self._request.beside(self._runner.work.do, step)

    def record_unkept(self) -> None:
        for answered in self._answered.values():
            answered.record(self._runner.ledger, None)
        self._answered.clear()


@dataclass(slots=True)
class _Answered:
    request: ChatRequest
    answer: SummaryAnswer
    call: SummaryCall
    seconds: float

    def record(self, ledger: Ledger, kept: SummaryChunk | None) -> None:
        """Record the call's own tokens: savings are seen in the request that it was made for, and in later ones.
        `kept`: what came of it; if two replicas made the same summary at once, the stored one."""
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
            values_kept=kept_share(self.call.values, visible_text(answer.text)),
            made=SummaryStats(
                seconds=round(self.seconds, 3),
                replaced=round(ratio * self.call.stands_for),
                summary=round(ratio * kept.tokens) if kept else None,
                summary_id=kept.id if kept else None,
            ),
        )
