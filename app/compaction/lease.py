"""Leased compaction: makes the chunks of a plan under a lease, in a task that the application owns.

1. Several requests of a conversation, at any replica, may find that the same compaction is due. The request that
   acquires the lease of the range makes the compaction. The other requests wait until the compaction ends, and then
   read the store again.
2. The lease is a row with an expiry, not a database lock, because a summary may take minutes and must not hold a
   connection or a transaction for so long. The holder extends the expiry by a heartbeat. If the holder dies, requests
   wait until the row expires.
3. A holder that lost its connection may return after another process took the lease. So each lease has its own epoch,
   and the store refuses chunks of an older epoch. A lost lease only wastes work: another process makes the chunks. The
   request then reads the store and plans again. A request makes at most three such attempts.
4. Deleting the conversation revokes the lease. The requests that wait for the summary go on without it.
5. If the client disconnects or the request's deadline passes, the compaction continues: the summary is paid for, and
   the next request can use it.

The lease only saves money. Even without it, histories would stay correct, because chunks are content-addressed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.background import RequestRates
from app.compaction.breakers import CompactionBackoff
from app.compaction.caches import ChunkMemory
from app.compaction.chunk_builder import ChunkBuilder, Draft
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryChunk
from app.compaction.plan import FOLD_MINIMUM, Plan, Span, fold_weight, folds_in, halves, released_tokens
from app.compaction.prompts import SummaryRequest
from app.compaction.request import ChatRequest
from app.compaction.summariser_client import PAUSED, Summariser, SummaryRouting
from app.conversation.reasons import Code, Reasons, because, hint_for, joined
from app.formats.spec import SummaryAnswer
from app.providers.ledger import Ledger
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks, WorkerThreads
from app.store import Claim, Lease, Store, StoreUnavailable, UsageRecord
from app.telemetry.metrics import Metrics
from app.tokens.costs import SummaryStats

ATTEMPTS = 2
"""Maximum time for one summary, with its retries and fallback models, as a multiple of the timeout of a call."""
HEARTBEAT_SECONDS = 5.0
"""Time between two renewals of a lease. Without renewals, a lease ends after `store.leases.LEASE_SECONDS`."""
MISSED_BEATS = 2
"""Number of consecutive heartbeats that do not reach the store, after which Steno treats the lease as lost."""
SIDE_BY_SIDE = 8
"""Maximum concurrent summary calls of one compaction: providers limit concurrency per API key."""
MAX_HALVINGS = 3
_Written = tuple[SummaryChunk, SummaryAnswer]
"""Chunk that is not stored yet, and the summariser's answer, which contains the text of the chunk."""
log = structlog.get_logger("steno.compactor")
T = TypeVar("T")


class _LeaseLost(Exception):
    """Raised if the lease is lost: another process may hold it."""


class CompactionJob(Struct, frozen=True):
    """Planned compaction of a request."""

    builder: ChunkBuilder
    known: tuple[SummaryChunk, ...]
    """Chunks that the request had read from the store when it planned the compaction."""
    announce: Callable[[], None]
    """Function that tells the client that this or another process makes the summary."""
    deadline: float
    """Time by the monotonic clock, in seconds, until which the request waits for the compaction."""
    waits: bool = True
    """True to wait if another process holds the lease."""

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())


