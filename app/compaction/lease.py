"""Leased compaction: a plan's chunks are made under a lease, in a task the application owns. Each chunk is asked for,
checked and kept; too many are folded.

1. Any request of a conversation may find that a compaction is due, at any replica, and usually several do at once. The
   one that acquires the lease of its range makes it; the others wait for its *result*, not for the lease, and look
   again.
2. The lease is a row with an expiry and not a lock of the database: the work takes minutes of a model's time, in which
   no connection and no transaction may be held. A holder that dies is waited for until the row expires and no longer;
   a living one keeps its row alive by a heartbeat.
3. A holder that was cut off or stopped may come back after another one took over. So each taking raises the row's
   epoch, and what is stored names the epoch it was granted: an older one is refused. A lost lease means that the work
   was in vain, never that anything is wrong: another one's result is there or on its way, and the request looks again,
   three times at most.
4. A deletion of the conversation revokes the lease, and then nothing is to be made for it again.
5. If the client leaves, or its time is over, only its waiting ends: the summary is paid for, and the next request has
   use for it.

The lease saves money; what keeps a history right is that chunks are content-addressed.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol, TypeVar

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.background import Quotas, RequestRates, RunningCompactions
from app.compaction.chunk_builder import ChunkBuilder, Draft, SummaryCall
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryAnswer, SummaryChunk, visible_text, was_refused
from app.compaction.exact_values import kept_share
from app.compaction.memory import ChunkMemory, CompactionBackoff
from app.compaction.plan import (
    FOLD_MINIMUM,
    Plan,
    Span,
    fold_weight,
    folds_in,
    halves,
    released_tokens,
)
from app.compaction.request import ChatRequest
from app.compaction.summariser_client import PAUSED, Summariser, SummaryRouting
from app.conversation.reasons import Code, Reasons, because, hint_for, joined
from app.providers.ledger import Ledger
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks, Work
from app.store import Lease, Store, StoreUnavailable
from app.store.chunks import chunks_in
from app.store.conversations import read_status
from app.store.leases import is_revoked, is_revoked_within
from app.telemetry.metrics import Metrics
from app.tokens.usage import SummaryStats

SIDE_BY_SIDE = 8
"""Summary calls of one compaction that are under way at once: providers limit how much may be for one key."""
ATTEMPTS = 2
"""Time for all calls for one summary, with retries and other models, as a multiple of one call's timeout."""
HEARTBEAT_SECONDS = 5.0
MISSED_BEATS = 2
"""Missed heartbeats in a row after which the lease counts as lost."""
RACE_SECONDS = 0.25
SPARE_MS = 250
"""Milliseconds that a lease may have been revoked before a wait for it began."""
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


