"""The fallback from view to view: from the stored summaries down to the client's own bytes.

Each step is a view that went through the policy's stages, in their order: masks and summaries are in it when it is
chosen; then results are pruned by the session or by position, or faded, or the window slides; where it still does not
fit, single messages are fitted, whole ones pruned, and in an emergency everything truncated; what was split is repaired
last. Where the summaries themselves leave too little room for that, all of it is tried without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, WindowSource
from app.compaction.chunks import Compaction, SummaryChunk
from app.compaction.policy import Policy
from app.compaction.select import PlanningState
from app.compaction.trim import fade, fit, prune, prune_session, truncations, with_words
from app.compaction.verify import order_of, problems, repair, separated
from app.compaction.view import Conversation, Pruned, Summary, View, carried_context, whole, with_carried_context
from app.conversation.lazy import lazy
from app.conversation.messages import own_message
from app.conversation.reasons import Code, Reason, Reasons, because, joined

MOST_STEPS = 40
LONGEST_REASON = 1_000
"""Characters."""

Status = Literal["full", "summarized", "trimmed"]
"""`full`: every message goes as it came; `summarized`: a summary stands for some of them; `trimmed`: none does, and
something was shortened or left out."""


StepName = Literal[
    "stored", "mask", "summarise", "least", "widest", "fit", "prune", "truncate", "without_summaries", "unchanged"
]
"""`stored`: the least view over what is stored; `mask`: a new boundary; `summarise`: a compaction. Then what was sent,
or not: the least view, the one with every summary and mask in use, that with its large texts shortened, with messages
left out, with everything truncated; the same of the whole history, without summaries; the history as it came."""


class Step(Struct, frozen=True):
    name: StepName
    outcome: str
    """`fits`, `too_large`; `set`, `put_off`; a compaction's outcome; `sent`, `refused`."""
    tokens: int | None = None
    """Our estimate of the view, or of the summaries that were made."""
    summaries: int = 0
    """How many stand in the view, or were made."""
    why: Reasons = ()


def earlier_steps(
    stored: PlanningState | None, state: PlanningState, tried: Iterable[Compaction], *, mask_is_put_off: bool
) -> Iterator[Step]:
    """Steps before a view was chosen: what was found in the store (None without it), then masked and made."""
    if stored is not None:
        least = stored.least_view
        view = least or stored.widest_view
        yield Step("stored", "fits" if least else "too_large", view.tokens, len(view.chunks))
        if set(state.boundaries) - set(stored.boundaries):
            yield Step("mask", "set")
    if mask_is_put_off:
        yield Step("mask", "put_off")
    for compaction in tried:
        tokens = sum(chunk.tokens for chunk in compaction.made) if compaction.made else None
        yield Step("summarise", compaction.outcome.name.lower(), tokens, len(compaction.made), compaction.reasons)


class Decision(Struct, frozen=True, dict=True):
    """Decision about a request: what will be sent, and what was done."""

    view: View | None
    """View that is sent; None for the client's own bytes."""
    actions: tuple[str, ...] = ()
    why: Reasons = ()
    """Why something could not be done."""
    failed: bool = False
    """A compaction that was announced to the client brought no summary."""
    steps: tuple[Step, ...] = ()
    """Steps that were tried before, the last one being what is sent. Empty where nothing else was looked at."""
    budget: Budget | None = None
    """Budget by which it was decided, where that is not the request's own."""
    output_cap: int | None = None
    """Tokens to which the request's output cap is lowered; None where it stays."""
    made: tuple[SummaryChunk, ...] = ()
    """Summaries that were made for it, or imagined."""

    @lazy
    def status(self) -> Status:
        if self.view is None or not self.view.actions:
            return "full"
        return "summarized" if self.view.chunks else "trimmed"

    @lazy
    def reason(self) -> str | None:
        return joined(self.why) if self.why else None


OUTPUT_CAPPED = "output_capped"
"""Action of a decision that lowers the request's output cap."""


TASK_BUDGET_LOWERED = "task_budget_lowered"
"""Action of a decision with which the client's task budget is lowered by the omitted tokens."""


THINKING_OFF = "thinking_off"
"""Action of a decision by which the model is not to think in this answer: the turn goes without thinking that was
refused, and its provider would demand it."""


def capped(decision: Decision, tokens: int) -> Decision:
    others = (action for action in decision.actions if action != OUTPUT_CAPPED)
    return replace(decision, output_cap=tokens, actions=(*others, OUTPUT_CAPPED))


UNTOUCHED = Decision(None)
"""Decision where nothing was due."""


