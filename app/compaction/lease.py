"""Leased compaction: a plan's chunks are made under a lease, in a task the application owns.

1. Any request of a conversation may find that a compaction is due, at any replica, and usually several do at once. The
   one that acquires the lease of its range makes it; the others wait for its *result*, not for the lease, and look
   again.
2. The lease is a row with an expiry and not a lock of the database: the work takes minutes of a model's time, in which
   no connection and no transaction may be held. A holder that dies is waited for until the row expires and no longer;
   a living one keeps its row alive by a heartbeat.
3. A holder that was cut off or stopped may come back after another one took over. So each taking has an epoch of its
   own, and what is stored names the epoch it was granted: an older one is refused. A lost lease means that the work was
   in vain, never that anything is wrong: another one's result is there or on its way, and the request looks again,
   three times at most.
4. A deletion of the conversation revokes the lease, and then nothing is to be made for it again.
5. If the client leaves, or its time is over, only its waiting ends: the summary is paid for, and the next request has
   use for it.

The lease saves money; what keeps a history right is that chunks are content-addressed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

import structlog
from msgspec import Struct

from app.compaction.background import RequestRates, RunningCompactions
from app.compaction.chunk_builder import ChunkBuilder, SummaryCall
from app.compaction.chunk_maker import make_chunks
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryAnswer, SummaryChunk, visible_text
from app.compaction.exact_values import kept_share
from app.compaction.memory import ChunkMemory, CompactionBackoff
from app.compaction.plan import Plan
from app.compaction.request import ChatRequest
from app.compaction.summariser_client import PAUSED, Summariser, SummaryRouting
from app.conversation.reasons import Code, because, hint_for, joined
from app.providers.ledger import Ledger
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks, Work
from app.store import CompactionStore, Lease, StoreUnavailable, UsageRecord
from app.store.leases import HEARTBEAT_SECONDS
from app.telemetry.metrics import Metrics
from app.tokens.usage import SummaryStats

ATTEMPTS = 2
"""Time for all calls for one summary, with retries and other models, as a multiple of one call's timeout."""
MISSED_BEATS = 2
"""Missed heartbeats in a row after which the lease counts as lost."""
RACE_SECONDS = 0.25
log = structlog.get_logger("steno.compactor")
T = TypeVar("T")


class _LeaseLost(Exception):
    """The lease was lost: another holder may have it now."""


