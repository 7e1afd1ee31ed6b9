"""Steps: what was tried for a payload, in order, and what came of each: so that somebody can follow a decision."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.conversation.reasons import Reasons

StepName = Literal[
    "stored", "mask", "summarise", "least", "widest", "fit", "prune", "truncate", "without_summaries", "unchanged"
]
"""`stored`: the least view over what is stored; `mask`: a new boundary; `summarise`: a compaction. Then what was sent,
or not: the least view, the one with every summary and mask in use, that with its large texts shortened, with messages
left out, with everything truncated; the same of the whole history, without summaries; the history as it came."""


class Step(Struct, frozen=True):
    name: StepName
    outcome: str
    """`fits`, `too_large`; `set`, `put_off`; a compaction's outcome; `sent`, `refused`."""
    tokens: int | None = None
    """Our estimate of the view, or of the summaries that were made."""
    summaries: int = 0
    """How many stand in the view, or were made."""
    why: Reasons = ()
