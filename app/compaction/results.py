"""Results of a compaction, and of one call for a summary."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct

from app.compaction.chunks import SummaryChunk
from app.conversation.reasons import Code, Reasons, because


class Outcome(Enum):
    """Result of an attempt at a compaction."""

    MADE = auto()
    """All that was planned."""
    FAILED = auto()
    LEASE_LOST = auto()
    """Another holder took the lease while the compaction was made: that one's result is worth looking for."""
    DELETED = auto()
    """The conversation is gone."""
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """The summary is still being made; the request goes on without."""
    AWAITED = auto()
    """Another request's compaction ended before this one began: its result is worth looking for."""
    IN_BACKGROUND = auto()
    """The summary is made after the request's answer, or being made already; the request goes on without."""
    NOTHING_TO_SUMMARISE = auto()
    NOT_BEGUN = auto()


_CODES: Mapping[Outcome, Code] = {
    Outcome.LEASE_LOST: Code.LEASE_LOST,
    Outcome.DELETED: Code.CONVERSATION_DELETED,
    Outcome.STORE_AWAY: Code.STORAGE,
    Outcome.TAKES_TOO_LONG: Code.SUMMARY_TAKES_TOO_LONG,
    Outcome.IN_BACKGROUND: Code.SUMMARY_IN_BACKGROUND,
    Outcome.NOTHING_TO_SUMMARISE: Code.NOTHING_TO_SUMMARISE,
}
"""Reason for each outcome that needs no more words."""


class Failure(Struct, frozen=True):
    """No answer could be had, or none that may be kept."""

    why: Reasons
    overflow: bool = False
    """The range was too large for one summary: a part of it may do."""
    outcome: Outcome = Outcome.FAILED


class Compaction(Struct, frozen=True):
    """Compaction that was tried: the chunks that were made, oldest first, and whether that is all of them."""

    made: tuple[SummaryChunk, ...]
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Reasons for what failed, or was not begun."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def reasons(self) -> Reasons:
        """Reasons that are told of the compaction."""
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])
