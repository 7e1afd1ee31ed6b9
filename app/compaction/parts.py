"""The parts that the compactor works with: the store, the summariser, and what this process remembers.

`LiveParts` are those of a request. `DryRun` stores nothing, and imagines summaries. Tests bring their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from app.compaction.background import BackgroundRoom
from app.compaction.chunk_builder import SummaryCall
from app.compaction.chunks import Compaction, FirstChunk, SummaryAnswer, SummaryChunk
from app.compaction.fallback import Status
from app.compaction.lease import CompactionJob, CompactionRunner, LeasedCompaction
from app.compaction.mask import Boundary
from app.compaction.memory import CompactionBackoff, HistoryBreaker, RecallIndexCache
from app.compaction.plan import Plan
from app.compaction.policy import SummaryBrief
from app.compaction.recall import RecallPolicy
from app.compaction.request import ChatRequest
from app.compaction.summarizer import make_chunks
from app.compaction.view import View
from app.conversation.reasons import Code, Reasons
from app.runtime.caches import Erased
from app.runtime.tasks import SharedWork, Work
from app.store import Store
from app.store.chunks import chunks_in, keep_mask, masks_in, recent_first_chunks
from app.telemetry.metrics import Metrics
from app.tokens.cost_gate import COMMON_PRICE, Rates, rates_of
from app.tokens.usage import Price

T = TypeVar("T")

REWRITTEN_WITHIN_SECONDS = 3_600.0
"""Age of the first chunks by which a history is recognised that changes with every turn."""


class Stored(Struct, frozen=True):
    """Rows that the store has of a conversation's history."""

    pins: tuple[int, ...] = ()
    chunks: tuple[SummaryChunk, ...] = ()
    boundaries: tuple[Boundary, ...] = ()


class Prices(Struct, frozen=True):
    rates: Rates | None = None
    """Rates of the request's own model; None if they are not known."""
    summariser: Price | None = None
    reads_warm: bool = False
    """True if the summariser is the conversation's own model, whose provider has just read it."""


class Lately(Struct, frozen=True):
    """Reasons for and against a planned compaction that this process knows of."""

    stopping: bool = False
    """True if the server is shutting down."""
    blocked: Code | None = None
    """Reason why the history is left alone for now."""
    paused: Reasons | None = None
    """Reasons of the last failure, if the same compaction failed too often to be tried now."""
    failed_last: bool = False
    """True if the same compaction failed when it was tried last."""


class BackgroundChance(Struct, frozen=True):
    comes_back: bool = False
    """True if another request is expected soon, so that a summary is worth making in the background."""
    has_room: bool = False
    """True if a compaction would find room there, or is under way."""


class Parts(Protocol):
    """Everything outside of the decision. What reaches the database raises `StoreUnavailable`."""

    async def read_prefix(self, request: Any) -> Stored: ...
    async def keep_mask(self, request: Any, boundary: Boundary) -> None: ...
    async def read_first_chunks(self, request: Any) -> Sequence[FirstChunk]:
        """The first chunks that were made lately of histories with messages of this one."""

    async def read_heads(self, request: Any, digests: Sequence[bytes]) -> Collection[bytes]:
        """The digests, of these, that a conversation was seen with."""

    def remembered(self, request: Any) -> Sequence[SummaryChunk]:
        """The chunks that this process has seen lately, for want of the store."""

    def summary_options(self, request: Any) -> SummaryBrief: ...
    def prices(self, request: Any, summariser: str | None = None) -> Prices: ...
    def lately(self, request: Any, plan: Plan) -> Lately: ...
    def background(self, request: Any) -> BackgroundChance: ...
    def shape_refusals(self, request: Any, status: Status) -> Reasons | None:
        """Why views of this status were refused for their shape a moment ago."""

    def freed(self, request: Any, before: int, after: int) -> None:
        """Note what the request's own compactions made of it, in tokens of the widest view."""

    async def make(self, request: Any, job: CompactionJob) -> Compaction | None:
        """Take the lease of a planned compaction and make it; None if another process has the lease."""

    async def wait(self, request: Any, job: CompactionJob) -> bool:
        """Announce another process's compaction, and wait for its end; False if that takes too long."""

    async def postpone(self, request: Any, job: CompactionJob) -> Sequence[SummaryChunk]:
        """Leave a compaction to the background. Returns chunks that it would make, where that is imagined."""

    async def recall(self, request: Any, view: View, policy: RecallPolicy) -> View: ...
    async def compute(self, request: Any, step: Callable[[], T]) -> T:
        """Run a step over the whole history: off the event loop where that is long."""


