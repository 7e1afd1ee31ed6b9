"""Decision: the view that Steno sends for a request, the tried steps, and a report for the client and the inspector.

`settle` tries views in turn, from the stored summaries to the client's own bytes. Steno builds a view from masks and
summaries and applies the stages of the policy in order: session pruning, fading, sliding window. If the view is still
too large, Steno shortens large texts, then omits whole units, and in an emergency truncates all tool calls and results.
If nothing fits, Steno repeats these stages without summaries. Before Steno sends a view, it removes tool calls whose
results are omitted, and results whose calls are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, WindowSource
from app.compaction.chunks import Compaction, SummaryChunk
from app.compaction.planning_state import PlanningState
from app.compaction.trim import fade, fit, prune, prune_session, truncations
from app.compaction.user_words import with_words
from app.compaction.verify import order_of, problems, repair, separated
from app.compaction.view import Conversation, Pruned, Summary, View, carried_context, whole, with_carried_context
from app.conversation.messages import lazy, own_message
from app.conversation.reasons import Code, Reason, Reasons, because, joined

MOST_STEPS = 40
LONGEST_REASON = 1_000
"""Maximum characters of a reason in the report of `account_of`."""

Status = Literal["full", "summarized", "trimmed"]
"""`full`: all messages are sent unchanged. `summarized`: summaries replace some messages. `trimmed`: messages are
shortened or omitted, without a summary."""

StepName = Literal[
    "stored", "mask", "summarise", "least", "widest", "fit", "prune", "truncate", "without_summaries", "unchanged"
]
"""`stored`: Steno read the stored chunks. `mask`: a mask was due. `summarise`: a compaction was due. The other steps
try views. `least` changes the history least. `widest` has all summaries and masks. `fit`, `prune` and `truncate`
shorten this view. `without_summaries` is a shortened history without summaries. `unchanged` is the client's history."""


class Step(Struct, frozen=True):
    name: StepName
    outcome: str
    """`stored`: `fits` or `too_large`. `mask`: `set` or `put_off`. `summarise`: name of the `Outcome`. Steps that
    try a view: `sent`, or `refused` by Steno."""
    tokens: int | None = None
    """Estimated tokens of the view, or of the summaries that were made."""
    summaries: int = 0
    """Number of summaries in the view, or of the summaries that were made."""
    why: Reasons = ()


class Decision(Struct, frozen=True, dict=True):
    view: View | None
    """View to send; None for the client's own bytes."""
    actions: tuple[str, ...] = ()
    why: Reasons = ()
    """Reasons why an action was not possible."""
    failed: bool = False
    """True if a compaction that was announced to the client made no summary."""
    steps: tuple[Step, ...] = ()
    """Tried steps in order; empty if Steno tried no view. If the sent view fits, the last step tried this view."""
    budget: Budget | None = None
    """Limits of the decision; None for the request's own budget."""
    output_cap: int | None = None
    """Lowered output cap of the request, in tokens; None if unchanged."""
    made: tuple[SummaryChunk, ...] = ()
    """Summaries that were made for the request, or simulated by a dry run."""

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
THINKING_OFF = "thinking_off"
"""Action of a decision that turns thinking off for this answer, because the payload lacks the turn's earlier thinking.
The provider demands this thinking while thinking is on."""


def capped(decision: Decision, tokens: int) -> Decision:
    others = (action for action in decision.actions if action != OUTPUT_CAPPED)
    return replace(decision, output_cap=tokens, actions=(*others, OUTPUT_CAPPED))


UNTOUCHED = Decision(None)
"""Decision if nothing is due."""


def floor_exceeded(conversation: Conversation, budget: Budget, model: str) -> Reasons:
    """Return the reason why a prompt cannot fit, with the sizes of the parts that no compaction can shrink."""
    reported, tools = budget.line.to_provider_tokens, conversation.costs.fixed
    instructions = conversation.instruction_tokens - tools
    places = conversation.transcript.messages.instruction_places
    among = sum(map(conversation.transcript.tokens_of, places))
    question = conversation.floor - conversation.instruction_tokens - among
    others = f" {len(places)} more among the messages {among}," if places else ""
    detail = (
        f"the instructions take about {reported(instructions)} tokens,{others} tools and format {tools},"
        f" the last user message {question}; {model} leaves room for {reported(budget.limit)}"
    )
    return because(Code.FLOOR_EXCEEDS_LIMIT, detail)