class CompactionJob(Struct, frozen=True):
    """A planned compaction, and what its request knows and waits for."""

    builder: ChunkBuilder
    known: tuple[SummaryChunk, ...]
    """Chunks that it was planned with."""
    announce: Callable[[], None]
    """Called when the summary is about to be made, here or by another process."""
    deadline: float
    """Time by the monotonic clock, in seconds, until which the request waits for it."""
    is_again: bool = False
    """True if another process's compaction brought nothing of use: all that waited for it plan again now, and one of
    them is to make it."""
    waits: bool = True
    """False if another process's compaction is not waited for."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())


@dataclass
class LeasedCompaction:
    """Compactions of this process, and everything they are made with."""

    store: CompactionStore
    summariser: Summariser
    routing: SummaryRouting
    tasks: OwnedTasks
    work: Work
    ledger: Ledger
    metrics: Metrics
    rates: RequestRates
    memory: ChunkMemory
    most_per_tenant: int | None
    """Compactions that a tenant may have under way at once, in all processes; None for any number."""
    holder: str
    """Name of this process in the leases."""
    backoff: CompactionBackoff = field(default_factory=CompactionBackoff)
    running: RunningCompactions = field(default_factory=RunningCompactions)

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction:
        """Take the lease and make a compaction in a task of the application's, or wait for the process that has the
        lease. Raises `StoreUnavailable`."""
        if job.is_again:
            await asyncio.sleep(min(job.seconds_left, RACE_SECONDS * random.random()))
        range_, chain = job.builder.plan.range, request.conversation.chain.positions
        lease = await self.store.take_lease(*request.conversation_key, range_, chain, self.holder, self.most_per_tenant)
        if lease == "too_many":
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        if not isinstance(lease, Lease):
            return await self._await_other(request, job)
        task = self.tasks.start(self._run(request, job, lease), f"compaction for {request.request_id}")
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({task}, timeout=job.seconds_left)
        return task.result() if task.done() else Compaction((), Outcome.TAKES_TOO_LONG)

    async def _await_other(self, request: ChatRequest, job: CompactionJob) -> Compaction:
        """Wait for the end of another process's compaction. Raises `StoreUnavailable`."""
        if not job.waits:
            return Compaction((), Outcome.TAKES_TOO_LONG)
        job.announce()
        began, range_, chain = monotonic(), job.builder.plan.range, request.conversation.chain.positions
        try:
            ended = await self.store.await_lease(*request.conversation_key, range_, chain, job.seconds_left)
        finally:
            self.metrics.lease_waits.observe(monotonic() - began)
        if ended is None:
            return Compaction((), Outcome.TAKES_TOO_LONG)
        # What was deleted while requests waited for it is not made again for them.
        is_deleted = ended == "revoked" and not await self.store.is_stored(*request.conversation_key)
        return Compaction((), Outcome.DELETED if is_deleted else Outcome.AWAITED)

    async def _run(self, request: ChatRequest, job: CompactionJob, lease: Lease) -> Compaction:
        """Make the chunks from the lease to its release, also where no request waits any more."""
        began, plan, key = monotonic(), job.builder.plan, request.conversation_key
        compaction = Compaction((), Outcome.LEASE_LOST)  # Unless one of the branches below comes to its end.
        ahead, is_revoked = request.purpose == "background", False
        calls = _LeasedCalls(self, request, lease)
        with self.running.during(key, plan.messages, ahead=ahead):
            try:
                async with asyncio.TaskGroup() as group:
                    heartbeat = group.create_task(self._keep_alive(lease))
                    is_erased = self.store.is_erased(*key, request.epoch)
                    if is_erased or (ahead and not await self.store.is_stored(*key)):
                        compaction = Compaction((), Outcome.DELETED)
                    elif await self._is_overtaken(request, job.known):
                        compaction = Compaction((), Outcome.AWAITED)
                    else:
                        job.announce()
                        compaction = await make_chunks(job.builder, calls)
                    heartbeat.cancel()
            except* _LeaseLost:
                pass
            except* StoreUnavailable:
                compaction = Compaction((), Outcome.STORE_AWAY)
            finally:
                calls.reject_unrecorded()
                try:
                    is_revoked = await self.store.release_lease(lease)
                except StoreUnavailable:
                    log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)
        if compaction.outcome is Outcome.AWAITED:
            return compaction  # Nothing was begun, so that there is nothing to log, count or learn from.
        if compaction.outcome is Outcome.LEASE_LOST and is_revoked:
            # A summary for the request is not to be made again for it.
            compaction = Compaction((), Outcome.DELETED)
            self.memory.forget(Erased(*key))
        self.backoff.learn(request.history_key(plan.range.from_digest), compaction)
        self._report(request, plan, compaction, monotonic() - began)
        return compaction

    async def _is_overtaken(self, request: ChatRequest, known: Sequence[SummaryChunk]) -> bool:
        """True if a chunk was stored between our look and our lease: it may be the one that is to be made."""
        ids = {chunk.id for chunk in known}
        found = await self.store.read_chunks(request.tenant, request.series, request.conversation.cut_digests)
        return any(chunk.id not in ids for chunk in found)

    async def _keep_alive(self, lease: Lease) -> None:
        """Renew the lease until it is lost, and raise `_LeaseLost` then, because the work is in vain."""
        missed = 0
        while missed < MISSED_BEATS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await self.store.renew_lease(lease):
                    break
                missed = 0
            except StoreUnavailable:
                missed += 1
        raise _LeaseLost

    def _report(self, request: ChatRequest, plan: Plan, compaction: Compaction, seconds: float) -> None:
        reasons, made = compaction.reasons, len(compaction.made)
        self.metrics.compacted(request.purpose, compaction.outcome, reasons, made, seconds)
        if reasons == (PAUSED,):
            return  # The summariser reports it, once, with a count.
        tell = log.info if compaction.is_whole else log.warning
        tell(
            "compacted" if compaction.is_whole else "compaction failed",
            request_id=request.request_id,
            conversation_id=request.conversation_id,
            model=request.measure.rules.summary.model or request.model,
            messages=plan.messages,
            chunks=made,
            seconds=round(seconds, 2),
            purpose=request.purpose,
            reason=joined(reasons),
            remedy=None if compaction.is_whole else hint_for(reasons),
        )


