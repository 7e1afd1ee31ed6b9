"""Edits: what clients ask their provider to take out of the history, done here where it cannot.

Old results are cleared by masks: see `Clearing`. Thinking of older turns is left out. A prompt that is too long is made
to fit, whatever the policy does otherwise.
"""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct
from msgspec.structs import replace

from app.core.tokens.estimate import Cost
from app.core.view.mask import Clearing, uses_of
from app.core.view.view import Altered, Conversation, View


class Edits(Struct, frozen=True):
    clearing: Clearing | None = None
    thinking_turns: int | None = None
    """Number of the latest turns with thinking that keep it; None for all."""
    fits: bool = False
    """Whether what is too long is left out, from the beginning on."""


class Made(Struct, frozen=True):
    """Extent of the edits in one view. Tokens are our estimate."""

    uses: int = 0
    """Number of uses of tools whose results are cleared."""
    uses_tokens: int = 0
    turns: int = 0
    """Number of turns whose thinking is left out."""
    turns_tokens: int = 0


def made_in(conversation: Conversation, view: View | None, edits: Edits, cost: Cost) -> Made:
    """Extent of the edits in a view; None is the history as it came."""
    if view is None:
        return Made()
    transcript = conversation.transcript
    cleared = [part for part in view.parts if isinstance(part, Altered) and part.by == "masked" and edits.clearing]
    places = _thinking_before(conversation, edits.thinking_turns)
    untied = {index: turn for index, turn in places.items() if index in view.untied}
    messages = [transcript.messages[index] for index in untied]
    return Made(
        uses=sum(uses_of(transcript.messages[part.index]) for part in cleared),
        uses_tokens=sum(transcript.tokens_of(part.index) - part.tokens for part in cleared),
        turns=len(set(untied.values())),
        turns_tokens=sum(cost(message) - cost(replace(message, thoughts=())) for message in messages),
    )


def thinking_before(conversation: Conversation, turns: int | None) -> frozenset[int]:
    """Positions of the messages whose thinking is older than that of so many turns."""
    return frozenset(_thinking_before(conversation, turns))


def _thinking_before(conversation: Conversation, turns: int | None) -> dict[int, int]:
    """The same, each with its turn."""
    if turns is None:
        return {}
    transcript = conversation.transcript
    thinking = {
        index: bisect_right(transcript.turn_starts, index)
        for index, message in enumerate(transcript.messages)
        if message.tied
    }
    kept = sorted(set(thinking.values()))[-turns:]
    return {index: turn for index, turn in thinking.items() if turn not in kept}