@dataclass
class LeasedCompaction:
    """Runner of compactions under a lease."""

    store: Store
    summariser: Summariser
    routing: SummaryRouting
    tasks: OwnedTasks
    work: WorkerThreads
    ledger: Ledger
    metrics: Metrics
    rates: RequestRates
    memory: ChunkMemory
    most_per_tenant: int | None
    """Maximum running compactions of a tenant, in all processes together; None for no maximum."""
    holder: str
    """Name of this process in the leases."""
    backoff: CompactionBackoff = field(default_factory=CompactionBackoff)

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction:
        """Take the lease and make the compaction in a task of the application. If another process holds the lease, wait
        for that process. May raise `StoreUnavailable`."""
        claim = Claim(*request.conversation_key, job.builder.plan.range, request.conversation.chain.positions)
        lease = await self.store.take_lease(claim, self.holder, self.most_per_tenant)
        if lease == "too_many":
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        if not isinstance(lease, Lease):
            return await self._await_other(request, job, claim)
        task = self.tasks.start(self._run(request, job, lease), f"compaction for {request.request_id}")
        # `asyncio.wait` does not cancel the task if the client disconnects or the deadline passes.
        await asyncio.wait({task}, timeout=job.seconds_left)
        return task.result() if task.done() else Compaction((), Outcome.TAKES_TOO_LONG)

    async def _await_other(self, request: ChatRequest, job: CompactionJob, claim: Claim) -> Compaction:
        """Wait for the end of another process's compaction. May raise `StoreUnavailable`."""
        if not job.waits:
            return Compaction((), Outcome.TAKES_TOO_LONG)
        job.announce()
        began = monotonic()
        try:
            ended = await self.store.await_lease(claim, job.seconds_left)
        finally:
            self.metrics.lease_waits.observe(monotonic() - began)
        if ended is None:
            return Compaction((), Outcome.TAKES_TOO_LONG)
        # A conversation that was deleted during the wait is not summarised.
        is_deleted = ended == "revoked" and not await self.store.is_stored(*request.conversation_key)
        return Compaction((), Outcome.DELETED if is_deleted else Outcome.AWAITED)

    async def _run(self, request: ChatRequest, job: CompactionJob, lease: Lease) -> Compaction:
        """Make the chunks and release the lease. The request may stop waiting before the end."""
        began, plan, key = monotonic(), job.builder.plan, request.conversation_key
        compaction = Compaction((), Outcome.LEASE_LOST)  # Replaced below unless the lease is lost.
        ahead, is_revoked = request.purpose == "background", False
        calls = _LeasedCalls(self, request, lease)
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
            for answer, _, _ in [*calls.unrecorded.values()]:
                calls.reject(answer)
            try:
                is_revoked = await self.store.release_lease(lease)
            except StoreUnavailable:
                log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)
        if compaction.outcome is Outcome.AWAITED:
            return compaction  # No call was made, so there is nothing to log or count.
        if compaction.outcome is Outcome.LEASE_LOST and is_revoked:
            # No process makes the summary of a deleted conversation again.
            compaction = Compaction((), Outcome.DELETED)
            self.memory.forget(Erased(*key))
        self.backoff.learn(request.history_key(plan.range.from_digest), compaction)
        self._report(request, plan, compaction, monotonic() - began)
        return compaction

    async def _is_overtaken(self, request: ChatRequest, known: Sequence[SummaryChunk]) -> bool:
        """Return True if the store has a chunk, perhaps the planned one, that is not in `known`."""
        ids = {chunk.id for chunk in known}
        found = await self.store.read_chunks(request.tenant, request.series, request.conversation.cut_digests)
        return any(chunk.id not in ids for chunk in found)

    async def _keep_alive(self, lease: Lease) -> None:
        """Renew the lease until it is lost, then raise `_LeaseLost`, which cancels the compaction."""
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
            return  # The summariser logs a pause itself, once, with a count.
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
    """Summary calls of one compaction, each recorded once in the ledger."""

    leased: LeasedCompaction
    request: ChatRequest
    lease: Lease
    unrecorded: dict[int, tuple[SummaryAnswer, SummaryRequest, float]] = field(default_factory=dict)
    """Answers that are neither stored nor rejected yet, by `id(answer)`, each with call and duration in seconds."""

    async def ask(self, call: SummaryRequest) -> SummaryAnswer | Failure:
        leased, request, prefix = self.leased, self.request, None
        if (view := call.shown) is not None:
            prefix = await self.compute(lambda: leased.routing.prefix(request, view))
        began = monotonic()
        deadline, routes = began + leased.summariser.timeout_seconds * ATTEMPTS, leased.routing.routes(request)
        reply = await leased.summariser.ask(call, routes, prefix, deadline, request.tenant)
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

    async def compute(self, step: Callable[[], T]) -> T:
        return await self.request.beside(self.leased.work.do, step)

    def _record(self, answer: SummaryAnswer, kept: SummaryChunk | None) -> None:
        """Record the tokens of a call. `kept`: the stored chunk, which another replica may have stored first; None if
        no chunk was stored."""
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
                values_kept=kept.values_kept if kept else None,
                made=SummaryStats(
                    seconds=round(seconds, 3),
                    replaced=round(ratio * call.stands_for),
                    summary=round(ratio * kept.tokens) if kept else None,
                    summary_id=kept.id if kept else None,
                ),
            ),
            bill=answer.bill,
        )


# The chunks of a plan: one summary call for each, then a fold if they are too large together