@dataclass(slots=True)
class LeasedCompaction:
    """Compactions of this process, and everything they are made with."""

    store: Store
    summariser: Summariser
    routing: SummaryRouting
    tasks: OwnedTasks
    work: Work
    ledger: Ledger
    metrics: Metrics
    rates: RequestRates
    memory: ChunkMemory
    quotas: Quotas
    holder: str
    """Name of this process in the leases."""
    backoff: CompactionBackoff = field(default_factory=CompactionBackoff)
    running: RunningCompactions = field(default_factory=RunningCompactions)

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction:
        """Take the lease and make a compaction in a task of the application's, or wait for the process that has the
        lease. Raises `StoreUnavailable`."""
        if job.is_again:
            await asyncio.sleep(min(job.seconds_left, RACE_SECONDS * random.random()))
        place, range_, chain = request.place, job.builder.plan.range, request.conversation.chain.positions
        if not self.quotas.begin(*place):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        lease = None
        try:
            lease = await self.store.take_lease(*place, range_, chain, self.holder, self.quotas.compactions)
        finally:
            if not isinstance(lease, Lease):
                self.quotas.end(*place)
        if lease == "too_many":
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        if not isinstance(lease, Lease):
            began = monotonic()
            if not job.waits or not await self.wait(request, job):
                return Compaction((), Outcome.TAKES_TOO_LONG)
            # What was deleted while requests waited for it is not made again for them.
            waited_ms = round(1_000 * (monotonic() - began)) + SPARE_MS
            is_deleted = await self.store.task(is_revoked_within, request.tenant, range_, waited_ms)
            is_deleted = is_deleted and not await self._is_stored(request)  # It may be another conversation's lease.
            return Compaction((), Outcome.DELETED if is_deleted else Outcome.AWAITED)
        task = self.tasks.start(self._run(request, job, lease), f"compaction for {request.request_id}")
        task.add_done_callback(lambda _: self.quotas.end(*place))
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({task}, timeout=job.seconds_left)
        return task.result() if task.done() else Compaction((), Outcome.TAKES_TOO_LONG)

    async def wait(self, request: ChatRequest, job: CompactionJob) -> bool:
        """Wait for the end of another process's compaction; False if it takes too long. Raises `StoreUnavailable`."""
        job.announce()
        began, ended, chain = monotonic(), False, request.conversation.chain.positions
        try:
            while job.seconds_left and not ended:
                ended = await self.store.lease_ended(*request.place, job.builder.plan.range, chain, job.seconds_left)
            return ended
        finally:
            self.metrics.lease_waits.observe(monotonic() - began)

    async def _run(self, request: ChatRequest, job: CompactionJob, lease: Lease) -> Compaction:
        """Make the chunks from the lease to its release, also where no request waits any more."""
        began, plan = monotonic(), job.builder.plan
        compaction = Compaction((), Outcome.LEASE_LOST)  # Unless one of the branches below comes to its end.
        with self.running.during(request.place, plan.messages, ahead=request.purpose == "background"):
            try:
                async with asyncio.TaskGroup() as group:
                    heartbeat = group.create_task(self._keep_alive(lease))
                    is_erased = self.store.writes.is_erased(*request.place, request.epoch)
                    if is_erased or (request.purpose == "background" and not await self._is_stored(request)):
                        compaction = Compaction((), Outcome.DELETED)
                    elif await self._is_overtaken(request, job.known):
                        compaction = Compaction((), Outcome.AWAITED)
                    else:
                        job.announce()
                        compaction = await self._make_chunks(request, job.builder, lease)
                    heartbeat.cancel()
            except* _LeaseLost:
                pass
            except* StoreUnavailable:
                compaction = Compaction((), Outcome.STORE_AWAY)
            finally:
                try:
                    await self.store.release_lease(lease)
                except StoreUnavailable:
                    log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)
        if compaction.outcome is Outcome.AWAITED:
            return compaction  # Nothing was begun, so that there is nothing to log, count or learn from.
        if compaction.outcome is Outcome.LEASE_LOST and await self._is_revoked(lease):
            compaction = Compaction((), Outcome.DELETED)
            self.memory.forget(Erased(*request.place))
        self.backoff.learn(request.history_key(plan.range.from_digest), compaction)
        self._report(request, plan, compaction, monotonic() - began)
        return compaction

    async def _make_chunks(self, request: ChatRequest, builder: ChunkBuilder, lease: Lease) -> Compaction:
        calls = _Calls(self, request, lease)
        try:
            return await make_chunks(builder, calls)
        finally:  # Answers that were not kept for another reason than their text.
            for answer, _, _ in [*calls.unrecorded.values()]:
                calls.reject(answer)

    async def _is_stored(self, request: ChatRequest) -> bool:
        """False if the conversation was deleted before the lease was taken, of which a deletion could not know."""
        # As for REST, after what waits to be stored: a conversation that just began may be in it.
        status = await self.store.rest(read_status, *request.place, self.store.lease_ttl_ms)
        return status.updated_at is not None

    async def _is_overtaken(self, request: ChatRequest, known: Sequence[SummaryChunk]) -> bool:
        """True if a chunk was stored between our look and our lease: it may be the one that is to be made."""
        ids = {chunk.id for chunk in known}
        found = await self.store.request(chunks_in, request.tenant, request.series, request.conversation.cut_digests)
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

    async def _is_revoked(self, lease: Lease) -> bool:
        """True if the conversation was deleted: then a summary for the request is not to be made again for it."""
        try:
            return await self.store.task(is_revoked, lease)
        except StoreUnavailable:
            return False

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