class LiveParts:
    """The store, the summariser and the memory of this process."""

    def __init__(
        self,
        store: Store,
        runner: CompactionRunner,
        room: BackgroundRoom,
        leased: LeasedCompaction,
        recall: RecallIndexCache,
    ) -> None:
        self._store = store
        self._runner = runner
        self._room = room
        self._refused_shapes = CompactionBackoff(tolerated=0)
        self._breaker = HistoryBreaker()
        self._reading: SharedWork[Stored] = SharedWork()
        self._leased = leased
        self._recall = recall
        self.metrics: Metrics = runner.metrics
        self.running = runner.running

    async def read_prefix(self, request: ChatRequest, *, bind: bool = True) -> Stored:
        mask, last = request.policy.mask, request.conversation.chain.digests[-1]
        what = request.place, request.series, request.policy.summarises, mask.key if mask else None, last, bind
        # Once for a crowd, such as one that was woken together: they would wait for each other at the database.
        stored = await self._reading.do(what, lambda: self._find(request, bind=bind))
        self._runner.memory.keep(request.place, request.series, stored.chunks)
        return stored

    async def _find(self, request: ChatRequest, *, bind: bool) -> Stored:
        conversation, policy, tenant = request.conversation, request.policy, request.tenant
        chain, cuts, mask = conversation.chain, conversation.cut_digests, policy.mask
        pins = await self._store.pins_in(tenant, request.conversation_id, chain.digests, bind=bind)
        chunks = await self._store.request(chunks_in, tenant, request.series, cuts) if policy.summarises else ()
        # Only results are masked, and media.
        history = conversation.history
        masks = mask is not None and (history.holds_answers or history.holds_media)
        found = await self._store.request(masks_in, tenant, mask.key, cuts) if mask is not None and masks else ()
        boundaries = (Boundary(chain.positions[digest], chain.positions[start]) for digest, start in found)
        return Stored(pins, tuple(chunks), tuple(boundaries))

    async def keep_mask(self, request: ChatRequest, boundary: Boundary) -> None:
        if (mask := request.policy.mask) is not None:
            chain = request.conversation.chain
            place = chain[boundary.position], chain[boundary.start]
            await self._store.request_change(keep_mask, request.tenant, mask.key, *place, request.conversation_id)

    async def read_first_chunks(self, request: ChatRequest) -> Sequence[FirstChunk]:
        digests = [message.digest for message in request.conversation.transcript.messages]
        return await self._store.request(
            recent_first_chunks, request.tenant, request.series, digests, REWRITTEN_WITHIN_SECONDS
        )

    async def read_heads(self, request: ChatRequest, digests: Sequence[bytes]) -> Collection[bytes]:
        return [head.digest for head in await self._store.heads(request.tenant, tuple(digests))]

    def remembered(self, request: ChatRequest) -> Sequence[SummaryChunk]:
        return self._runner.memory.chunks_in(request.place, request.series, request.conversation.cut_digests)

    def summary_options(self, request: ChatRequest) -> SummaryBrief:
        return self._runner.routing.brief(request, warm=self._is_warm(request))

    def prices(self, request: ChatRequest, summariser: str | None = None) -> Prices:
        price_of = self._runner.ledger.price_of
        price, price_there = price_of(request.model), summariser and price_of(summariser)
        if price is None or (summariser and price_there is None):
            # One of them alone would be in another currency.
            price, price_there = COMMON_PRICE, summariser and COMMON_PRICE
        is_own = self._runner.routing.is_by_own_model(request)
        return Prices(rates_of(price, warm=self._is_warm(request)), price_there or None, is_own)

    def _is_warm(self, request: ChatRequest) -> bool:
        return self._runner.ledger.is_warm(request.tenant, request.conversation_id, request.model)

    def lately(self, request: ChatRequest, plan: Plan) -> Lately:
        tokens, budget, key = request.conversation.tokens, request.budget, request.compaction_key(plan)
        return Lately(
            stopping=self._runner.tasks.draining,
            blocked=self._breaker.blocks(request.history(), tokens, budget.room),
            paused=self._runner.backoff.pauses(key),
            failed_last=self._runner.backoff.failed_last(key),
        )

    def is_likely_to_continue(self, request: ChatRequest) -> bool:
        """True if another request is expected soon, so that its summary is worth making in the background."""
        is_enabled = request.measure.rules.compaction.background.enabled
        return is_enabled and self._runner.rates.of(request.place).is_likely_to_continue

    def background(self, request: ChatRequest) -> BackgroundChance:
        return BackgroundChance(
            comes_back=self.is_likely_to_continue(request),
            has_room=self._room.is_taken(request.place) or self._room.is_free(request.tenant, request.size),
        )

    def shape_refused(self, request: ChatRequest, status: Status, why: Reasons) -> None:
        self._refused_shapes.failed(request.history(status), why)

    def shape_refusals(self, request: ChatRequest, status: Status) -> Reasons | None:
        return self._refused_shapes.pauses(request.history(status))

    def freed(self, request: ChatRequest, before: int, after: int) -> None:
        self._breaker.finished(request.history(), request.conversation.tokens, before, after, request.budget.room)

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction | None:
        return await self._leased.make(request, job)

    async def wait(self, request: ChatRequest, job: CompactionJob) -> bool:
        return await self._leased.wait(request, job)

    async def postpone(self, request: ChatRequest, job: CompactionJob) -> Sequence[SummaryChunk]:  # noqa: ARG002 - it is made after the answer
        return ()

    async def recall(self, request: ChatRequest, view: View, policy: RecallPolicy) -> View:
        return await self._recall.recalled(request, view, policy)

    async def compute(self, request: ChatRequest, step: Callable[[], T]) -> T:
        return await request.beside(self._runner.work.do, step)

    def forget(self, erased: Erased) -> None:
        for memory in (self._recall, self._runner.memory, self._runner.rates):
            memory.forget(erased)

    def forget_summaries(self, tenant: str, ids: Sequence[str]) -> None:
        self._runner.memory.forget_chunks(tenant, ids)


