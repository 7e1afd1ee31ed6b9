"""Policies: the stages of compaction and their settings. A preset is a named policy."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from app.compaction.budget import Budget
from app.compaction.mask import MaskPolicy, exceeds
from app.compaction.recall import RecallPolicy
from app.compaction.trim import FADE_AT, SessionPruning, is_quiet
from app.compaction.view import Conversation
from app.tokens.usage import CostGate

Strategy = Literal["additive", "full", "checkpoint", "rolling", "window", "none"]
"""Way to make summaries. `additive`: a chunk for each range of messages. `full`: one summary of the whole history.
`checkpoint`, `rolling`: one summary, of the previous one and the messages since. `window`, `none`: no summaries."""

CUMULATIVE: frozenset[Strategy] = frozenset({"full", "checkpoint", "rolling"})
"""Strategies in which a single summary replaces the whole history before the tail."""
SUMMARISING: frozenset[Strategy] = CUMULATIVE | {"additive"}


class Policy(Struct, frozen=True):
    strategy: Strategy = "additive"
    mask: MaskPolicy | None = field(default_factory=MaskPolicy)
    session_pruning: SessionPruning | None = None
    window_turns: int | None = None
    """Number of complete turns that are sent before the current turn; None for as many as fit."""
    fade: bool = False
    fit: bool = True
    prune: bool = True
    stub: bool = True
    """Whether a note replaces omitted messages."""
    emergency: bool = True
    cost_gate: CostGate | None = field(default_factory=CostGate)
    recall: RecallPolicy | None = field(default_factory=RecallPolicy)
    user_words: bool = True
    """Whether Steno quotes the user's words when it summarises or omits user messages."""
    folds_in: bool = True
    """Whether a due fold is made in the same call as the new summary."""
    failed_results: int = 0
    """Maximum number of failed tool calls that are appended to a summary verbatim, the latest ones."""
    alternates: bool = False
    """Whether the provider refuses two consecutive user messages or assistant messages."""

    @property
    def summarises(self) -> bool:
        return self.strategy in SUMMARISING

    def leaves_alone(self, conversation: Conversation, budget: Budget, *, counts: bool = True) -> bool:
        """Return whether no stage would change the conversation. Tokens are counted only if necessary; without `counts`
        the result is then False."""
        bound, quiet = conversation.bound, self.quiet_tokens(budget)
        if not (conversation.is_within(quiet) if counts else bound is not None and bound <= quiet):
            return False
        # The thresholds of these stages are not tokens.
        if self.mask and exceeds(conversation, self.mask, budget.body_bytes):
            return False
        if self.session_pruning and not is_quiet(conversation, self.session_pruning, budget.window):
            return False
        most = self.window_turns
        return most is None or len(conversation.transcript.turn_starts) <= most + 1

    def quiet_tokens(self, budget: Budget) -> int:
        """Return the maximum tokens of a history that exceeds no threshold."""
        pressures = [FADE_AT] if self.fade else []
        if self.mask and self.mask.pressure is not None:
            pressures.append(self.mask.pressure)
        thresholds = [budget.trigger.quiet_tokens, *(int(pressure * budget.limit) - 1 for pressure in pressures)]
        return min(budget.limit, *thresholds)


class SummaryOptions(Struct, frozen=True):
    """Settings of the summaries of a request, and limits of the summariser in tokens."""

    model: str
    prompt: str
    input_tokens: int
    """Maximum tokens of a transcript in one call."""
    part_tokens: int
    """Maximum tokens of a part, if a transcript is too long for one call and is split into parts."""
    source_tokens: int | None = None
    """Maximum tokens that one summary replaces, unless it is cumulative; None for no maximum."""
    update_prompt: str = ""
    """Prompt for updating an earlier summary; empty to use `prompt`."""
    focus: str = ""
    """Subject that the client wants summaries to emphasise, in its own words."""
    ratio: float = 1.0
    """Tokens of the summariser per estimated token. Output caps of its calls are multiplied by it."""
    strategy: Strategy = "additive"
    folds_in: bool = True
    """Whether a due fold is made in the same call as the new summary."""
    style: Literal["transcript", "prefix"] = "transcript"
    """`transcript`: the summariser reads a quoted transcript. `prefix`: it reads the conversation itself, which its
    provider may have cached."""
    shown_tokens: int = 0
    """Maximum tokens of the conversation in a call of style `prefix`."""
    alternates: bool = False
    """Whether the summariser refuses two consecutive messages of one role."""
    values_share: float = 0.0
    """Maximum share of a chunk for exact values."""
    user_words: bool = False
    """Whether the user's words are quoted after a summary."""
    failed_results: int = 0
    """Maximum number of failed tool calls that are appended to a summary verbatim, because models omit them."""

    @property
    def cumulative(self) -> bool:
        return self.strategy in CUMULATIVE