class _Calls:
    """Calls for the summaries of one compaction. The ledger records each call once."""

    def __init__(self, leased: LeasedCompaction, request: ChatRequest, lease: Lease) -> None:
        self._leased = leased
        self._request = request
        self._lease = lease
        self._free = asyncio.Semaphore(SIDE_BY_SIDE)
        self.unrecorded: dict[int, tuple[SummaryAnswer, SummaryCall, float]] = {}
        """Answered calls with their seconds, by the identity of the answer, until it is known whether it is kept."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure:
        leased, request, prefix = self._leased, self._request, None
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
        stored = await self._leased.store.keep_chunks(self._lease, [chunk])
        if not stored:
            return None
        self._leased.memory.add(self._request.place, self._request.series, stored[0])
        self._record(answer, stored[0])
        return stored[0]

    def reject(self, answer: SummaryAnswer) -> None:
        self._record(answer, None)

    async def side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
        async def one(part: Callable[[], Awaitable[Compaction]]) -> Compaction:
            async with self._free:
                return await part()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(part)) for part in parts]
        return [task.result() for task in tasks]

    async def compute(self, step: Callable[[], T]) -> T:
        return await self._request.beside(self._leased.work.do, step)

    def _record(self, answer: SummaryAnswer, kept: SummaryChunk | None) -> None:
        """Record the call's own tokens: savings are seen in the request that it was made for, and in later ones.
        `kept`: what came of it; if two replicas made the same summary at once, the stored one."""
        request, ratio = self._request, self._request.budget.line.ratio
        _, call, seconds = self.unrecorded.pop(id(answer))
        self._leased.ledger.record(
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
            values_kept=kept_share(call.values, visible_text(answer.text)),
            made=SummaryStats(
                seconds=round(seconds, 3),
                replaced=round(ratio * call.stands_for),
                summary=round(ratio * kept.tokens) if kept else None,
                summary_id=kept.id if kept else None,
            ),
        )


MAX_HALVINGS = 3


class SummaryCalls(Protocol):
    """Calls to the summariser, and the store of chunks."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure: ...
    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        """Keep the chunk of an answer. Returns it as stored; None if the right to store it was lost."""

    def reject(self, answer: SummaryAnswer) -> None:
        """Note that an answer cannot be kept."""

    async def side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]: ...
    async def compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history: off the event loop where that is long."""


async def make_chunks(builder: ChunkBuilder, calls: SummaryCalls) -> Compaction:
    """Make the planned chunks, one call each. Where they exceed their share with a new one, that takes the others in,
    in the same call; where one call cannot, all but the newest are folded afterwards.

    Where a summary stands for the whole history, each call goes on from the chunk before it.
    """
    plan, budget, options, transcript = builder.plan, builder.budget, builder.settings, builder.conversation.transcript
    maker = ChunkMaker(await calls.compute(builder.with_words), calls)
    if options.cumulative:
        return await maker.go_on()
    if folds_in(builder.conversation, plan, budget, options):
        folded_in = await maker.update(plan.spans[0], plan.base.chunks)
        if not isinstance(folded_in, Failure):
            return Compaction((folded_in,))
        if not folded_in.overflow:
            return _as_far_as((), folded_in)
    spans = plan.missing
    summarised = await (maker.summarise(*spans) if len(spans) == 1 else maker.summarise_parts(spans))
    path = [*plan.base.chunks, *sorted((*plan.made, *summarised.made), key=lambda chunk: chunk.first_index)]
    held = max(fold_weight(path), 2 * released_tokens(transcript, path[:-1]))
    if not summarised.is_whole or held <= budget.fold:
        return summarised
    folded = await maker.fold(path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


class ChunkMaker(Struct, frozen=True):
    builder: ChunkBuilder
    calls: SummaryCalls

    async def summarise_parts(self, spans: Sequence[Span]) -> Compaction:
        """Make the chunks of several spans, side by side.

        A summariser that answers too briefly once does so each time, and each call is paid for. So of the parts whose
        answer was refused one is asked for once more, and the others only if that helped.
        """
        parts = await self._side_by_side([partial(self.summarise, span, once=True) for span in spans])
        refused = [place for place, part in enumerate(parts) if not part.made and was_refused(part.why)]
        if refused and all(part.is_whole or place in refused for place, part in enumerate(parts)):
            again = [partial(self.summarise, spans[place], refused=parts[place].why) for place in refused]
            parts[refused[0]] = await again[0]()
            if parts[refused[0]].is_whole:
                for place, part in zip(refused[1:], await self._side_by_side(again[1:]), strict=True):
                    parts[place] = part
        return _joined(parts)

    async def summarise(
        self, span: Span, halvings: int = 0, refused: Reasons = (), *, once: bool = False
    ) -> Compaction:
        """Make the chunk of a span; two or more where it turns out too large for one. `refused` and `once` as for
        `_write`."""
        draft = await self.calls.compute(lambda: self.builder.of_messages(span))
        result = await self._keep(await self._write(draft, refused, once=once))
        if not isinstance(result, Failure):
            return Compaction((result,))
        if once and was_refused(result.why):
            return _as_far_as((), result)
        parts = self._halves(span) if result.overflow and halvings < MAX_HALVINGS else (span,)
        if len(parts) == 1:
            return _as_far_as((), result)
        made: list[SummaryChunk] = []
        for part in parts:
            half = await self.summarise(part, halvings + 1)
            made.extend(half.made)
            if not half.is_whole:
                return replace(half, made=tuple(made))
        return Compaction(tuple(made))

    async def go_on(self) -> Compaction:
        """Make chunks that each stand for everything before their end, from the one before and what follows that.

        Only the last one is kept: shorter ones would be used until they do not fit, and the tail not be the one
        planned.
        """
        plan = self.builder.plan
        prior = plan.base.chunks[-1:]
        reached: _Written | None = None
        failure: Failure | None = None
        spans = deque(plan.spans)
        halvings = 0
        while spans and failure is None:
            span = spans.popleft()
            result = await self._update(span, prior)
            if not isinstance(result, Failure):
                prior, reached = (result.chunk,), result
                continue
            parts = self._halves(span) if result.overflow and halvings < MAX_HALVINGS else (span,)
            if len(parts) == 1:
                failure = result
            else:
                halvings += 1
                spans.extendleft(reversed(parts))
        if reached is None:
            return _as_far_as((), failure) if failure else Compaction(())
        kept = await self._keep(reached)
        if isinstance(kept, Failure):
            return _as_far_as((), kept)
        return _as_far_as((kept,), failure) if failure else Compaction((kept,))

    async def update(self, span: Span, prior: Sequence[SummaryChunk]) -> SummaryChunk | Failure:
        """Make one chunk over the chunks before and a span."""
        return await self._keep(await self._update(span, prior))

    async def _update(self, span: Span, prior: Sequence[SummaryChunk]) -> _Written | Failure:
        return await self._write(await self.calls.compute(lambda: self.builder.of_update(span, prior)))

    async def fold(self, chunks: Sequence[SummaryChunk]) -> Compaction:
        """Fold the chunks in one call, or in as few as fit, then the results again while too many."""
        options = self.builder.settings
        at_most = min(options.input_tokens, options.source_tokens or options.input_tokens)
        made: list[SummaryChunk] = []
        todo = list(chunks)
        while len(todo) >= FOLD_MINIMUM:
            groups = _groups(todo, at_most)
            folds = [partial(self._fold, group, continued=group is not groups[-1]) for group in groups]
            folded = _joined(await self._side_by_side(folds))
            made += [chunk for chunk in folded.made if chunk not in todo]
            if not folded.is_whole or len(groups) == 1 or fold_weight(folded.made) <= self.builder.budget.fold:
                return replace(folded, made=tuple(made))
            todo = list(folded.made)
        return Compaction(tuple(made))

    async def _fold(self, chunks: Sequence[SummaryChunk], *, continued: bool) -> Compaction:
        """Fold several chunks into one that stands for them; a single one stays as it is."""
        if len(chunks) < FOLD_MINIMUM:
            return Compaction(tuple(chunks))
        draft = await self.calls.compute(lambda: self.builder.of_fold(chunks, continued=continued))
        result = await self._keep(await self._write(draft))
        return _as_far_as((), result) if isinstance(result, Failure) else Compaction((result,))

    async def _write(self, draft: Draft, refused: Reasons = (), *, once: bool = False) -> _Written | Failure:
        """One call, and one more with a stricter prompt and more room where the answer to the first was refused.

        A summariser that was shown the conversation itself may have gone on with it: the second time it is quoted.
        Where the first was `refused` before, only the second is made; with `once` only the first.
        """
        too_long = False
        for shown in (None,) if refused else (draft.shown,) if once else (draft.shown, None):
            call = self.builder.call(draft, shown, refused)
            answer = await self.calls.ask(call)
            if isinstance(answer, Failure):
                return answer
            read = await self.calls.compute(partial(self.builder.read, draft, call, answer))
            if isinstance(read, SummaryChunk):
                return _Written(read, answer)
            self.calls.reject(answer)
            refused, too_long = (read.reason,), read.too_long
        # Fewer messages have shorter notes.
        return Failure(refused, overflow=too_long)

    async def _keep(self, written: _Written | Failure) -> SummaryChunk | Failure:
        """Keep a chunk. Returns it as stored; a failure stays one."""
        if isinstance(written, Failure):
            return written
        stored = await self.calls.keep(written.chunk, written.answer)
        return Failure((), outcome=Outcome.LEASE_LOST) if stored is None else stored

    async def _side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
        return await self.calls.side_by_side(parts) if len(parts) > 1 else [await part() for part in parts]

    def _halves(self, span: Span) -> tuple[Span, ...]:
        return halves(self.builder.conversation.transcript, span)


class _Written(Struct, frozen=True):
    """A chunk that is not kept yet, and the answer that it was made of."""

    chunk: SummaryChunk
    answer: SummaryAnswer


def _as_far_as(made: Sequence[SummaryChunk], failure: Failure) -> Compaction:
    """Compaction as far as it came before a failure."""
    return Compaction(tuple(made), failure.outcome, failure.why)


def _joined(parts: Sequence[Compaction]) -> Compaction:
    made = tuple(chunk for part in parts for chunk in part.made)
    first_failed = next((part for part in parts if not part.is_whole), None)
    return replace(first_failed, made=made) if first_failed else Compaction(made)


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Neighbouring chunks in groups the summariser can read; each of at least two, so that a fold always gains."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and sum(chunk.tokens for chunk in groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups
