"""Decide what is sent for a request.

Theory: one generator decides, and does nothing itself. It yields an effect (read the store, make this compaction),
stands still until it is sent the reply, and returns the decision. So what happens in which order stands in this module
alone; the compactor acts, a dry run imagines, a test answers from a list. The way of every mode is one line:

    answer    read, mask; while a compaction is due: make it, or wait for it, and read again; settle; recall
    imagine   the same, with what is made imagined, or without making anything
    recover   read; settle if that reaches the budget, else as answer
    step down read; one step lower on the ladder
    merge     the refused view with alternating roles
    compact   read; make everything up to a position, until it is there
    ahead     read; make the one that is due, unless something speaks against it

If the store is away, the chunks that this process remembers are used, and no summary is made.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from msgspec.structs import replace

from app.core.deciding import effects
from app.core.deciding.attempt import Ahead, Answer, Attempt, Compact, Imagine, MergeRoles, Recover, StepDown
from app.core.deciding.effects import Background, Effect, Lately, Prices, StoreAway, Stored
from app.core.deciding.request import Request
from app.core.history.recognition import possible_heads
from app.core.limits.background_budget import most_without_summary
from app.core.reasons import Code, Reason, Reasons, because
from app.core.stages.case import Case
from app.core.stages.ladder import UNTOUCHED, Decision, Status, merge_roles, settle, step_down
from app.core.stages.ladder import untouched as needs_nothing
from app.core.stages.masking import due_mask, without_summary
from app.core.summary.brief import SummaryBrief
from app.core.summary.changing import changes_every_turn, successions
from app.core.summary.compaction import compact
from app.core.summary.flow import Compaction, Flow, Outcome
from app.core.summary.plan import Plan, cut_at, plan_asked, plan_compaction
from app.core.summary.worth import calls_of_plan, change_of_mask, change_of_plan
from app.core.tokens.economy import CostGate, is_worth
from app.core.view.mask import Boundary
from app.core.view.reading import build_view
from app.core.view.thinking import current_turn, without_thinking

T = TypeVar("T")
Deciding: TypeAlias = Generator[Effect, Any, T]
"""Generator of effects. Each reply is of the type that its effect names."""

ROUNDS = 3
"""Compactions that one request begins at most: after a lost lease, or one that did not suffice, it plans anew."""


def untouched(request: Request) -> Decision | None:
    """The decision that needs neither the store nor a summary; None if more is to be decided."""
    early = needs_nothing(request.conversation, request.policy, request.budget, request.model)
    if early is not None or request.compaction:
        return early
    return Decision(None, why=because(Code.COMPACTION_OFF))


def decide(attempt: Attempt) -> Deciding[Decision]:
    """Decide what is sent, in the attempt's mode. Raises `StoreAway` where nothing can be said without the store: what
    a client asked for, and which summaries would be made."""
    request, mode = attempt.request, attempt.mode
    match mode:
        case StepDown(refused, said):
            return (yield from _stepped_down(attempt, refused, said))
        case MergeRoles(refused, said):
            if (merged := merge_roles(attempt.case, refused)) is not None:
                return _with_due_thinking(request, merged)
            return (yield from _stepped_down(attempt, refused, said))
        case Compact(position):
            return (yield from _compacted(attempt, position))
        case Ahead(target):
            with suppress(StoreAway):
                yield from _made_ahead(attempt, target)
            return UNTOUCHED
        case Recover():
            return (yield from _recovered(attempt))
        case _:
            return (yield from _answered(attempt))


def _answered(attempt: Attempt, *, recalls: bool = True) -> Deciding[Decision]:
    request, mode = attempt.request, attempt.mode
    if (early := untouched(request)) is not None:
        return _with_due_thinking(request, early)
    if isinstance(mode, Imagine):
        try:
            yield from _looked_at(attempt, mode)
        except StoreAway:
            if mode.summaries:
                raise
            return Decision(None, why=because(Code.STORAGE))
    elif (lower := (yield from _refused_lately(attempt))) is not None:
        return lower
    else:
        yield from _made_what_is_due(attempt)
        yield from _judged(attempt)
    decision = _settled(attempt)
    if attempt.without_store:
        decision = replace(decision, why=decision.why or because(Code.STORAGE))
    if recalls:
        decision = yield from _recalled(request, decision)
    return _with_due_thinking(request, decision)


def _recovered(attempt: Attempt) -> Deciding[Decision]:
    store_away = False
    try:
        yield from _read(attempt)
    except StoreAway:
        store_away = True
    if attempt.request.policy.summarises and not attempt.case.can_do_without_summary:
        return (yield from _answered(attempt, recalls=False))
    if store_away:
        attempt.came_to(Compaction((), Outcome.STORE_AWAY))
    return _with_due_thinking(attempt.request, _settled(attempt))


def _settled(attempt: Attempt) -> Decision:
    """Choose the payload by what is known now."""
    case, in_vain = attempt.case, attempt.announced is not None and not attempt.made
    settled = settle(case, attempt.why, in_vain=in_vain)
    steps, made = (*attempt.steps, *settled.steps), (*attempt.made, *attempt.postponed)
    return replace(settled, steps=steps, budget=case.budget, made=made)


def _looked_at(attempt: Attempt, mode: Imagine) -> Deciding[None]:
    yield from _read(attempt)
    yield from _mask(attempt)
    if mode.summaries and not attempt.case.is_settled:
        attempt.came_to((yield from _attempted(attempt)))


def _made_what_is_due(attempt: Attempt) -> Deciding[None]:
    """Go from the look at the store to the compaction. While the store is away, use the chunks of this process, and
    mask where even that is too large."""
    try:
        looks_again = True
        while looks_again:
            yield from _read(attempt)
            yield from _mask(attempt)
            looks_again = False
            if not attempt.case.is_settled or _is_unfinished(attempt):
                compaction = yield from _attempted(attempt)
                attempt.came_to(compaction)
                looks_again = _goes_on(compaction)
    except StoreAway:
        attempt.came_to(Compaction((), Outcome.STORE_AWAY))
    if attempt.without_store:
        attempt.case = attempt.case.with_chunks((yield effects.Remember()))
        if not attempt.case.can_do_without_summary and (boundary := due_mask(attempt.case)) is not None:
            attempt.case = attempt.case.with_boundaries([boundary])


def _read(attempt: Attempt) -> Deciding[None]:
    _ = attempt.case  # Worked out here: its digests are asked for in the event loop.
    stored: Stored = yield effects.Read()
    attempt.read(stored.pins, stored.chunks, stored.boundaries)


def _mask(attempt: Attempt) -> Deciding[None]:
    if (boundary := (yield from _worthy_mask(attempt))) is not None:
        yield from _mask_as_in(attempt, attempt.case.with_boundaries([boundary]))


def _worthy_mask(attempt: Attempt) -> Deciding[Boundary | None]:
    """Return the boundary that is due and worth what it costs."""
    boundary = due_mask(attempt.case)
    attempt.mask_is_put_off = boundary is not None and (yield from _puts_off_mask(attempt.case, boundary))
    return None if attempt.mask_is_put_off else boundary


def _mask_as_in(attempt: Attempt, masked: Case) -> Deciding[None]:
    """Go on with a case, and store the boundaries that it has beyond those that were found."""
    for boundary in masked.boundaries:
        if boundary not in attempt.case.boundaries:
            yield effects.KeepMask(boundary)
    attempt.case = masked


def _attempted(attempt: Attempt) -> Deciding[Compaction]:
    """Make the due compaction, or wait for whoever makes it. None is made in place of a mask that would do."""
    if attempt.mask_is_put_off:
        return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))
    plan = yield from _due_plan(attempt)
    if plan is None:
        return Compaction((), Outcome.NOTHING_TO_SUMMARISE)
    if not attempt.own and (yield from _puts_off(attempt, plan)):
        return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))
    lately: Lately = yield effects.LookBack(plan)
    if why := (yield from _objections(attempt, lately)):
        return Compaction((), Outcome.NOT_BEGUN, why)
    if not lately.failed_last and (without := (yield from _without(attempt))) is not None:
        attempt.postponed = yield effects.Postpone((yield from _flow(attempt, plan)))
        yield from _mask_as_in(attempt, without)
        return Compaction((), Outcome.IN_BACKGROUND)
    return (yield from _made(attempt, plan))


def _made(attempt: Attempt, plan: Plan) -> Deciding[Compaction]:
    """Make a compaction under its lease, or wait for the result of whoever has that: not for the lease."""
    flow, known = (yield from _flow(attempt, plan)), tuple(attempt.case.chunks)
    compaction: Compaction | None = yield effects.Make(plan, flow, known, attempt.has_waited)
    if compaction is not None:
        attempt.ended(compaction)
        return compaction
    if isinstance(attempt.mode, Ahead):
        return Compaction((), Outcome.TAKES_TOO_LONG)  # Nobody needs it yet: it is not waited for.
    attempt.has_waited = True
    ended = yield effects.Wait(plan)
    return Compaction((), Outcome.AWAITED if ended else Outcome.TAKES_TOO_LONG)


def _compacted(attempt: Attempt, position: int) -> Deciding[Decision]:
    request = attempt.request
    while True:
        yield from _read(attempt)
        brief, case = (yield from _brief(attempt)), attempt.case
        conversation = case.conversation
        cut = cut_at(conversation, case.chunks, position)
        path = case.widest_path_to(cut)
        if (plan := plan_asked(conversation, path, brief, request.series, cut, case.chunks)) is None:
            if not path.chunks:
                return Decision(None, why=because(Code.NOTHING_TO_SUMMARISE))
            # Of the bare history: what is pinned or said again is for a payload, and this is none.
            view = build_view(request.conversation, path)
            return Decision(view, view.actions, made=attempt.made)
        if why := _no_more_rounds(attempt):
            return Decision(None, why=why)
        lately: Lately = yield effects.LookBack(plan)
        if lately.stopping:
            return Decision(None, why=because(Code.STOPPING))
        attempt.latest = yield from _made(attempt, plan)
        if not _goes_on(attempt.latest):
            if attempt.without_store:
                raise StoreAway("the database went away while the summary was made")
            return Decision(None, why=attempt.why)


def _made_ahead(attempt: Attempt, target: int) -> Deciding[None]:
    yield from _read(attempt)
    if attempt.case.is_settled or (yield from _will_be_masked(attempt, target)):
        return
    plan = yield from _due_plan(attempt)
    if plan is None:
        return
    lately: Lately = yield effects.LookBack(plan)
    if lately.failed_last or (yield from _puts_off(attempt, plan)):
        return
    if not (yield from _objections(attempt, lately)):
        attempt.latest = yield from _made(attempt, plan)
    yield from _judged(attempt)


def _will_be_masked(attempt: Attempt, target: int) -> Deciding[bool]:
    """True if a mask will do. It is put where it is needed, and when: that takes nobody's time."""
    case = attempt.case
    then = replace(case, budget=replace(case.budget, target=target))
    boundary = due_mask(then)
    return boundary is not None and not (yield from _puts_off_mask(then, boundary))


