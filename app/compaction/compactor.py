"""Compactor: chooses the payload of a request, and makes the compactions that are due.

`RequestCompactor.prepare` runs these steps:

    1. Read the stored chunks and masks, and set the mask that is due.
    2. While a compaction is due, make it or wait for the process that makes it. Then repeat step 1.
    3. Choose the first view without problems, add quotations, and omit the thinking of finished turns.

A refused request and a background compaction run some of these steps. Steps over a long history run in a worker thread
(`_compute`). If the store is unavailable, the compactor uses the chunks in memory and makes no summary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import ClassVar, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.breakers import HistoryBreaker
from app.compaction.budget import WORDS_SHARE, most_without_summary
from app.compaction.caches import RecallIndexCache
from app.compaction.chunk_builder import ChunkBuilder
from app.compaction.chunks import Compaction, FirstChunk, Outcome, SummaryChunk
from app.compaction.cost_gate import Prices, mask_costs_too_much, plan_costs_too_much
from app.compaction.decision import Decision, earlier_steps, settle, simpler_decision, with_alternating_roles
from app.compaction.lease import CompactionJob, LeasedCompaction, make_chunks
from app.compaction.mask import MaskBoundary
from app.compaction.plan import Plan, SummaryOptions, plan_compaction
from app.compaction.planning_state import PlanningState, changes_every_turn, due_mask, initial_state, successions
from app.compaction.prompts import SummaryRequest
from app.compaction.request import ChatRequest
from app.compaction.user_words import OmittedWords
from app.compaction.view import current_turn, without_thinking
from app.conversation.identity import possible_heads
from app.conversation.reasons import Code, Reason, Reasons, because
from app.formats.spec import SummaryAnswer
from app.runtime.caches import Erased
from app.runtime.tasks import WorkerThreads
from app.store import StoreUnavailable
from app.tokens.costs import COMMON_PRICE, rates_of

T = TypeVar("T")

ROUNDS = 3
"""Maximum number of finished compactions of one request. A wait for another process is not counted."""
MOST_SEARCHED = 2_000_000
"""Maximum tokens of a history that recall searches. A larger search would take too long."""
REWRITTEN_WITHIN_SECONDS = 3_600.0
"""Maximum age of the chunks that `changes_every_turn` compares."""


class Stored(Struct, frozen=True):
    pins: tuple[int, ...] = ()
    chunks: tuple[SummaryChunk, ...] = ()
    boundaries: tuple[MaskBoundary, ...] = ()


class RecentAttempts(Struct, frozen=True):
    """Recent events in this process, which decide whether Steno makes a planned compaction now."""

    blocked: Code | None = None
    """Code if a shutdown or the `HistoryBreaker` forbids compactions; otherwise None."""
    paused: Reasons | None = None
    """Reasons of the last failure, while the compaction is paused after failures; otherwise None."""
    failed_last: bool = False
    """True if the last attempt at this compaction failed."""
    comes_back: bool = False
    """True if the conversation is likely to continue, so that a background summary is useful."""


class CompactionStart(Struct, frozen=True):
    """Compaction that Steno announces to the client."""

    id: str
    messages: int


Announce = Callable[[CompactionStart], None]


@dataclass(slots=True, eq=False)
class RequestCompactor:
    """Compaction of one request: planning state, attempts, and the chunks made so far."""

    request: ChatRequest
    compactor: Compactor
    announce: Announce | None = None
    deadline: float = 0.0
    """Time by the monotonic clock, in seconds, until which a compaction may delay the request."""
    may_postpone: bool = False
    waits: bool = True
    """True to wait for another process's compaction; False in the background, where no request waits."""
    is_refused: bool = False
    """True if the provider refused the request for its size."""
    announced: CompactionStart | None = None
    """Compaction that Steno announced to the client: only the first compaction of a request."""
    state: PlanningState = field(init=False)
    """Latest planning state; absent before `_begin`."""
    _stored: PlanningState | None = None
    """First state that was read from the store; None if the store did not answer."""
    _before: PlanningState | None = None
    """State before the first compaction that this request finished."""
    _tried: list[Compaction] = field(default_factory=list)
    """Results of all attempted compactions, in order."""
    _postponed: Sequence[SummaryChunk] = ()
    """Simulated chunks of a dry run. A real request would leave these chunks to a background compaction."""
    _mask_is_put_off: bool = False
    """True if a due mask was not set because it costs more than it saves."""
    _options: SummaryOptions | None = None

    async def prepare(self) -> Decision:
        """Set due masks, make due summaries, and choose the payload. Only a dry run may raise `StoreUnavailable`."""
        if (early := self.request.decide_early()) is not None:
            return await self._leave_out_thinking(early)
        try:
            await self._read()
            await self._mask()
            while not self.state.needs_no_summary:
                self._tried.append(await self._compact())
                if not _should_replan(self._tried[-1]):
                    break
                await self._read()
                await self._mask()
        except StoreUnavailable:
            if self.compactor.is_dry_run:
                raise
            self._tried.append(Compaction((), Outcome.STORE_AWAY))
        if self.is_without_store:
            self.state = await self._compute(self._remembered)
        await self._learn_gain()
        decision = await self._compute(self._choose)
        if not self.is_refused:
            decision = await self._recall(decision)
        return await self._leave_out_thinking(decision)

    async def prepare_smaller(self) -> Decision:
        """Decide again, with a smaller budget, after the provider refused the request for its size. Make a summary only
        if the view does not fit without a new summary. Add no quotations."""
        store_away, self.is_refused = False, True
        try:
            await self._read()
        except StoreUnavailable:
            store_away = True
        if self.request.policy.summarises and not await self._compute(lambda: self.state.can_do_without_summary):
            return await self.prepare()
        if store_away:
            self._tried.append(Compaction((), Outcome.STORE_AWAY))
        return await self._leave_out_thinking(await self._compute(self._choose))

    async def step_down(self, refused: Decision, said: str) -> Decision:
        """Return a simpler decision without quotations, because the provider refused the order of messages in a
        view. If there is no simpler decision, return `refused`. `said`: the provider's message."""
        with suppress(StoreUnavailable):
            await self._read()  # Read the stored pins.
        state, why = await self._begin(), because(Code.PAYLOAD_REFUSED, said)
        lower = await self._compute(lambda: simpler_decision(state, refused.status, why))
        return refused if lower is None else await self._leave_out_thinking(lower)

    async def merge_roles(self, refused: Decision, said: str) -> Decision:
        """Return the same view with alternating roles, after the provider refused two consecutive messages of one role.
        If that is impossible, return a simpler view."""
        state = await self._begin()
        if (merged := await self._compute(lambda: with_alternating_roles(state, refused))) is not None:
            return await self._leave_out_thinking(merged)
        return await self.step_down(refused, said)

    async def make_ahead(self, target: int) -> None:
        """Make the compaction that later requests will need, unless there are `_objections` or the last attempt failed.
        `target`: target of later requests, in tokens. If a mask alone meets this target, make no summary."""
        self.waits = False
        with suppress(StoreUnavailable):
            await self._read()
            # If a mask is enough, the next request sets it. A mask needs no call to a model.
            then = replace(self.state, budget=replace(self.state.budget, target=target))
            if self.state.needs_no_summary or (await self._affordable_mask(then))[0]:
                return
            plan, costs_too_much = await self._due_plan()
            if plan is None or costs_too_much:
                return
            recent = self.compactor.recent_attempts(self.request, plan)
            if recent.failed_last:
                return
            if not await self._objections(recent):
                self._tried.append(await self._make(plan))
            await self._learn_gain()

    # Results so far

    @property
    def finished(self) -> list[Compaction]:
        """Return the compactions that this request started and that ended before its deadline."""
        return [compaction for compaction in self._tried if compaction.is_finished]

    @property
    def made(self) -> tuple[SummaryChunk, ...]:
        return tuple(chunk for compaction in self.finished for chunk in compaction.made)

    @property
    def is_without_store(self) -> bool:
        return bool(self._tried) and self._tried[-1].outcome is Outcome.STORE_AWAY

    # Reading and masking

    async def _compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history, in a worker thread if the history is long."""
        return await self.request.beside(self.compactor.work.do, step)

    async def _begin(self) -> PlanningState:
        if not hasattr(self, "state"):
            self.state = await self._compute(lambda: _initial_state(self.request))
        return self.state

    async def _read(self) -> None:
        """Read the stored pins, chunks and masks, and update the state. May raise `StoreUnavailable`."""
        request, state = self.request, await self._begin()
        stored = await self.compactor.read_prefix(request)

        def with_stored() -> PlanningState:
            pinned = state.with_pins(tuple(sorted({*request.pins, *stored.pins})))
            read = pinned.with_chunks(stored.chunks).with_boundaries(stored.boundaries)
            _ = read.needs_no_summary  # Compute and cache the views in this thread: the event loop needs them next.
            return read

        self.state = await self._compute(with_stored)
        self._stored = self._stored or self.state

    async def _mask(self) -> None:
        """Set the due mask, unless it costs too much. May raise `StoreUnavailable`."""
        boundary, self._mask_is_put_off = await self._affordable_mask(self.state)
        if boundary is not None:
            await self.compactor.keep_mask(self.request, boundary)
            self.state = self.state.with_boundaries([boundary])
            await self._compute(lambda: self.state.needs_no_summary)

    async def _affordable_mask(self, state: PlanningState) -> tuple[MaskBoundary | None, bool]:
        """Return the due mask or None, and whether Steno rejects a due mask because it costs more than it saves."""
        boundary = await self._compute(lambda: due_mask(state))
        if boundary is None or not self.request.policy.cost_gate:
            return boundary, False
        rates = self.compactor.prices(self.request).rates
        costs_too_much = await self._compute(lambda: mask_costs_too_much(state, boundary, rates))
        return None if costs_too_much else boundary, costs_too_much

    def _remembered(self) -> PlanningState:
        """Return the state with the chunks in memory. If the view exceeds the limit, add the due mask."""
        state = self.state.with_chunks(self.compactor.remembered(self.request))
        if not state.can_do_without_summary and (boundary := due_mask(state)) is not None:
            state = state.with_boundaries([boundary])
        return state

    # Due compactions

    async def _compact(self) -> Compaction:
        """Make the due compaction, or wait for the process that makes it. Do nothing if a background compaction is
        enough, if there are `_objections`, or if the compaction or a due mask costs more than it saves."""
        plan, costs_too_much = (None, True) if self._mask_is_put_off else await self._due_plan()
        if costs_too_much:
            return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))
        if plan is None:
            return Compaction((), Outcome.NOTHING_TO_SUMMARISE)
        recent = self.compactor.recent_attempts(self.request, plan)
        if why := await self._objections(recent):
            return Compaction((), Outcome.NOT_BEGUN, why)
        # A compaction that was announced to the client cannot run in the background.
        can_wait = self.may_postpone and self.announced is None and recent.comes_back and not recent.failed_last
        if can_wait and self.state.widest_view.tokens <= most_without_summary(self.request.budget):
            if self.compactor.is_dry_run:
                self._postponed = (await self.compactor.make(self.request, await self._job(plan))).made
            return Compaction((), Outcome.IN_BACKGROUND)
        return await self._make(plan)

    async def _due_plan(self) -> tuple[Plan | None, bool]:
        """Return the due compaction or None, and whether it costs too much. Once the request has finished a compaction,
        ignore the costs of further compactions."""
        state, options, series, prices = self.state, self._summary_options(), self.request.series, Prices()
        if state.policy.cost_gate and not self.finished:
            prices = self.compactor.prices(self.request, options.model)

        def plan() -> tuple[Plan | None, bool]:
            path, known = state.widest_path, state.chunks
            due = plan_compaction(state.conversation, path, state.budget, options, series, known)
            if due is None:
                return None, False
            _ = state.can_do_without_summary
            return due, plan_costs_too_much(state, due, options, prices)

        return await self._compute(plan)

    def _summary_options(self) -> SummaryOptions:
        """Return the summary options. They stay the same during the request, even if Steno learns another window."""
        if self._options is None:
            self._options = self.compactor.summary_options(self.request)
        return self._options

    async def _objections(self, recent: RecentAttempts) -> Reasons:
        """Return the reasons why the request must not start a compaction now; empty if it may."""
        if recent.blocked is not None:
            return because(recent.blocked)
        can_do_without = self.state.can_do_without_summary
        if recent.paused is not None and (can_do_without or self.request.policy.prune):
            return (*recent.paused, Reason(Code.SUMMARY_FAILED_LATELY))
        if can_do_without:
            request, conversation = self.request, self.request.conversation
            first_chunks = await self.compactor.read_first_chunks(request)
            if found := successions(conversation, first_chunks, request.conversation_id, named=request.named):
                heads = tuple(possible_heads(conversation.transcript, conversation.chain))
                if changes_every_turn(conversation, found, await self.compactor.read_heads(request, heads)):
                    return because(Code.HISTORY_CHANGES_EVERY_TURN)
        finished = self.finished
        if not finished or (len(finished) < ROUNDS and finished[-1].outcome is not Outcome.DELETED):
            return ()
        return finished[-1].reasons or because(Code.SUMMARIES_NOT_ENOUGH)

    async def _make(self, plan: Plan) -> Compaction:
        """Make a compaction under its lease, and add its chunks to the state; or wait for the holder of the lease."""
        state, compaction = self.state, await self.compactor.make(self.request, await self._job(plan))
        if compaction.is_finished:
            self._before = self._before or state
            self.state = state.with_chunks(compaction.made)
        return compaction

    async def _job(self, plan: Plan) -> CompactionJob:
        request, state, options, cached = self.request, self.state, self._summary_options(), None
        if options.style == "prefix" and plan.base == state.widest_path:
            # This view is in the provider's cache, where the summariser can read it.
            cached = (await self._recall(Decision(state.widest_view))).view
        conversation, id_ = state.conversation, request.conversation_id
        builder = ChunkBuilder(conversation, id_, plan, request.budget, options, request.count, cached)

        def announce() -> None:
            if self.announced is None:
                self.announced = CompactionStart(f"cmp_{plan.range.through_digest.hex()[:24]}", plan.messages)
                if self.announce is not None:
                    self.announce(self.announced)

        return CompactionJob(builder, tuple(state.chunks), announce, self.deadline, self.waits)

    async def _learn_gain(self) -> None:
        before, after = self._before, self.state
        if before is not None and not self.is_without_store and self.made and self.finished[-1].is_whole:
            freed = await self._compute(lambda: (before.widest_view.tokens, after.widest_view.tokens))
            self.compactor.learn_gain(self.request, *freed)

    # Choosing the view

    def _choose(self) -> Decision:
        state, made = self.state, self.made
        why = self._tried[-1].reasons if self._tried else ()  # Why no compaction brought the view under the trigger.
        has_failed = self.announced is not None and not made
        settled = settle(state, why, has_failed=has_failed, is_refused=self.is_refused)
        why = settled.why or (because(Code.STORAGE) if self.is_without_store else ())
        earlier = earlier_steps(self._stored, state, self._tried, mask_is_put_off=self._mask_is_put_off)
        return replace(
            settled,
            steps=(*earlier, *settled.steps),
            budget=state.budget,
            made=(*made, *self._postponed),
            why=why,
        )

    async def _recall(self, decision: Decision) -> Decision:
        """Add quotations: passages of omitted messages that match the last user message."""
        request, view = self.request, decision.view
        if view is None or not (request.recalls and request.budget.recall):
            return decision
        if request.budget.line.to_provider_tokens(request.conversation.tokens) > MOST_SEARCHED:
            return replace(decision, why=(*decision.why, Reason(Code.RECALL_TOO_LONG)))
        found = await self.compactor.recall_index.recalled(request, view)
        if await self._compute(lambda: request.can_mark_cache(found)):
            found = replace(found, marks_cache=True)
        return decision if found == view else replace(decision, view=found, actions=found.actions)

    async def _leave_out_thinking(self, decision: Decision) -> Decision:
        """Remove the signed thinking of finished turns, and thinking that the provider refused."""
        request, conversation = self.request, self.request.conversation
        if not conversation.history.holds_signed_thinking or (decision.view is None and not request.thinking_from):
            return decision
        start = max(current_turn(conversation) + 1, request.thinking_from)
        view = await self._compute(lambda: without_thinking(conversation, decision.view, start, request.cost))
        return decision if view is None or view is decision.view else replace(decision, view=view, actions=view.actions)


def _initial_state(request: ChatRequest) -> PlanningState:
    conversation, budget = request.conversation, request.budget
    _ = conversation.cut_digests  # Compute and cache the digests in this thread: the event loop needs them next.
    room = budget.steady_estimate(WORDS_SHARE * budget.line.to_provider_tokens(budget.room))
    words = OmittedWords(conversation, room, request.count)
    return initial_state(conversation, request.policy, budget, request.cost, tuple(sorted({*request.pins})), words)


def _should_replan(compaction: Compaction) -> bool:
    """Return True if the stored chunks may have changed, so that Steno must plan the request again."""
    is_elsewhere = compaction.outcome in (Outcome.LEASE_LOST, Outcome.DELETED, Outcome.AWAITED)
    return is_elsewhere or (compaction.is_whole and bool(compaction.made))


@dataclass(kw_only=True)
class Compactor(LeasedCompaction):
    """Compactor of all requests, with the store, the summariser and the memory of this process. Methods that use the
    store may raise `StoreUnavailable`."""

    recall_index: RecallIndexCache
    breaker: HistoryBreaker = field(default_factory=HistoryBreaker)
    is_dry_run: ClassVar[bool] = False

    def for_request(
        self, request: ChatRequest, announce: Announce | None = None, *, may_postpone: bool = False
    ) -> RequestCompactor:
        """`may_postpone`: whether a request that fits may leave its due summary to a background compaction."""
        return RequestCompactor(request, self, announce, monotonic() + request.wait_seconds, may_postpone)

    def dry_run(self, request: ChatRequest) -> RequestCompactor:
        """Return a compactor that reads the store, simulates the due summaries, and stores nothing."""
        return RequestCompactor(request, DryRun(**vars(self)), may_postpone=True)

    async def make_ahead(self, request: ChatRequest, target: int) -> None:
        await self.for_request(request).make_ahead(target)

    async def read_prefix(self, request: ChatRequest) -> Stored:
        conversation, policy, key = request.conversation, request.policy, request.conversation_key
        chain, history = conversation.chain, conversation.history
        # Only tool results and media are masked.
        masks = policy.mask.key if policy.mask and (history.holds_answers or history.holds_media) else None
        stored = await self.store.read_prefix(
            *key,
            chain.digests,
            conversation.cut_digests,
            series=request.series if policy.summarises else None,
            masks=masks,
            bind=not self.is_dry_run,
        )
        self.memory.keep(key, request.series, stored.chunks)
        boundaries = (MaskBoundary(chain.positions[digest], chain.positions[start]) for digest, start in stored.masks)
        return Stored(stored.pins, tuple(stored.chunks), tuple(boundaries))

    async def keep_mask(self, request: ChatRequest, boundary: MaskBoundary) -> None:
        is_erased = self.store.is_erased(*request.conversation_key, request.epoch)
        if (mask := request.policy.mask) is not None and not is_erased:
            chain = request.conversation.chain
            digests = chain[boundary.position], chain[boundary.start]
            await self.store.keep_mask(request.tenant, mask.key, *digests, request.conversation_id)

    async def read_first_chunks(self, request: ChatRequest) -> Sequence[FirstChunk]:
        """Return recent chunks that begin at a history's first message, if this request has their last message."""
        digests = [message.digest for message in request.conversation.transcript.messages]
        return await self.store.read_first_chunks(request.tenant, request.series, digests, REWRITTEN_WITHIN_SECONDS)

    async def read_heads(self, request: ChatRequest, digests: Sequence[bytes]) -> Collection[bytes]:
        """Return those of the digests that the store has as heads of a conversation."""
        return [head.digest for head in await self.store.heads(request.tenant, tuple(digests))]

    def remembered(self, request: ChatRequest) -> Sequence[SummaryChunk]:
        """Return the chunks in memory, for use while the store is unavailable."""
        return self.memory.chunks_in(request.conversation_key, request.series, request.conversation.cut_digests)

    def summary_options(self, request: ChatRequest) -> SummaryOptions:
        return self.routing.options(request, warm=self.ledger.is_warm(*request.conversation_key, request.model))

    def prices(self, request: ChatRequest, summariser: str | None = None) -> Prices:
        price_of, warm = self.ledger.price_of, self.ledger.is_warm(*request.conversation_key, request.model)
        price, price_there = price_of(request.model), summariser and price_of(summariser)
        if price is None or (summariser and price_there is None):
            # A known price is not comparable with `COMMON_PRICE`, so both prices are replaced.
            price, price_there = COMMON_PRICE, summariser and COMMON_PRICE
        return Prices(rates_of(price, warm=warm), price_there or None, self.routing.is_by_own_model(request))

    def recent_attempts(self, request: ChatRequest, plan: Plan) -> RecentAttempts:
        conversation, key = request.conversation_key, request.history_key(plan.range.from_digest)
        is_enabled = request.measure.rules.compaction.background.enabled
        blocked = self.breaker.blocks(request.history_key(), request.conversation.tokens, request.budget.room)
        return RecentAttempts(
            blocked=Code.STOPPING if self.tasks.draining else blocked,
            paused=self.backoff.pauses(key),
            failed_last=self.backoff.failed_last(key),
            comes_back=is_enabled and self.rates.of(conversation).is_likely_to_continue,
        )

    def learn_gain(self, request: ChatRequest, before: int, after: int) -> None:
        """Tell the breaker the tokens of the request's view before and after its compactions. The breaker pauses the
        compactions of a history if they free too little."""
        self.breaker.finished(request.history_key(), request.conversation.tokens, before, after, request.budget.room)

    def count_reused(self, decision: Decision) -> None:
        """Count, in the metrics, the payload's summaries that earlier requests made."""
        made = {chunk.id for chunk in decision.made}
        chunks = decision.view.chunks if decision.view else ()
        self.metrics.chunks["reused"].inc(sum(chunk.id not in made for chunk in chunks))

    def forget(self, erased: Erased) -> None:
        for memory in (self.recall_index, self.memory, self.rates):
            memory.forget(erased)