@dataclass(slots=True)
class _LeasedCalls:
    """Calls for the summaries of one compaction. The ledger records each call once."""

    leased: LeasedCompaction
    request: ChatRequest
    lease: Lease
    unrecorded: dict[int, tuple[SummaryAnswer, SummaryCall, float]] = field(default_factory=dict)
    """Answered calls with their seconds, by the identity of the answer, until it is known whether it is kept."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure:
        leased, request, prefix = self.leased, self.request, None
        if (view := call.request.shown) is not None:
            prefix = await self.compute(lambda: leased.routing.prefix(request, view))
        began = monotonic()
        deadline, routes = began + leased.summariser.timeout_seconds * ATTEMPTS, leased.routing.routes(request)
        reply = await leased.summariser.ask(call.request, routes, prefix, deadline, request.tenant, request.request_id)
        leased.metrics.summary_called(() if isinstance(reply, SummaryAnswer) else reply.why)
        if isinstance(reply, SummaryAnswer):
            seconds = monotonic() - began
            leased.rates.summarised((reply.upstream, reply.model), seconds)
            self.unrecorded[id(reply)] = reply, call, seconds
        return reply

    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        stored = await self.leased.store.keep_chunks(self.lease, [chunk])
        if not stored:
            return None
        self.leased.memory.add(self.request.conversation_key, self.request.series, stored[0])
        self._record(answer, stored[0])
        return stored[0]

    def reject(self, answer: SummaryAnswer) -> None:
        self._record(answer, None)

    def reject_unrecorded(self) -> None:
        """Record the answers that were not kept for another reason than their text."""
        for answer, _, _ in [*self.unrecorded.values()]:
            self.reject(answer)

    async def compute(self, step: Callable[[], T]) -> T:
        return await self.request.beside(self.leased.work.do, step)

    def _record(self, answer: SummaryAnswer, kept: SummaryChunk | None) -> None:
        """Record the call's own tokens: savings are seen in the request that it was made for, and in later ones.
        `kept`: what came of it; if two replicas made the same summary at once, the stored one."""
        request, ratio = self.request, self.request.budget.line.ratio
        _, call, seconds = self.unrecorded.pop(id(answer))
        if self.leased.store.is_erased(*request.conversation_key, request.epoch):
            return
        self.leased.ledger.record(
            UsageRecord(
                tenant=request.tenant,
                conversation_id=request.conversation_id,
                request_id=request.request_id,
                turn=request.turn,
                purpose=request.purpose,
                upstream=answer.upstream,
                format=answer.format,
                model=answer.model,
                status=200,
                tokens=answer.usage,
                values_kept=kept_share(call.values, visible_text(answer.text)),
                made=SummaryStats(
                    seconds=round(seconds, 3),
                    replaced=round(ratio * call.stands_for),
                    summary=round(ratio * kept.tokens) if kept else None,
                    summary_id=kept.id if kept else None,
                ),
            ),
            bill=answer.bill,
        )