class DryRun(LiveParts):
    """The same for a dry run: it stores nothing, waits for nothing, and imagines the summaries."""

    async def read_prefix(self, request: ChatRequest, *, bind: bool = False) -> Stored:
        return await super().read_prefix(request, bind=bind)

    async def keep_mask(self, request: ChatRequest, boundary: Boundary) -> None:
        """Keep nothing."""

    async def read_first_chunks(self, request: ChatRequest) -> Sequence[FirstChunk]:  # noqa: ARG002
        return ()

    def lately(self, request: ChatRequest, plan: Plan) -> Lately:
        """Only the last failure: a dry run says what a compaction would bring, whatever is against it now."""
        return Lately(failed_last=self._runner.backoff.failed_last(request.compaction_key(plan)))

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction | None:
        return await make_chunks(job.work, _ImaginedCalls(request, self._runner.work))

    async def postpone(self, request: ChatRequest, job: CompactionJob) -> Sequence[SummaryChunk]:
        return (await make_chunks(job.work, _ImaginedCalls(request, self._runner.work))).made


class _ImaginedCalls:
    """Calls of a dry run: every summary is as long as it may be, and is kept nowhere."""

    def __init__(self, request: ChatRequest, work: Work) -> None:
        self._request = request
        self._work = work

    async def compute(self, step: Callable[[], T]) -> T:
        return await self._request.beside(self._work.do, step)

    def announce(self) -> None:
        """Announce nothing."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer:
        return SummaryAnswer(" a" * (call.request.max_tokens // 2))

    async def keep(self, chunk: SummaryChunk, _: SummaryAnswer) -> SummaryChunk:
        return chunk

    def reject(self, _: SummaryAnswer) -> None:
        """Record nothing."""

    async def side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
        return [await part() for part in parts]
