"""Worth: what a planned compaction, or a new mask, does to the prompts, and what the summaries of it cost."""

from __future__ import annotations

from app.compaction.budget import Budget
from app.compaction.mask import Boundary, Masking
from app.compaction.plan import Plan, is_shown, shown_size
from app.compaction.planning_state import Case
from app.compaction.select import Path
from app.compaction.spans import Span, quoted_tokens, replaced_tokens
from app.compaction.summary_options import SummaryBrief
from app.compaction.tail import AIMED_SHARE, expected_view
from app.compaction.view import Conversation
from app.conversation.messages import Kind
from app.tokens.cost_gate import Change, Rates
from app.tokens.usage import Price

CHARACTERS_A_TOKEN = 4
"""Characters a token in a prompt for summaries; it stands in a call twice."""


def change_of_plan(case: Case, plan: Plan, brief: SummaryBrief) -> Change:
    """Change by a compaction, in the provider's tokens. What stands before it stays as it is: the instructions, and the
    summaries that it extends."""
    conversation, budget = case.conversation, case.budget
    kept = Path() if brief.cumulative else plan.base
    cut = conversation.chain.positions[plan.range.through_digest]
    after = expected_view(conversation, kept, cut, len(plan.spans), budget, brief)
    unchanged = conversation.instruction_tokens + kept.tokens
    return _change(case, case.widest_view.tokens - after, max(0, after - unchanged))


def change_of_mask(case: Case, masking: Masking, boundary: Boundary) -> Change:
    """Change by a mask, likewise: everything after the first result that it masks is read anew."""
    transcript = case.conversation.transcript
    covered = case.widest_path.covered
    held = max(masking.usable(covered), default=covered)
    before = {index for index, _ in masking.masks.between(covered, held)}
    first = next(index for index, _ in masking.masks.between(covered, boundary.position) if index not in before)
    freed = masking.masks.saved(covered, boundary.position) - masking.masks.saved(covered, held)
    return _change(case, freed, transcript.tokens(first) - masking.masks.saved(first, boundary.position))


def calls_of_plan(
    conversation: Conversation, plan: Plan, budget: Budget, brief: SummaryBrief, price: Price, shown: Rates | None
) -> float:
    """Cost of the calls for a plan's summaries, in tokens times the price of a million.

    `shown` is what a token of the conversation itself costs the summariser where that is what it reads: None where it
    is another model, whose provider has nothing of it. What a model thinks before it writes, and folds, are left out.
    """
    rules = 2 * len(brief.prompt) // CHARACTERS_A_TOKEN
    read = written = 0.0
    for span in plan.missing:
        if plan.masked or is_shown(conversation, plan.base, span, brief):
            size = min(shown_size(conversation, plan.base, span), brief.shown_tokens)
            read += size * (shown.cached if shown else price.prompt)
        else:
            read += quoted_tokens(conversation.transcript, span.start, span.stop) * price.prompt
        read += rules * price.prompt
        written += min(budget.summary, _aimed(conversation, plan, span)) * price.completion
    return (read + written) * brief.ratio


def _aimed(conversation: Conversation, plan: Plan, span: Span) -> int:
    return int(AIMED_SHARE * replaced_tokens(conversation.transcript, span, plan.spans[-1].stop))


def _change(case: Case, freed: int, rewritten: int) -> Change:
    """Change in the provider's tokens. Each of the assistant's messages answered a request."""
    conversation, ratio = case.conversation, case.budget.line.ratio
    answered = sum(message.kind is Kind.ASSISTANT for message in conversation.transcript.messages)
    growth = conversation.transcript.tokens(0) / max(1, answered)
    return Change(round(freed * ratio), round(rewritten * ratio), growth * ratio)
