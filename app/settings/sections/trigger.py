"""The trigger: the size of a prompt over which a compaction is due."""

from __future__ import annotations

from pydantic import Field

from app.compaction.budget import Shares
from app.settings.types import Ratio, Section
from app.tokens.usage import MOST_TOKENS


class TriggerSettings(Section):
    """Size of the prompt over which a compaction is due; one of them is enough.

    One of a model replaces that of `compaction`.
    """

    token_ratio: Ratio | None = Shares().trigger
    """Share of the limit that the estimate of the prompt exceeds; null: the limit itself.

    The limit is the window less the request's output cap, of which at most a quarter of the window counts. Without a
    cap 5 % of the window are kept free, at most 8,192 tokens. Above 0.9 the provider may refuse before Steno acts:
    estimates are off by some percent.
    """
    tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """Tokens over which a compaction is due however large the window is; 0: no such cap.

    Target and tail are shares of at most that. Null: 160,000; [more for a few models](policies.md#default), and less
    where the list price rises.
    """
