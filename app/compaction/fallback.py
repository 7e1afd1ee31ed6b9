"""Fallback: the views that Steno tries in turn as payload, from the stored summaries to the client's own bytes.

Steno builds a view from masks and summaries and applies the stages of the policy in order: session pruning, fading,
sliding window. If the view is still too large, Steno shortens large texts, then omits whole units, and in an emergency
truncates all tool results. If nothing fits, Steno repeats these stages without summaries. Before a view is sent, tool
calls without results, and results without calls, are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from msgspec.structs import replace

from app.compaction.chunks import Compaction
from app.compaction.decision import Decision, Status, Step, StepName
from app.compaction.planning_state import PlanningState
from app.compaction.trim import fade, fit, prune, prune_session, truncations, with_words
from app.compaction.verify import order_of, problems, repair, separated
from app.compaction.view import Pruned, Summary, View, carried_context, whole, with_carried_context
from app.conversation.messages import own_message
from app.conversation.reasons import Code, Reason, Reasons, because


def earlier_steps(
    stored: PlanningState | None, state: PlanningState, tried: Iterable[Compaction], *, mask_is_put_off: bool
) -> Iterator[Step]:
    """Yield the steps before the choice of a view. `stored`: first state from the store, or None if that failed."""
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
    """Choose the first view without problems, else the client's own bytes.

    `why`: reasons why no compaction brought the view under the trigger. `has_failed`: an announced compaction made no
    summary. `is_refused`: the provider refused the request for its size. The last resort is then the smallest view that
    is only too large by Steno's estimate.
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
        # A view that omits nothing keeps the calls and results that the client sent alone: the provider accepts them.
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
    """Return the refused decision with alternating roles; None if that is impossible."""
    if refused.view is None:
        return None
    view = separated(state.conversation, refused.view, state.cost)
    limit = (refused.budget or state.budget).limit
    if problems(state.conversation, view, limit, alternates=True):
        return None
    others = [action for action in refused.actions if action not in refused.view.actions]
    return replace(refused, view=view, actions=(*view.actions, *others))


def step_down(state: PlanningState, refused: Status, why: Reasons) -> Decision | None:
    """Return a simpler decision after the provider refused a view for its shape. After a summarised view, that is a
    view without summaries and stored masks, otherwise the client's own bytes if the window holds them.

    Return None without a simpler view, or if the history itself is malformed: the client then gets the refusal.
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
    """Return a reason for client context that is too long to be repeated, and one for omitted instructions that newer
    instructions with the same beginning replace."""
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
    """Return the step of a view. It is `refused` if there are codes in `wrong`, else `sent`."""
    return Step(name, "refused" if wrong else "sent", view.tokens, len(view.chunks), tuple(map(Reason, wrong)))


def _steps(state: PlanningState, why: Reasons) -> Iterator[tuple[StepName, View, Reasons]]:
    """Yield the name, the view and the reasons of each step, in order: the least view under the trigger; the view with
    all chunks and masks; shortened forms of that view; shortened forms of the masked history without summaries."""
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
    """Yield the view after each stage that shortens it to the limit. Then repeat the stages twice, in which they may
    shorten, and at last omit, the first message of the last turn."""
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
