"""Decision: the payload of a request, the steps that led to it, and a report for the client and the inspector."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, WindowSource
from app.compaction.chunks import SummaryChunk
from app.compaction.view import Conversation, View
from app.conversation.lazy import lazy
from app.conversation.reasons import Code, Reasons, because, joined

MOST_STEPS = 40
LONGEST_REASON = 1_000
"""Maximum characters of a reason in an account."""

Status = Literal["full", "summarized", "trimmed"]
"""`full`: all messages are sent unchanged. `summarized`: summaries replace some messages. `trimmed`: messages are
shortened or omitted, without a summary."""

StepName = Literal[
    "stored", "mask", "summarise", "least", "widest", "fit", "prune", "truncate", "without_summaries", "unchanged"
]
"""`stored`: the stored chunks were read. `mask`: a boundary was set. `summarise`: a compaction was tried. The other
steps are views. `least` changes the history least, and `widest` uses all summaries and masks. `fit`, `prune` and
`truncate` shorten the widest view. `without_summaries` is shortened instead, and `unchanged` is the history itself."""


class Step(Struct, frozen=True):
    name: StepName
    outcome: str
    """`stored`: `fits` or `too_large`. `mask`: `set` or `put_off`. `summarise`: name of the `Outcome`. A view: `sent`
    or `refused`."""
    tokens: int | None = None
    """Estimated tokens of the view, or of the summaries that were made."""
    summaries: int = 0
    """Number of summaries in the view, or made."""
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
    """Steps that were tried, the sent view last. Empty if no view was considered."""
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
TASK_BUDGET_LOWERED = "task_budget_lowered"
"""Action of a decision that lowers the client's task budget by the tokens that Steno omits."""
THINKING_OFF = "thinking_off"
"""Action of a decision that turns thinking off for this answer. With thinking on, the provider would require the turn's
earlier thinking, which it has refused."""


def capped(decision: Decision, tokens: int) -> Decision:
    others = (action for action in decision.actions if action != OUTPUT_CAPPED)
    return replace(decision, output_cap=tokens, actions=(*others, OUTPUT_CAPPED))


UNTOUCHED = Decision(None)
"""Decision if nothing is due."""


def floor_exceeded(conversation: Conversation, budget: Budget, model: str) -> Reasons:
    """Return the reason why no compaction can help: the parts of the prompt that must stay exceed the limit."""
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


def account_of(conversation: Conversation, budget: Budget, source: WindowSource, decision: Decision) -> dict[str, Any]:
    """Return a report of a decision as JSON members, with the provider's tokens. `source`: origin of the window.
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