def earlier_steps(
    stored: PlanningState | None, state: PlanningState, tried: Iterable[Compaction], *, mask_is_put_off: bool
) -> Iterator[Step]:
    """Yield the steps before the choice of a view. `stored`: first state from the store; None if the store failed."""
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


def settle(state: PlanningState, why: Reasons = (), *, has_failed: bool = False, is_refused: bool = False) -> Decision:
    """Choose the first view without problems, otherwise the client's own bytes.

    `why`: reasons why no compaction brought the view under the trigger. `has_failed`: an announced compaction made no
    summary. `is_refused`: the provider refused the request for its size. If `is_refused` and all views exceed the
    limit, choose the smallest view without other problems.
    """
    conversation = state.conversation
    untrimmed = whole(conversation)
    wrong = [Code.OVER_THE_LIMIT]  # The reason if the loop tries no view.
    tried: list[Step] = []
    too_large: list[View] = []
    for name, view, still in _steps(state, why):
        failed = has_failed and bool(still)
        if view.tokens > state.budget.limit and name in ("least", "widest"):  # The next views are shorter.
            tried.append(_step(name, view, Code.OVER_THE_LIMIT))
            continue
        if view == untrimmed and view.tokens <= state.budget.limit:
            return Decision(None, (), still, failed, (*tried, _step("unchanged", view)))
        # If nothing is omitted, the client's calls without results, and results without calls, stay.
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


def with_alternating_roles(state: PlanningState, refused: Decision) -> Decision | None:
    """Return the refused decision with messages of alternating roles; None if that is impossible."""
    if refused.view is None:
        return None
    view = separated(state.conversation, refused.view, state.cost)
    limit = (refused.budget or state.budget).limit
    if problems(state.conversation, view, limit, alternates=True):
        return None
    others = [action for action in refused.actions if action not in refused.view.actions]
    return replace(refused, view=view, actions=(*view.actions, *others))


def simpler_decision(state: PlanningState, refused: Status, why: Reasons) -> Decision | None:
    """Return a simpler decision after the provider refused the message order of a view. Replace a summarised view by a
    view that has neither summaries nor stored masks. Replace other views by the client's own bytes, if these fit.

    Return None if nothing simpler fits, or if the history itself is malformed: the client then gets the refusal.
    """
    conversation, budget = state.conversation, state.budget
    untrimmed = whole(conversation)
    if repair(conversation, untrimmed, state.cost) != untrimmed:
        return None
    if refused == "summarized":
        lower = settle(replace(state, chunks=(), masking=state.masking and replace(state.masking, boundaries=())))
        if lower.view is not None:
            return replace(lower, why=(*why, *lower.why))
    return Decision(None, why=why) if budget.line.to_provider_tokens(conversation.tokens) <= budget.window else None


def _left_out(state: PlanningState, view: View) -> Reasons:
    """Return up to two reasons: client context is too long to be repeated; the view omits instructions that newer
    instructions supersede."""
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
    """Return the step of a view. The outcome is `refused` if there are codes in `wrong`, else `sent`."""
    return Step(name, "refused" if wrong else "sent", view.tokens, len(view.chunks), tuple(map(Reason, wrong)))


def _steps(state: PlanningState, why: Reasons) -> Iterator[tuple[StepName, View, Reasons]]:
    """Yield name, view and reasons of each step. First come `state.least_view` and `state.widest_view`, then
    shortened forms of the widest view, then shortened forms of the view with all masks but no summaries."""
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
    """Apply the stages that have their own thresholds: session pruning, fading, sliding window."""
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
    """Yield the view after each stage that shortens it to the limit. Then repeat the stages twice. The first
    repetition may shorten the first message of the last turn, and the second may omit this message."""
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
    """Return a report of a decision as JSON members, in the provider's tokens. `source`: origin of the window.
    `budget`: the request's budget, used unless the decision has its own."""
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
