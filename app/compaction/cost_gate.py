"""Cost gate: postpones a compaction or a mask that costs more than it saves."""

from __future__ import annotations

from msgspec import Struct

from app.compaction.mask import MaskBoundary, Masking
from app.compaction.plan import Plan, SummaryOptions, calls_of_plan, expected_view
from app.compaction.planning_state import Path, PlanningState
from app.conversation.messages import Kind
from app.tokens.costs import Price, Rates

LEAST_REQUESTS = 10
"""Minimum number of requests that Steno expects, including the current request."""


class Change(Struct, frozen=True):
    """Effect of a change on this and later prompts, in tokens."""

    freed: int
    rewritten: int
    """Tokens after the first changed byte."""
    growth: float
    """Average number of tokens by which a request extended the conversation so far."""


def is_worth(change: Change, rates: Rates, calls: float = 0.0) -> bool:
    """Return whether the change saves at least its cost. `calls` is the cost of its summary calls, in tokens times the
    price per million tokens.

    1. A change that frees tokens saves `freed * cached` with each request from this one on. It costs the summary calls
       once and, if the prompt is in the provider's cache, `rewritten * (uncached - cached)`.
    2. The conversation grew by `growth` tokens per request. So Steno expects `requests = freed / (2 * growth)` more
       requests, but at least `LEAST_REQUESTS`. As in the ski rental problem, the total cost is at most twice the cost
       with a perfect forecast.
    3. A delay of `n` requests loses `n * freed * cached`, and avoids the share `n / requests` of the costs. If the
       change saves its cost, the loss is at least as large as the avoided costs. So the calculation ignores delays.
    """
    requests = max(LEAST_REQUESTS, change.freed / (2 * max(1.0, change.growth)))
    saves = requests * change.freed * rates.cached
    return saves >= calls + change.rewritten * (rates.uncached - rates.cached)


def change_of_plan(state: PlanningState, plan: Plan, options: SummaryOptions) -> Change:
    """Return the effect of a compaction on the prompt, in the provider's tokens. Instructions and existing summaries
    stay cached."""
    conversation, budget = state.conversation, state.budget
    kept = Path() if options.cumulative else plan.base
    cut = conversation.chain.positions[plan.range.through_digest]
    after = sum(expected_view(conversation, kept, cut, len(plan.spans), budget, options))
    unchanged = conversation.instruction_tokens + kept.tokens
    return _change(state, state.widest_view.tokens - after, max(0, after - unchanged))


def change_of_mask(state: PlanningState, masking: Masking, boundary: MaskBoundary) -> Change:
    """Return the effect of a mask on the prompt, in the provider's tokens. The provider's cache applies
    only to the prompt before the first newly masked result."""
    transcript = state.conversation.transcript
    covered = state.widest_path.covered
    held = max(masking.usable(covered), default=covered)
    before = {index for index, _ in masking.masks.between(covered, held)}
    first = next(index for index, _ in masking.masks.between(covered, boundary.position) if index not in before)
    freed = masking.masks.saved(covered, boundary.position) - masking.masks.saved(covered, held)
    return _change(state, freed, transcript.tokens(first) - masking.masks.saved(first, boundary.position))


class Prices(Struct, frozen=True):
    rates: Rates | None = None
    """Rates of the request's own model; None if unknown."""
    summariser: Price | None = None
    reads_warm: bool = False
    """True if the summariser is the conversation's own model, whose provider has the conversation in its cache."""


def plan_costs_too_much(state: PlanningState, plan: Plan, options: SummaryOptions, prices: Prices) -> bool:
    """Return whether a compaction is too expensive now; False for a compaction that only folds, which costs little."""
    rates, price = prices.rates, prices.summariser
    if rates is None or price is None or not plan.spans or not _is_gated(state):
        return False
    calls = calls_of_plan(state.conversation, plan, state.budget, options, price, rates if prices.reads_warm else None)
    return not is_worth(change_of_plan(state, plan, options), rates, calls)


def mask_costs_too_much(state: PlanningState, boundary: MaskBoundary, rates: Rates | None) -> bool:
    masking = state.masking
    if masking is None or rates is None or not _is_gated(state):
        return False
    return not is_worth(change_of_mask(state, masking, boundary), rates)


def _is_gated(state: PlanningState) -> bool:
    return state.policy.cost_gate and state.widest_view.tokens <= state.budget.cost_gate_limit


def _change(state: PlanningState, freed: int, rewritten: int) -> Change:
    """Return the effect of a change, in the provider's tokens. The estimated growth per request is the history's tokens
    divided by the history's number of assistant messages."""
    conversation, ratio = state.conversation, state.budget.line.ratio
    answered = sum(message.kind is Kind.ASSISTANT for message in conversation.transcript.messages)
    growth = conversation.transcript.tokens(0) / max(1, answered)
    return Change(round(freed * ratio), round(rewritten * ratio), growth * ratio)
