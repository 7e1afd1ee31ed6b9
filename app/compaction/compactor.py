"""The compactor: chooses the payload of a request, and has the summaries made that it needs.

`Preparation.prepare` is the way of a request from top to bottom:

    read the stored chunks and masks, and set the mask that is due
    while a compaction is due: make it, or wait for the process that makes it; read and mask again
    choose the first view that holds; quote recalled passages; leave out the thinking of finished turns

The other methods are the same steps in another order: a dry run, a request that its provider refused, a compaction that
a client asks for, and one made ahead. Steps over a whole history run off the event loop where it is long (`compute`).
If the store is away, the chunks that this process remembers are used, and no summary is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import TypeVar

from msgspec.structs import replace

from app.compaction.budget import most_without_summary
from app.compaction.chunks import Compaction, Outcome, SummaryChunk
from app.compaction.fallback import Decision, Status, Step, merge_roles, settle, step_down
from app.compaction.fallback import untouched as needs_nothing
from app.compaction.lease import CompactionJob, CompactionStart, OnStart, ignore_start
from app.compaction.mask import Boundary
from app.compaction.parts import DryRun, Lately, LiveParts, Parts
from app.compaction.plan import Plan, calls_of_plan, change_of_mask, change_of_plan, cut_at, plan_asked, plan_compaction
from app.compaction.policy import SummaryBrief
from app.compaction.request import ChatRequest, Request
from app.compaction.select import (
    Path,
    PlanningState,
    build_view,
    changes_every_turn,
    due_mask,
    initial_state,
    successions,
    without_summary,
)
from app.compaction.summarizer import SummaryWork
from app.compaction.view import View, current_turn, without_thinking
from app.conversation.reasons import Code, Reason, Reasons, because
from app.conversation.recognition import possible_heads
from app.runtime.caches import Erased
from app.store import StoreUnavailable
from app.tokens.cost_gate import CostGate, is_worth

T = TypeVar("T")

ROUNDS = 3
"""Compactions that one request begins at most: after a lost lease, or one that did not suffice, it plans again."""


def untouched(request: Request) -> Decision | None:
    """The decision that needs neither the store nor a summary; None if more is to be decided."""
    early = needs_nothing(request.conversation, request.policy, request.budget, request.model)
    if early is not None or request.compaction:
        return early
    return Decision(None, why=because(Code.COMPACTION_OFF))


class Compactor:
    def __init__(self, parts: LiveParts, dry_run: DryRun) -> None:
        self._parts = parts
        self._dry_run = dry_run
        self.running = parts.running

    async def prepare(
        self, request: ChatRequest, on_start: OnStart = ignore_start, *, may_postpone: bool = False
    ) -> Decision:
        """Choose the payload for an answer. `on_start` is called when a summary is made for it. With `may_postpone` a
        summary may be left to the background where the request can be sent without."""
        decision = await self._preparation(request, on_start, may_postpone=may_postpone).prepare()
        self._parts.metrics.reused(_reused(decision))
        return decision

    async def simulate(self, request: ChatRequest, *, summaries: bool) -> Decision:
        """Decide as a dry run, which makes and keeps nothing. With `summaries` those that are due are imagined, which
        raises `StoreUnavailable` without the database."""
        return await Preparation(request, self._dry_run).simulate(summaries=summaries)

    async def recover(self, request: ChatRequest, on_start: OnStart) -> Decision:
        """Decide again after a refusal for the size, by the request's corrected budget: without a summary where that
        reaches it, and with nothing recalled."""
        return await self._preparation(request, on_start).recover()

    async def step_down(self, request: ChatRequest, refused: Decision, said: str) -> Decision:
        """Decide again after a refusal of a view's shape: one step lower; the refused decision if nothing is better.
        `said`: the provider's words."""
        return await self._preparation(request).step_down(refused, said)

    async def merge_roles(self, request: ChatRequest, refused: Decision, said: str) -> Decision:
        """Decide again after a refusal of two messages of one role in a row: the same view with alternating roles; one
        step lower where that cannot be."""
        return await self._preparation(request).merge_roles(refused, said)

    async def compact(self, request: ChatRequest, position: int) -> Decision:
        """Summarise everything before a position because a client asks for it, whatever that frees. Raises
        `StoreUnavailable`."""
        return await self._preparation(request).compact(position)

    async def make_ahead(self, request: ChatRequest, target: int) -> None:
        """Make the summary that requests to come need. `target`: tokens that a mask has to reach then."""
        await self._preparation(request).make_ahead(target)

    def shape_refused(self, request: ChatRequest, status: Status, why: Reasons) -> None:
        """Remember that views of this status are refused for their shape: the step below was answered."""
        self._parts.shape_refused(request, status, why)

    def forget(self, erased: Erased) -> None:
        """Forget what was erased."""
        self._parts.forget(erased)

    def forget_summaries(self, tenant: str, ids: Sequence[str]) -> None:
        """Forget summaries that were edited or deleted. Other processes do when they read the conversation next."""
        self._parts.forget_summaries(tenant, ids)

    def _preparation(
        self, request: ChatRequest, on_start: OnStart = ignore_start, *, may_postpone: bool = False
    ) -> Preparation:
        deadline = monotonic() + request.wait_seconds
        return Preparation(request, self._parts, on_start, deadline, may_postpone=may_postpone)