def needs_nothing(conversation: Conversation, policy: Policy, budget: Budget, model: str) -> Decision | None:
    """The decisions that need no chunks, or None where more is to be decided."""
    if policy.leaves_alone(conversation, budget):
        return UNTOUCHED
    if conversation.floor >= budget.limit:
        return Decision(None, why=because(Code.FLOOR_EXCEEDS_LIMIT, _floor(conversation, budget, model)))
    return None


def _floor(conversation: Conversation, budget: Budget, model: str) -> str:
    reported, tools = budget.line.to_provider_tokens, conversation.costs.fixed
    instructions = conversation.instruction_tokens - tools
    places = conversation.transcript.messages.instruction_places
    among = sum(map(conversation.transcript.tokens_of, places))
    question = conversation.floor - conversation.instruction_tokens - among
    others = f" {len(places)} more among the messages {among}," if places else ""
    return (
        f"the instructions take about {reported(instructions)} tokens,{others} tools and format {tools},"
        f" the last user message {question}; {model} leaves room for {reported(budget.limit)}"
    )


def settle(state: PlanningState, why: Reasons = (), *, has_failed: bool = False, is_refused: bool = False) -> Decision:
    """The first view that holds; where none does, the client's own bytes.

    `why` says why no compaction brought the view under the trigger. `has_failed`: one was announced, and brought no
    summary. `is_refused`: the provider refused the client's own bytes for their size, so that the least view that is
    only too large by our estimate is tried in their place.
    """
    conversation = state.conversation
    untrimmed = whole(conversation)
    wrong = [Code.OVER_THE_LIMIT]  # Where nothing may be made to fit.
    tried: list[Step] = []
    too_large: list[View] = []
    for name, view, still in _steps(state, why):
        failed = has_failed and bool(still)
        if view.tokens > state.budget.limit and name in ("least", "widest"):  # The next ones are made to fit.
            tried.append(_step(name, view, Code.OVER_THE_LIMIT))
            continue
        if view == untrimmed and view.tokens <= state.budget.limit:
            return Decision(None, (), still, failed, (*tried, _step("unchanged", view)))
        # What the client itself sent alone its provider takes, as long as nothing has to be left out.
        leaves_out = any(isinstance(part, Summary | Pruned) for part in view.parts)
        orphans = leaves_out or view.tokens > state.budget.limit
        repaired = with_carried_context(conversation, repair(conversation, view, state.cost, orphans=orphans))
        if state.policy.alternates:
            repaired = separated(conversation, repaired, state.cost)
        if state.words:
            repaired = with_words(repaired, state.words, state.budget.limit, state.cost)
        if not (wrong := problems(conversation, repaired, state.budget.limit, alternates=state.policy.alternates)):
            told = (*still, *_left_out(state, repaired))
            return Decision(repaired, repaired.actions, told, failed, (*tried, _step(name, repaired)))
        tried.append(_step(name, repaired, *wrong))
        if wrong == [Code.OVER_THE_LIMIT]:
            too_large.append(repaired)
    if is_refused and too_large:
        least = min(too_large, key=lambda view: view.tokens)
        return Decision(least, least.actions, (*why, *_left_out(state, least)), has_failed, tuple(tried))
    return Decision(None, (), (*why, *map(Reason, wrong)), has_failed, (*tried, _step("unchanged", untrimmed)))


def merge_roles(state: PlanningState, refused: Decision) -> Decision | None:
    """The refused decision for a provider whose roles have to alternate; None where its view cannot do."""
    if refused.view is None:
        return None
    view = separated(state.conversation, refused.view, state.cost)
    limit = (refused.budget or state.budget).limit
    if problems(state.conversation, view, limit, alternates=True):
        return None
    others = [action for action in refused.actions if action not in refused.view.actions]
    return replace(refused, view=view, actions=(*view.actions, *others))


def step_down(state: PlanningState, refused: Status, why: Reasons) -> Decision | None:
    """Decision in place of a view that its provider refused for its shape: after summaries the same stages without any,
    and without masks; after those the client's own bytes, where the window holds them.

    None where there is nothing below, or the history itself is no better: then the refusal is the answer.
    """
    conversation, budget = state.conversation, state.budget
    untrimmed = whole(conversation)
    if repair(conversation, untrimmed, state.cost) != untrimmed:
        return None
    if refused == "summarized":
        lower = settle(state.without_memories())
        if lower.view is not None:
            return replace(lower, why=(*why, *lower.why))
    return Decision(None, why=why) if budget.line.to_provider_tokens(conversation.tokens) <= budget.window else None


