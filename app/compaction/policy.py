"""Policies: which stages a conversation goes through, and how. A preset is one of them, by name."""

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
"""How summaries are made: a chunk for each range; one over everything, from the originals; one since the last, and the
last one with it (checkpoint, rolling); or none at all."""

CUMULATIVE: frozenset[Strategy] = frozenset({"full", "checkpoint", "rolling"})
"""Strategies whose summary stands for the whole history before the tail."""
SUMMARISING: frozenset[Strategy] = CUMULATIVE | {"additive"}


class Policy(Struct, frozen=True):
    strategy: Strategy = "additive"
    mask: MaskPolicy | None = field(default_factory=MaskPolicy)
    session_pruning: SessionPruning | None = None
    window_turns: int | None = None
    """Whole turns before the current one that are sent; None for all that fit."""
    fade: bool = False
    fit: bool = True
    prune: bool = True
    stub: bool = True
    """Whether a note stands where messages are left out."""
    emergency: bool = True
    cost_gate: CostGate | None = field(default_factory=CostGate)
    recall: RecallPolicy | None = field(default_factory=RecallPolicy)
    user_words: bool = True
    """Whether the user's words stay when their messages are left out."""
    folds_in: bool = True
    """Whether a fold is part of the summary that makes it due, not a call of its own."""
    failed_results: int = 0
    """Latest failed tool calls that are appended to a summary as they are."""
    alternates: bool = False
    """Whether the provider refuses two messages of the user, or of the assistant, in a row."""

    @property
    def summarises(self) -> bool:
        return self.strategy in SUMMARISING

    def leaves_alone(self, conversation: Conversation, budget: Budget) -> bool:
        """Whether no stage would change the conversation; counts tokens only if necessary."""
        return self._is_quiet(conversation, budget) and conversation.is_within(self.quiet_tokens(budget))

    def surely_leaves_alone(self, conversation: Conversation, budget: Budget, quiet_tokens: int) -> bool:
        """Whether `leaves_alone` is known to be true without counting tokens. `quiet_tokens`: result of the method for
        this budget."""
        bound = conversation.bound
        return bound is not None and bound <= quiet_tokens and self._is_quiet(conversation, budget)

    def _is_quiet(self, conversation: Conversation, budget: Budget) -> bool:
        """Whether masks, pruning and the turn window, which count no tokens, leave it alone."""
        if self.mask and exceeds(conversation, self.mask, budget.body_bytes):
            return False
        if self.session_pruning and not is_quiet(conversation, self.session_pruning, budget.window):
            return False
        most = self.window_turns
        return most is None or len(conversation.transcript.turn_starts) <= most + 1

    def quiet_tokens(self, budget: Budget) -> int:
        """Largest history, in tokens, that stays within all thresholds."""
        pressures = [FADE_AT] if self.fade else []
        if self.mask and self.mask.pressure is not None:
            pressures.append(self.mask.pressure)
        thresholds = [budget.trigger.quiet_tokens, *(int(pressure * budget.limit) - 1 for pressure in pressures)]
        return min(budget.limit, *thresholds)


class SummaryOptions(Struct, frozen=True):
    """How chunks are made, and what the summariser can read, in tokens."""

    model: str
    prompt: str
    input_tokens: int
    """Most tokens of a transcript that one call reads."""
    part_tokens: int
    """Most tokens of a part: what exceeds one call is read in parts."""
    source_tokens: int | None = None
    """Most tokens that one summary stands for, one of everything aside: a larger range becomes several. None: no
    bound."""
    update_prompt: str = ""
    """Prompt where there is a summary to go on from; the same prompt if empty."""
    focus: str = ""
    """Subject that this conversation's summaries are to look after, in the client's words."""
    ratio: float = 1.0
    """The summariser's own tokens for each one we estimate: its answers are capped in those."""
    strategy: Strategy = "additive"
    folds_in: bool = True
    """Whether a summary that makes a fold due is made in one call with it."""
    style: Literal["transcript", "prefix"] = "transcript"
    """Whether the summariser is shown quoted text, or the conversation itself, which its provider has in its cache."""
    shown_tokens: int = 0
    """The conversation itself is shown up to this size, in one call: it is what was sent a turn ago, and fitted."""
    alternates: bool = False
    """Whether the summariser refuses two messages of one role in a row."""
    values_share: float = 0.0
    """Exact values take at most this share of what a chunk may have."""
    user_words: bool = False
    """Whether the user's words stand beside a summary."""
    failed_results: int = 0
    """Failed tool calls that are appended to a summary as they are, because models leave them out; at most so many."""

    @property
    def cumulative(self) -> bool:
        return self.strategy in CUMULATIVE