class DryRun(Compactor):
    """Compactor for a dry run. It stores nothing, waits for no other process, and simulates the summaries."""

    is_dry_run = True

    async def keep_mask(self, request: ChatRequest, boundary: MaskBoundary) -> None:
        """Store nothing."""

    async def read_first_chunks(self, request: ChatRequest) -> Sequence[FirstChunk]:  # noqa: ARG002
        return ()

    def recent_attempts(self, request: ChatRequest, plan: Plan) -> RecentAttempts:
        """Ignore shutdown, breaker and pauses after failures, which are temporary."""
        return replace(super().recent_attempts(request, plan), blocked=None, paused=None)

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction:
        return await make_chunks(job.builder, _ImaginedCalls(request, self.work))


class _ImaginedCalls(Struct):
    """Simulated summary calls of a dry run. An answer has about as many words as the prompt allows."""

    request: ChatRequest
    work: WorkerThreads

    async def compute(self, step: Callable[[], T]) -> T:
        return await self.request.beside(self.work.do, step)

    async def ask(self, call: SummaryRequest) -> SummaryAnswer:
        return SummaryAnswer(" a" * (call.max_tokens // 2))

    async def keep(self, chunk: SummaryChunk, _: SummaryAnswer) -> SummaryChunk:
        return chunk

    def reject(self, _: SummaryAnswer) -> None:
        """Record nothing."""