@dataclass(slots=True, eq=False)
class Preparation:
    """One request's way through the compactor, and what was read, tried and made on it."""

    request: Request
    parts: Parts
    on_start: OnStart = ignore_start
    deadline: float = 0.0
    """Time by the monotonic clock, in seconds, until which a compaction may hold the request."""
    may_postpone: bool = False
    waits: bool = True
    """False if another process's compaction is not waited for: no request needs it yet."""
    announced: CompactionStart | None = None
    """Compaction that was announced to the client: the first one alone is."""
    has_waited: bool = False
    """True once this request has waited for another request's compaction."""
    own: list[Compaction] = field(default_factory=list)
    """Compactions of its own that came to an end in time."""
    latest: Compaction | None = None
    """Result of the latest compaction that was due; None before any was."""
    _state: PlanningState | None = None
    _stored: PlanningState | None = None
    """State as the store said first; None if it did not answer."""
    _before: PlanningState | None = None
    """State before the first compaction of its own."""
    _tried: list[Compaction] = field(default_factory=list)
    """Results of everything that was due, in order."""
    _postponed: Sequence[SummaryChunk] = ()
    """Chunks that the background would make, in a dry run."""
    _mask_is_put_off: bool = False
    """True if a mask was due that would have cost more than it saves."""
    _has_set_a_mask: bool = False
    _options: SummaryBrief | None = None

    # The ways

    async def prepare(self, *, recalls: bool = True) -> Decision:
        """Choose the payload for an answer. Due masks are set and due summaries made before."""
        if (early := untouched(self.request)) is not None:
            return await self._without_due_thinking(early)
        if (lower := await self._decide_after_refusal()) is not None:
            return lower
        await self._make_what_is_due()
        await self._report_savings()
        decision = await self._settle()
        if recalls:
            decision = await self._recall(decision)
        return await self._without_due_thinking(decision)

    async def simulate(self, *, summaries: bool) -> Decision:
        """Look at the store once, and imagine what would be made."""
        self.may_postpone = True
        if (early := untouched(self.request)) is not None:
            return await self._without_due_thinking(early)
        try:
            await self._read()
            await self._mask()
            if summaries and not self.state.is_settled:
                self._came_to(await self._compact_if_worth_it())
        except StoreUnavailable:
            if summaries:
                raise
            return Decision(None, why=because(Code.STORAGE))
        return await self._without_due_thinking(await self._recall(await self._settle()))

    async def recover(self) -> Decision:
        store_away = False
        try:
            await self._read()
        except StoreUnavailable:
            store_away = True
        if self.request.policy.summarises and not await self._compute(lambda: self.state.can_do_without_summary):
            return await self.prepare(recalls=False)
        if store_away:
            self._came_to(Compaction((), Outcome.STORE_AWAY))
        return await self._without_due_thinking(await self._settle())

    async def step_down(self, refused: Decision, said: str) -> Decision:
        lower = await self._decide_below(refused.status, because(Code.PAYLOAD_REFUSED, said))
        return refused if lower is None else lower

    async def merge_roles(self, refused: Decision, said: str) -> Decision:
        state = await self._begin()
        if (merged := await self._compute(lambda: merge_roles(state, refused))) is not None:
            return await self._without_due_thinking(merged)
        return await self.step_down(refused, said)

    async def compact(self, position: int) -> Decision:
        """Make everything up to a position, until it is there. Raises `StoreUnavailable`."""
        request = self.request
        while True:
            await self._read()
            path, plan = await self._plan_to(position)
            if plan is None:
                if not path.chunks:
                    return Decision(None, why=because(Code.NOTHING_TO_SUMMARISE))
                # Of the bare history: what is pinned or said again is for a payload, and this is none.
                view = build_view(request.conversation, path)
                return Decision(view, view.actions, made=self.made)
            if why := self._no_more_rounds():
                return Decision(None, why=why)
            if self.parts.lately(request, plan).stopping:
                return Decision(None, why=because(Code.STOPPING))
            self.latest = await self._make(plan)
            if not _should_replan(self.latest):
                if self.is_without_store:
                    raise StoreUnavailable("the database went away while the summary was made")
                return Decision(None, why=self.why)

    async def make_ahead(self, target: int) -> None:
        """Make the one compaction that will be due, unless something is against it. What failed is not tried again
        before a request that needs it has."""
        self.waits = False
        with suppress(StoreUnavailable):
            await self._read()
            if self.state.is_settled or await self._will_be_masked(target):
                return
            plan = await self._due_plan()
            if plan is None:
                return
            lately = self.parts.lately(self.request, plan)
            if lately.failed_last or await self._costs_too_much(plan):
                return
            if not await self._objections(lately):
                self.latest = await self._make(plan)
            await self._report_savings()

    # What is known so far

    @property
    def state(self) -> PlanningState:
        if self._state is None:
            raise RuntimeError("nothing has begun")
        return self._state

    @property
    def made(self) -> tuple[SummaryChunk, ...]:
        return tuple(chunk for compaction in self.own for chunk in compaction.made)

    @property
    def why(self) -> Reasons:
        """Reasons why no compaction brought the view under the trigger."""
        return self.latest.reasons if self.latest else ()

    @property
    def is_without_store(self) -> bool:
        return self.latest is not None and self.latest.outcome is Outcome.STORE_AWAY

    def _announce(self, plan: Plan) -> None:
        """Announce a compaction to the client; the first one alone is."""
        if self.announced is None:
            self.announced = CompactionStart.of(plan)
            self.on_start(self.announced)

    def _came_to(self, compaction: Compaction) -> None:
        self._tried.append(compaction)
        self.latest = compaction

    def _steps(self) -> Iterator[Step]:
        """Steps that were looked at and made."""
        if (stored := self._stored) is not None:
            least = stored.least_view
            view = least or stored.widest_view
            yield Step("stored", "fits" if least else "too_large", view.tokens, len(view.chunks))
            if set(self.state.boundaries) - set(stored.boundaries):
                yield Step("mask", "set")
        if self._mask_is_put_off:
            yield Step("mask", "put_off")
        for compaction in self._tried:
            tokens = sum(chunk.tokens for chunk in compaction.made) if compaction.made else None
            name = compaction.outcome.name.lower()
            yield Step("summarise", name, tokens, len(compaction.made), compaction.reasons)

    # Reading and masking

    async def _compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history: off the event loop where that is long."""
        return await self.parts.compute(self.request, step)

    async def _begin(self) -> PlanningState:
        if self._state is None:
            self._state = await self._compute(lambda: _initial_state(self.request))
        return self._state

    async def _read(self) -> None:
        """Read what is stored of the history, and work out what follows from it. Raises `StoreUnavailable`."""
        request, state = self.request, await self._begin()
        stored = await self.parts.read_prefix(request)

        def with_stored() -> PlanningState:
            pinned = state.with_pins(request.all_pins(stored.pins))
            read = pinned.with_chunks(stored.chunks).with_boundaries(stored.boundaries)
            _ = read.is_settled
            return read

        self._state = await self._compute(with_stored)
        self._stored = self._stored or self._state

    async def _mask(self) -> None:
        state = self.state
        boundary = await self._compute(lambda: due_mask(state))
        self._mask_is_put_off = boundary is not None and await self._mask_costs_too_much(state, boundary)
        if boundary is not None and not self._mask_is_put_off:
            await self._keep_masks(state.with_boundaries([boundary]))

    async def _keep_masks(self, masked: PlanningState) -> None:
        """Go on with a state, and store the boundaries that it has beyond those that were found."""
        for boundary in masked.boundaries:
            if boundary not in self.state.boundaries:
                await self.parts.keep_mask(self.request, boundary)
                self._has_set_a_mask = True
        self._state = masked
        await self._compute(lambda: masked.is_settled)

    # Making what is due

    async def _make_what_is_due(self) -> None:
        """Make the compactions that are due, and read again after each. While the store is away, use the chunks of this
        process, and mask where even that is too large."""
        try:
            while True:
                await self._read()
                await self._mask()
                if self.state.is_settled and not self._is_unfinished():
                    break
                compaction = await self._compact_if_worth_it()
                self._came_to(compaction)
                if not _should_replan(compaction):
                    break
        except StoreUnavailable:
            self._came_to(Compaction((), Outcome.STORE_AWAY))
        if self.is_without_store:
            self._state = await self._compute(self._remembered)

    def _remembered(self) -> PlanningState:
        """The state with the chunks that this process remembers, masked where it is too large without a summary."""
        state = self.state.with_chunks(self.parts.remembered(self.request))
        if not state.can_do_without_summary and (boundary := due_mask(state)) is not None:
            state = state.with_boundaries([boundary])
        return state

    async def _compact_if_worth_it(self) -> Compaction:
        """Make the due compaction, or wait for the process that makes it. None is made in place of a mask that would
        do."""
        if self._mask_is_put_off:
            return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))
        plan = await self._due_plan()
        if plan is None:
            return Compaction((), Outcome.NOTHING_TO_SUMMARISE)
        if not self.own and await self._costs_too_much(plan):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))
        lately = self.parts.lately(self.request, plan)
        if why := await self._objections(lately):
            return Compaction((), Outcome.NOT_BEGUN, why)
        if not lately.failed_last and (state := await self._state_without_summary()) is not None:
            self._postponed = await self.parts.postpone(self.request, await self._job(plan))
            await self._keep_masks(state)
            return Compaction((), Outcome.IN_BACKGROUND)
        return await self._make(plan)

    async def _make(self, plan: Plan) -> Compaction:
        """Make a compaction under its lease, or wait for the result of the process that holds it."""
        job = await self._job(plan)
        compaction = await self.parts.make(self.request, job)
        if compaction is not None:
            await self._take(compaction)
            return compaction
        if not self.waits:
            return Compaction((), Outcome.TAKES_TOO_LONG)
        self.has_waited = True
        ended = await self.parts.wait(self.request, job)
        return Compaction((), Outcome.AWAITED if ended else Outcome.TAKES_TOO_LONG)

    async def _take(self, compaction: Compaction) -> None:
        """Go on with the chunks of a compaction of its own, if that came to an end."""
        if compaction.outcome in (Outcome.NOT_BEGUN, Outcome.TAKES_TOO_LONG, Outcome.AWAITED):
            return
        state = self.state
        self._before = self._before or state
        self.own.append(compaction)
        self._state = state.with_chunks(compaction.made)

    async def _due_plan(self) -> Plan | None:
        state, options, series = self.state, self._summary_options(), self.request.series

        def plan() -> Plan | None:
            return plan_compaction(
                state.conversation, state.widest_path, state.budget, options, series, state.masked_before, state.chunks
            )

        return await self._compute(plan)

    async def _plan_to(self, position: int) -> tuple[Path, Plan | None]:
        """The path that there is up to a position, and the compaction that extends it to there; None if that is all."""
        state, options, series = self.state, self._summary_options(), self.request.series

        def plan() -> tuple[Path, Plan | None]:
            cut = cut_at(state.conversation, state.chunks, position)
            path = state.widest_path_to(cut)
            return path, plan_asked(state.conversation, path, options, series, cut, state.chunks)

        return await self._compute(plan)

    def _summary_options(self) -> SummaryBrief:
        """How summaries are made for the request, as the windows were known when that was needed first."""
        if self._options is None:
            self._options = self.parts.summary_options(self.request)
        return self._options

    async def _job(self, plan: Plan) -> CompactionJob:
        request, state, options = self.request, self.state, self._summary_options()
        talk, cached = state.conversation, await self._cached_view(plan)
        work = SummaryWork(talk, request.conversation_id, plan, request.budget, options, request.count, cached)
        announce = partial(self._announce, plan)
        return CompactionJob(work, tuple(state.chunks), self.has_waited, announce, self.deadline)

    async def _cached_view(self, plan: Plan) -> View | None:
        """The view that the provider has in its cache, if the summariser is to read that."""
        state = self.state
        if self._summary_options().style != "prefix" or plan.base != state.widest_path:
            return None
        return (await self._recall(Decision(state.widest_view))).view

    async def _state_without_summary(self) -> PlanningState | None:
        """The state that is sent without this compaction, which is then made in the background; None: it waits.

        It is not shortened for a compaction that would find no room there.
        """
        if not self.may_postpone or self.announced is not None:
            return None
        there = self.parts.background(self.request)
        if not there.comes_back:
            return None
        state, most = self.state, most_without_summary(self.request.budget)
        return await self._compute(lambda: without_summary(state, most, shortens=there.has_room))

    # What is against a compaction

    async def _objections(self, lately: Lately) -> Reasons:
        """Reasons why the due compaction is not begun."""
        state = self.state
        if lately.stopping:
            return because(Code.STOPPING)
        if lately.blocked is not None:
            return because(lately.blocked)
        can_do_without = await self._compute(lambda: state.can_do_without_summary)
        if lately.paused is not None and (can_do_without or self.request.policy.prune):
            return (*lately.paused, Reason(Code.SUMMARY_FAILED_LATELY))
        if can_do_without and await self._changes_every_turn():
            return because(Code.HISTORY_CHANGES_EVERY_TURN)
        return self._no_more_rounds()

    async def _changes_every_turn(self) -> bool:
        request, conversation = self.request, self.request.conversation
        recent = await self.parts.read_first_chunks(request)
        found = successions(conversation, recent, request.conversation_id, named=request.named)
        if not found:
            return False
        seen = await self.parts.read_heads(request, tuple(possible_heads(conversation.transcript, conversation.chain)))
        return changes_every_turn(conversation, found, seen)

    def _no_more_rounds(self) -> Reasons:
        """Reasons why the request begins no further compaction; none if it may."""
        last = self.own[-1] if self.own else None
        if last is None or (len(self.own) < ROUNDS and last.outcome is not Outcome.DELETED):
            return ()
        return last.reasons or because(Code.SUMMARIES_NOT_ENOUGH)

    def _is_unfinished(self) -> bool:
        """True if its last compaction took in as much as one does, and the rest is for the next one. What is made so
        far may be under the trigger, but it is not what was planned, and would be too large again soon."""
        if not self.own or not self.own[-1].is_whole or len(self.own) >= ROUNDS:
            return False
        path = self.state.widest_path
        return bool(path.chunks) and path.chunks[-1].continued

    async def _report_savings(self) -> None:
        """Tell the breaker what the request's own compactions freed: after too little, the history is left alone for a
        while."""
        before, after = self._before, self.state
        if before is not None and not self.is_without_store and self.made and self.own[-1].is_whole:
            freed = await self._compute(lambda: (before.widest_view.tokens, after.widest_view.tokens))
            self.parts.freed(self.request, *freed)

    async def _costs_too_much(self, plan: Plan) -> bool:
        """True if a compaction is to wait for its price. One that only folds costs little, and is due for its size."""
        state, gate = self.state, await self._cost_gate(self.state)
        if gate is None or not plan.spans:
            return False
        options = self._summary_options()
        prices = self.parts.prices(self.request, options.model)
        rates, price = prices.rates, prices.summariser
        if rates is None or price is None:
            return False
        read_at = rates if prices.reads_warm else None

        def is_worth_it() -> bool:
            calls = calls_of_plan(state.conversation, plan, state.budget, options, price, read_at)
            return is_worth(change_of_plan(state, plan, options), rates, gate, calls)

        return not await self._compute(is_worth_it)

    async def _mask_costs_too_much(self, state: PlanningState, boundary: Boundary) -> bool:
        gate, masking = await self._cost_gate(state), state.masking
        if gate is None or masking is None or (rates := self.parts.prices(self.request).rates) is None:
            return False
        return not await self._compute(lambda: is_worth(change_of_mask(state, masking, boundary), rates, gate))

    async def _cost_gate(self, state: PlanningState) -> CostGate | None:
        """The cost gate; None if nothing may be put off: there is none, or there is no room."""
        gate = state.policy.cost_gate
        if gate is None or await self._compute(lambda: state.widest_view.tokens > state.budget.cost_gate_limit):
            return None
        return gate

    async def _will_be_masked(self, target: int) -> bool:
        """True if a mask will do. It is set by the request that needs it: that takes no time."""
        state = self.state
        then = replace(state, budget=replace(state.budget, target=target))
        boundary = await self._compute(lambda: due_mask(then))
        return boundary is not None and not await self._mask_costs_too_much(then, boundary)

    # Choosing the view

    async def _settle(self) -> Decision:
        """Choose the payload by what is known now."""
        state, in_vain = self.state, self.announced is not None and not self.made

        def choose() -> Decision:
            settled = settle(state, self.why, in_vain=in_vain)
            steps, made = (*self._steps(), *settled.steps), (*self.made, *self._postponed)
            why = settled.why or (because(Code.STORAGE) if self.is_without_store else ())
            return replace(settled, steps=steps, budget=state.budget, made=made, why=why)

        return await self._compute(choose)

    async def _decide_after_refusal(self) -> Decision | None:
        """Choose the payload where the provider refused a view of this history for its shape lately; else None."""
        refusable: tuple[Status, ...] = ("trimmed", "summarized")
        for status in refusable:
            why = self.parts.shape_refusals(self.request, status)
            if why is not None and (lower := await self._decide_below(status, why)) is not None:
                return lower
        return None

    async def _decide_below(self, status: Status, why: Reasons) -> Decision | None:
        """Go one step down. Nothing is recalled: that may be what was refused."""
        with suppress(StoreUnavailable):
            await self._read()  # For its pins.
        state = await self._begin()
        lower = await self._compute(lambda: step_down(state, status, why))
        return None if lower is None else await self._without_due_thinking(lower)

    async def _recall(self, decision: Decision) -> Decision:
        """Add quotations of what the current message is about, from messages that the decision's view leaves out."""
        request, policy, view = self.request, self.request.policy.recall, decision.view
        if policy is None or view is None or not request.recalls:
            return decision
        if request.budget.line.to_provider_tokens(request.conversation.tokens) > policy.history_tokens:
            return replace(decision, why=(*decision.why, Reason(Code.RECALL_TOO_LONG)))
        found = await self.parts.recall(request, view, policy)
        if await self._compute(lambda: request.can_mark_cache(found)):
            found = replace(found, marks_cache=True)
        return decision if found == view else replace(decision, view=found, actions=found.actions)

    async def _without_due_thinking(self, decision: Decision) -> Decision:
        """The decision without signed thinking that its provider need not get, or has refused."""
        request, conversation = self.request, self.request.conversation
        if not conversation.history.holds_signed_thinking or (decision.view is None and not request.thinking_from):
            return decision
        is_new = request.binds_thinking and (self.made or self._has_set_a_mask)
        start = len(conversation.transcript) if is_new else max(current_turn(conversation) + 1, request.thinking_from)
        view = await self._compute(
            lambda: without_thinking(conversation, decision.view, start, request.cost, is_bound=request.binds_thinking)
        )
        return decision if view is None or view is decision.view else replace(decision, view=view, actions=view.actions)


def _initial_state(request: Request) -> PlanningState:
    """State that a request begins with, before anything is looked up."""
    conversation = request.conversation
    _ = conversation.cut_digests  # The event loop asks for them next.
    words = request.omitted_words
    return initial_state(conversation, request.policy, request.budget, request.cost, request.all_pins(), words)


def _should_replan(compaction: Compaction) -> bool:
    match compaction.outcome:
        case Outcome.MADE:
            # It may not be enough yet: where a history far too long was read in parts.
            return bool(compaction.made)
        case Outcome.LEASE_LOST | Outcome.DELETED | Outcome.AWAITED:
            return True
        case _:
            return False


def _reused(decision: Decision) -> int:
    """Count the summaries that were there before the request."""
    made = {chunk.id for chunk in decision.made}
    return sum(chunk.id not in made for chunk in decision.view.chunks) if decision.view else 0
