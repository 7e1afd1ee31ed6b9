"""Position pruning, as LibreChat does it: large tool results are trimmed or cleared by their age in the conversation.

For this request only, and whatever the pressure is. The names are those of session pruning, the meanings are not:
ratios are ages here, from 0 (newest) to 1 (oldest), and `min_prunable_tool_chars` is the size of a single result.
"""

from __future__ import annotations

from msgspec import Struct

from app.core.history.messages import Kind, Message
from app.core.stages.alter import alter, result_size, results, trimmed, with_text
from app.core.tokens.estimate import Cost
from app.core.view.view import Conversation, View

TRIM_OVER = 4_000
HEAD = TAIL = 1_500
PLACEHOLDER = "[Old tool result content cleared]"
"""All in characters."""


class PositionPruning(Struct, frozen=True):
    """LibreChat's settings, with its code's defaults."""

    keep_last_assistants: int = 3
    soft_trim_ratio: float = 0.3
    hard_clear_ratio: float = 0.5
    min_prunable_tool_chars: int = 50_000


def prune_by_position(conversation: Conversation, view: View, settings: PositionPruning, cost: Cost) -> View:
    """The view with old, large results cleared, those of middle age trimmed."""
    messages, before = conversation.transcript.messages, len(conversation.instructions)
    count = before + len(messages)
    first, stop = _first_user(conversation), _protected_from(messages, settings.keep_last_assistants)
    ages = {
        index: (count - before - index) / count
        for index in results(conversation, view)
        if first <= index < stop and result_size(messages[index]) >= settings.min_prunable_tool_chars
    }
    clear = {index for index, age in ages.items() if age >= settings.hard_clear_ratio}
    trim = {index for index, age in ages.items() if age >= settings.soft_trim_ratio} - clear
    view = alter(
        conversation, view, "cleared", cost, lambda index, m: with_text(m, PLACEHOLDER) if index in clear else None
    )
    return alter(
        conversation,
        view,
        "trimmed",
        cost,
        lambda index, _: trimmed(messages[index], TRIM_OVER, HEAD, TAIL) if index in trim else None,
    )


def _first_user(conversation: Conversation) -> int:
    starts = conversation.transcript.turn_starts
    return starts[0] if starts else len(conversation.transcript)


def _protected_from(messages: tuple[Message, ...], keep: int) -> int:
    """Start of the last so many assistant turns: runs of the assistant's messages and their results."""
    runs, position = 0, len(messages)
    while position and runs < keep:
        position -= 1
        if _is_assistants(messages[position]) and (position == 0 or not _is_assistants(messages[position - 1])):
            runs += 1
    return position if runs == keep else 0


def _is_assistants(message: Message) -> bool:
    return message.kind in (Kind.ASSISTANT, Kind.RESULT)
