"""Summary settings: how a request's summaries are made."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.compaction.policy import CUMULATIVE, Strategy
from app.conversation.secrets import Scrub, without_secrets


class SummaryBrief(Struct, frozen=True):
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

    scrub: Scrub = without_secrets
    """Function from a text that a summariser is quoted, or that is stored, to what is left of it."""

    @property
    def cumulative(self) -> bool:
        """Whether a summary stands for the whole history before the tail."""
        return self.strategy in CUMULATIVE