def _brief(attempt: Attempt) -> Deciding[SummaryBrief]:
    if attempt.brief is None:
        attempt.brief = yield effects.Brief()
    return attempt.brief


def _due_plan(attempt: Attempt) -> Deciding[Plan | None]:
    case, brief = attempt.case, (yield from _brief(attempt))
    series, masked = attempt.request.series, case.masked_before
    return plan_compaction(case.conversation, case.widest_path, case.budget, brief, series, masked, case.chunks)


def _flow(attempt: Attempt, plan: Plan) -> Deciding[Flow]:
    request, case, brief = attempt.request, attempt.case, (yield from _brief(attempt))
    sent = None
    if brief.style == "prefix" and plan.base == case.widest_path:
        sent = (yield from _recalled(request, Decision(case.widest_view))).view
    return compact(case.conversation, request.conversation_id, plan, request.budget, brief, request.count, sent)


def _without(attempt: Attempt) -> Deciding[Case | None]:
    """Return the case that is sent without this compaction, which is then made in the background; None: it waits.

    It is not shortened for a compaction that would find no room there.
    """
    mode = attempt.mode
    may_go_on = isinstance(mode, Imagine) or (isinstance(mode, Answer) and mode.may_go_on)
    if not may_go_on or attempt.announced is not None:
        return None
    there: Background = yield effects.LookAhead()
    if not there.comes_back:
        return None
    return without_summary(attempt.case, most_without_summary(attempt.request.budget), shortens=there.has_room)