def _left_out(state: PlanningState, view: View) -> Reasons:
    """Reasons for client context that is too long to be repeated, and for instructions that a view leaves out because
    newer ones begin like them."""
    conversation, reported = state.conversation, state.budget.line.to_provider_tokens
    parts = (
        f"{' '.join(block.kind.begins.split())} ({reported(state.cost(own_message(block.text)))} tokens)"
        for block in carried_context(conversation, view.parts).left_out
    )
    detail = ", ".join(parts)
    reasons = because(Code.CLIENT_INSTRUCTIONS_TOO_LONG, detail) if detail else ()
    sent = {index for index in order_of(view) if index is not None}
    if superseded := conversation.superseded - sent:
        tokens = reported(sum(map(conversation.transcript.tokens_of, superseded)))
        detail = f"{len(superseded)} older ones of {tokens} tokens are left out"
        reasons = (*reasons, *because(Code.INSTRUCTIONS_SUPERSEDED, detail))
    return reasons


def _step(name: StepName, view: View, *wrong: Code) -> Step:
    """Step of a view: it is what is sent where nothing is wrong with it."""
    return Step(name, "refused" if wrong else "sent", view.tokens, len(view.chunks), tuple(map(Reason, wrong)))


def _steps(state: PlanningState, why: Reasons) -> Iterator[tuple[StepName, View, Reasons]]:
    """The least view under the trigger; else the one that keeps every chunk and mask in use; that, made to fit; and
    the whole history, masked and made to fit, where no room is left beside the summaries."""
    if (view := state.least_view) is not None:
        yield "least", _shaped(state, view), ()
    widest = _shaped(state, state.widest_view)
    yield "widest", widest, why
    yield from ((name, view, why) for name, view in _made_to_fit(state, widest))
    if widest.chunks and state.policy.prune:
        given_up = (*why, Reason(Code.SUMMARIES_LEFT_OUT))
        bare = _shaped(state, state.bare_view)
        yield from (("without_summaries", view, given_up) for _, view in _made_to_fit(state, bare))


def _shaped(state: PlanningState, view: View) -> View:
    """Through the stages that have thresholds of their own."""
    conversation, policy, budget, cost = state.conversation, state.policy, state.budget, state.cost
    if policy.session_pruning:
        view = prune_session(conversation, view, policy.session_pruning, budget.window, cost)
    if policy.fade:
        view = fade(conversation, view, budget.limit, cost)
    if (turns := policy.window_turns) is not None:
        most, words = view.tokens, state.words
        view = prune(conversation, view, most, most, cost, stub=policy.stub, most_turns=turns, words=words)
    return view


def _made_to_fit(state: PlanningState, view: View) -> Iterator[tuple[StepName, View]]:
    """Through the stages that only a payload over the limit goes through, in their order; once more where what the last
    turn began with has to give way."""
    policy, limit, cost = state.policy, state.budget.limit, state.cost
    target = min(state.budget.target, limit)
    for talk in (state.conversation, *state.conversation.giving_way):
        pruned = partial(prune, talk, at_most=limit, target=target, cost=cost, stub=policy.stub, words=state.words)
        left = view
        if policy.fit:
            is_known = view is state.widest_view and talk is state.conversation
            left = state.fitted_view if is_known else fit(talk, view, limit, cost)
            yield "fit", left
        if policy.prune:
            yield "prune", pruned(left)
        if policy.emergency:
            for truncated in truncations(talk, left, limit, cost):
                yield "truncate", pruned(truncated) if policy.prune else truncated


def account_of(conversation: Conversation, budget: Budget, source: WindowSource, decision: Decision) -> dict[str, Any]:
    """Tokens are the provider's. `source`: where the window is from. `budget`: by which the request came in; one that
    was sent again after a refusal has its own."""
    limits = decision.budget or budget
    reported = limits.line.to_provider_tokens
    return {
        "window": limits.window,
        "window_source": source,
        "limit": reported(limits.limit),
        "trigger": reported(min(limits.trigger.quiet_tokens, limits.limit)),
        "target": reported(limits.target),
        "floor": reported(conversation.floor),
        "estimated": reported(conversation.tokens),
        "forwarded": reported(decision.view.tokens if decision.view else conversation.tokens),
        "context_status": decision.status,
        "actions": list(decision.actions),
        "reason": decision.reason and decision.reason[:LONGEST_REASON],
        "steps": [
            {
                "step": step.name,
                "outcome": step.outcome,
                "tokens": None if step.tokens is None else reported(step.tokens),
                "summaries": step.summaries,
                "reason": (joined(step.why) or "")[:LONGEST_REASON] or None,
            }
            for step in decision.steps[:MOST_STEPS]
        ],
    }
