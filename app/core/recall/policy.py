"""How much is recalled, and of how long a history."""

from __future__ import annotations

from msgspec import Struct


class RecallPolicy(Struct, frozen=True):
    max_ratio: float = 0.05
    """Share of the limit that the quotations for one message may take."""
    max_tokens: int = 2_048
    """Most tokens that are quoted. Ratio and bound follow the calibration in coarse steps."""
    history_tokens: int = 2_000_000
    """Most tokens of a history that is recalled from: to look through a longer one would take too long."""