def _objections(attempt: Attempt, lately: Lately) -> Deciding[Reasons]:
    """Return the reasons why the due compaction is not begun."""
    if lately.stopping:
        return because(Code.STOPPING)
    if lately.blocked is not None:
        return because(lately.blocked)
    can_do_without = attempt.case.can_do_without_summary
    if lately.paused is not None and (can_do_without or attempt.request.policy.prune):
        return (*lately.paused, Reason(Code.SUMMARY_FAILED_LATELY))
    if can_do_without and (yield from _is_in_vain(attempt.request)):
        return because(Code.HISTORY_CHANGES_EVERY_TURN)
    return _no_more_rounds(attempt)


def _is_in_vain(request: Request) -> Deciding[bool]:
    conversation = request.conversation
    recent = yield effects.ReadRewritten()
    found = successions(conversation, recent, request.conversation_id, named=request.named)
    if not found:
        return False
    seen = yield effects.ReadHeads(tuple(possible_heads(conversation.transcript, conversation.chain)))
    return changes_every_turn(conversation, found, seen)


def _no_more_rounds(attempt: Attempt) -> Reasons:
    """Return the reasons why the request begins no further compaction; none if it may."""
    last = attempt.own[-1] if attempt.own else None
    if last is None or (len(attempt.own) < ROUNDS and last.outcome is not Outcome.DELETED):
        return ()
    return last.reasons or because(Code.SUMMARIES_NOT_ENOUGH)


def _is_unfinished(attempt: Attempt) -> bool:
    """True if its last compaction took in as much as one does, and the rest is for the next one. What is made so far
    may be under the trigger, but it is not what was planned, and would be too large again soon."""
    if not attempt.own or not attempt.own[-1].is_whole or len(attempt.own) >= ROUNDS:
        return False
    path = attempt.case.widest_path
    return bool(path.chunks) and path.chunks[-1].continued


def _goes_on(compaction: Compaction) -> bool:
    """True if it is worth looking again."""
    match compaction.outcome:
        case Outcome.MADE:
            # It may not be enough yet: where a history far too long was read in parts.
            return bool(compaction.made)
        case Outcome.LEASE_LOST | Outcome.DELETED | Outcome.AWAITED:
            return True
        case _:
            return False


def _judged(attempt: Attempt) -> Deciding[None]:
    """Note what the request's own compactions freed: after too little, the history is left alone for a while."""
    before = attempt.before
    if before is not None and not attempt.without_store and attempt.made and attempt.own[-1].is_whole:
        yield effects.Freed(before.widest_view.tokens, attempt.case.widest_view.tokens)


def _puts_off(attempt: Attempt, plan: Plan) -> Deciding[bool]:
    """True if a compaction is to wait. One that only folds costs little, and is due for its size."""
    case, gate = attempt.case, _cost_gate(attempt.case)
    if gate is None or not plan.spans:
        return False
    brief = yield from _brief(attempt)
    prices: Prices = yield effects.AskPrices(brief.model)
    rates, price = prices.rates, prices.summariser
    if rates is None or price is None:
        return False
    calls = calls_of_plan(case.conversation, plan, case.budget, brief, price, rates if prices.reads_warm else None)
    return not is_worth(change_of_plan(case, plan, brief), rates, gate, calls)


def _puts_off_mask(case: Case, boundary: Boundary) -> Deciding[bool]:
    gate, masking = _cost_gate(case), case.masking
    if gate is None or masking is None:
        return False
    prices: Prices = yield effects.AskPrices()
    return prices.rates is not None and not is_worth(change_of_mask(case, masking, boundary), prices.rates, gate)


def _cost_gate(case: Case) -> CostGate | None:
    """Return the cost gate; None if nothing may be put off: there is none, or there is no room."""
    gate, budget = case.policy.cost_gate, case.budget
    if gate is None or case.widest_view.tokens > budget.hold:
        return None
    return gate


def _refused_lately(attempt: Attempt) -> Deciding[Decision | None]:
    """Decide what is sent if a view of this history was refused for its shape a moment ago; else None."""
    _ = attempt.case  # Worked out here, as in `_read`.
    refusable: tuple[Status, ...] = ("trimmed", "summarized")
    for status in refusable:
        why: Reasons | None = yield effects.ShapeRefusals(status)
        if why is not None and (lower := (yield from _below(attempt, status, why))) is not None:
            return lower
    return None


def _stepped_down(attempt: Attempt, refused: Decision, said: str) -> Deciding[Decision]:
    lower = yield from _below(attempt, refused.status, because(Code.PAYLOAD_REFUSED, said))
    return refused if lower is None else lower


def _below(attempt: Attempt, status: Status, why: Reasons) -> Deciding[Decision | None]:
    """Go one step down the ladder. Nothing is recalled: that may be what was refused."""
    with suppress(StoreAway):
        yield from _read(attempt)  # For its pins.
    lower = step_down(attempt.case, status, why)
    return None if lower is None else _with_due_thinking(attempt.request, lower)


def _recalled(request: Request, decision: Decision) -> Deciding[Decision]:
    """Add quotations of what the current message is about, from messages that the decision's view leaves out."""
    policy, view, reported = request.policy.recall, decision.view, request.budget.line.reported
    if policy is None or view is None or not request.recalls:
        return decision
    if reported(request.conversation.tokens) > policy.history_tokens:
        return replace(decision, why=(*decision.why, Reason(Code.RECALL_TOO_LONG)))
    found = yield effects.Recall(view, policy)
    if request.can_mark_cache(found):
        found = replace(found, marks_cache=True)
    return decision if found == view else replace(decision, view=found, actions=found.actions)


def _with_due_thinking(request: Request, decision: Decision) -> Decision:
    """The decision without signed thinking that its provider need not get, or has refused."""
    conversation = request.conversation
    if not conversation.history.holds_signed_thinking or (decision.view is None and not request.thinking_from):
        return decision
    start = max(current_turn(conversation) + 1, request.thinking_from)
    view = without_thinking(conversation, decision.view, start, request.cost)
    return decision if view is None or view is decision.view else replace(decision, view=view, actions=view.actions)
