"""The account of a decision: its numbers, and what was tried in which order, as data that can be shown."""

from __future__ import annotations

from typing import Any

from app.compaction.budget import Budget, WindowSource
from app.compaction.fallback import Decision
from app.compaction.steps import Step
from app.compaction.view import Conversation
from app.conversation.reasons import joined
from app.tokens.calibration import Line

MOST_STEPS = 40
LONGEST_REASON = 1_000
"""Characters."""


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
        "steps": [_shown(step, limits.line) for step in decision.steps[:MOST_STEPS]],
    }


def _shown(step: Step, line: Line) -> dict[str, Any]:
    reason = joined(step.why)
    return {
        "step": step.name,
        "outcome": step.outcome,
        "tokens": None if step.tokens is None else line.to_provider_tokens(step.tokens),
        "summaries": step.summaries,
        "reason": reason and reason[:LONGEST_REASON],
    }
