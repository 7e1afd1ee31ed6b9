"""Fading: the fuller the window, the less is left of tool results, the oldest first. For this request only."""

from __future__ import annotations

from app.compaction.fit import cut_to_shares
from app.compaction.view import Conversation, View
from app.tokens.estimate import Cost

BANDS = ((0.99, 0.05), (0.90, 0.2), (0.85, 0.5), (0.80, 1.0))
"""Pairs of a pressure and the share of the room that counts from it on: light, clear, heavy, near placeholders."""
LEAST_ROOM = 1_024
FADE_AT = BANDS[-1][0]


def pressure(conversation: Conversation, view: View, limit: int) -> float:
    """The messages' share of the limit, without instructions and tools."""
    return (view.tokens - conversation.instruction_tokens) / limit if limit else 1.0


def fade(conversation: Conversation, view: View, limit: int, cost: Cost) -> View:
    """The view as the band it has reached leaves it. Formula (LibreChat agents): as `fit` does, with a room of
    max(1,024, effective x factor)."""
    reached = pressure(conversation, view, limit)
    factor = next((factor for band, factor in BANDS if reached >= band), None)
    if factor is None:
        return view
    effective = max(0, limit - conversation.instruction_tokens)
    return cut_to_shares(conversation, view, max(LEAST_ROOM, int(effective * factor)), "faded", cost, documents=False)