class SummaryCalls(Protocol):
    """Interface to the summariser and to the store of chunks."""

    async def ask(self, call: SummaryRequest) -> SummaryAnswer | Failure: ...
    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        """Store the chunk made from an answer. Return the stored chunk; None if the lease was lost."""

    def reject(self, answer: SummaryAnswer) -> None:
        """Record an answer that is not stored."""

    async def compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history, in a worker thread if the history is long."""


async def make_chunks(builder: ChunkBuilder, calls: SummaryCalls) -> Compaction:
    """Make the planned chunks, each by one call. If all chunks together would exceed `budget.fold`, make a single chunk
    of the new messages and all older chunks by one call. If one call cannot read so much, make the planned chunks, then
    fold all chunks but the last. For cumulative chunks see `continue_summary`."""
    plan, budget, options, transcript = builder.plan, builder.budget, builder.options, builder.conversation.transcript
    maker = ChunkMaker(await calls.compute(builder.with_words), calls)
    if options.cumulative:
        return await maker.continue_summary()
    if folds_in(builder.conversation, plan, budget, options):
        folded_in = await maker.keep(await maker.update(plan.spans[0], plan.base.chunks))
        if not folded_in.overflow:
            return folded_in
    summarised = _joined(await _side_by_side([partial(maker.summarise, span) for span in plan.missing]))
    path = [*plan.base.chunks, *sorted((*plan.made, *summarised.made), key=lambda chunk: chunk.first_index)]
    held = max(fold_weight(path), 2 * released_tokens(transcript, path[:-1]))
    if not summarised.is_whole or held <= budget.fold:
        return summarised
    folded = await maker.fold(path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


class ChunkMaker(Struct, frozen=True):
    builder: ChunkBuilder
    calls: SummaryCalls

    async def summarise(self, span: Span, halvings: int = 0) -> Compaction:
        """Make the chunk of a span. If the span is too large for one chunk, halve the span and make several chunks."""
        draft = await self.calls.compute(lambda: self.builder.of_messages(span))
        whole = await self.keep(await self.write(draft))
        parts = halves(self.builder.conversation.transcript, span) if whole.overflow and halvings < MAX_HALVINGS else ()
        if len(parts) < 2:
            return whole
        made: tuple[SummaryChunk, ...] = ()
        for part in parts:
            half = await self.summarise(part, halvings + 1)
            made += half.made
            if not half.is_whole:
                return replace(half, made=made)
        return Compaction(made)

    async def continue_summary(self) -> Compaction:
        """Make one cumulative chunk for each span. The summariser extends the previous chunk by the span, so each chunk
        covers the whole history up to the span's end.

        Store only the last chunk. A view prefers chunks of fewer messages, so it would use an earlier chunk if stored.
        """
        plan, halvings = self.builder.plan, 0
        prior, spans = plan.base.chunks[-1:], deque(plan.spans)
        latest: _Written | None = None
        while spans:
            span = spans.popleft()
            written = await self.update(span, prior)
            if isinstance(written, Failure):
                parts = halves(self.builder.conversation.transcript, span) if written.overflow else ()
                if len(parts) < 2 or halvings == MAX_HALVINGS:
                    kept = await self.keep(latest or written)
                    return replace(kept, outcome=Outcome.FAILED, why=written.why) if kept.is_whole else kept
                halvings += 1
                spans.extendleft(reversed(parts))
            else:
                prior, latest = written[:1], written
        return await self.keep(latest) if latest else Compaction(())

    async def update(self, span: Span, prior: Sequence[SummaryChunk]) -> _Written | Failure:
        return await self.write(await self.calls.compute(lambda: self.builder.of_update(span, prior)))

    async def fold(self, chunks: Sequence[SummaryChunk]) -> Compaction:
        """Fold the chunks in as few calls as possible. Fold the results again while they exceed `budget.fold`."""
        options = self.builder.options
        at_most = min(options.input_tokens, options.source_tokens or options.input_tokens)
        made: list[SummaryChunk] = []
        todo = list(chunks)
        while len(todo) >= FOLD_MINIMUM:
            groups = _groups(todo, at_most)
            folds = [partial(self._fold, group, continued=group is not groups[-1]) for group in groups]
            folded = _joined(await _side_by_side(folds))
            made += [chunk for chunk in folded.made if chunk not in todo]
            if not folded.is_whole or len(groups) == 1 or fold_weight(folded.made) <= self.builder.budget.fold:
                return replace(folded, made=tuple(made))
            todo = list(folded.made)
        return Compaction(tuple(made))

    async def _fold(self, chunks: Sequence[SummaryChunk], *, continued: bool) -> Compaction:
        """Fold the chunks into one. A single chunk is returned unchanged."""
        if len(chunks) < FOLD_MINIMUM:
            return Compaction(tuple(chunks))
        return await self.keep(
            await self.write(await self.calls.compute(lambda: self.builder.of_fold(chunks, continued=continued)))
        )

    async def write(self, draft: Draft) -> _Written | Failure:
        """Ask the summariser for the text of a chunk. Retry once if Steno rejects the answer."""
        refused: Reasons = ()
        while True:
            call = self.builder.call(draft, refused)
            answer = await self.calls.ask(call)
            if isinstance(answer, Failure):
                return answer
            read = await self.calls.compute(partial(self.builder.read, draft, call, answer))
            if isinstance(read, SummaryChunk):
                return read, answer
            self.calls.reject(answer)
            if refused:
                return read
            refused = read.why

    async def keep(self, written: _Written | Failure) -> Compaction:
        if isinstance(written, Failure):
            return Compaction((), Outcome.FAILED, written.why, written.overflow)
        stored = await self.calls.keep(*written)
        return Compaction((), Outcome.LEASE_LOST) if stored is None else Compaction((stored,))


async def _side_by_side(parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(part: Callable[[], Awaitable[Compaction]]) -> Compaction:
        async with free:
            return await part()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(part)) for part in parts]
    return [task.result() for task in tasks]


def _joined(parts: Sequence[Compaction]) -> Compaction:
    made = tuple(chunk for part in parts for chunk in part.made)
    first_failed = next((part for part in parts if not part.is_whole), None)
    return replace(first_failed, made=made) if first_failed else Compaction(made)


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Group adjacent chunks into groups of about `at_most` tokens. Only the last group may have a single chunk."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and sum(chunk.tokens for chunk in groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups
