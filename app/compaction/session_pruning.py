"""Session pruning, as OpenClaw does it: old tool results are trimmed or cleared, for this request only.

It measures the fill of the window in characters, not by the trigger, and changes nothing but tool results before the
third-last message of the assistant. The names are those of position pruning, the meanings are not: ratios are fill of
the window here, and `min_prunable_tool_chars` is a sum over all results.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Literal

from msgspec import Struct

from app.compaction.alter import alter, result_size, results, trimmed, with_text
from app.compaction.mask import is_allowed
from app.compaction.view import Altered, Carried, Conversation, Summary, Verbatim, View, message_of, standing
from app.conversation.messages import Kind, Message
from app.tokens.estimate import Cost

CHARACTERS_PER_TOKEN = 4
"""OpenClaw's own measure of fill; everything else in Steno uses the estimate."""


class SessionPruning(Struct, frozen=True):
    """OpenClaw's settings, with its defaults, of which Steno's turn the mode and the tools. Sizes in characters, ratios
    of the window."""

    mode: Literal["adaptive", "aggressive"] = "adaptive"
    keep_last_assistants: int = 3
    soft_trim_ratio: float = 0.3
    soft_trim_max_chars: int = 4_000
    soft_trim_head_chars: int = 1_500
    soft_trim_tail_chars: int = 1_500
    hard_clear_ratio: float = 0.5
    hard_clear_placeholder: str = "[Old tool result content cleared]"
    min_prunable_tool_chars: int = 50_000
    deny: tuple[str, ...] = ()


def is_quiet(conversation: Conversation, settings: SessionPruning, window: int) -> bool:
    """Whether it surely changes nothing, decided without counting tokens."""
    messages = conversation.transcript.messages
    if settings.mode == "aggressive":
        return not any(message.kind is Kind.RESULT or message.answers for message in messages)
    return _fill(sum(map(_size, (*conversation.instructions, *messages))), window) < settings.soft_trim_ratio


def prune_session(conversation: Conversation, view: View, settings: SessionPruning, window: int, cost: Cost) -> View:
    """The view with old results trimmed and, where that is not enough, cleared. `window` in the provider's tokens."""
    eligible = _eligible(conversation, view, settings)
    if settings.mode == "aggressive":
        return _cleared(conversation, view, eligible, settings, cost)
    total = _characters(conversation, view)
    if _fill(total, window) < settings.soft_trim_ratio:
        return view
    trim = settings.soft_trim_max_chars, settings.soft_trim_head_chars, settings.soft_trim_tail_chars
    left = {index: trimmed(message, *trim) for index, message in eligible.items()}
    sizes = {index: result_size(message) for index, message in left.items()}
    total -= sum(map(result_size, eligible.values())) - sum(sizes.values())
    view = alter(conversation, view, "trimmed", cost, lambda index, _: left.get(index))
    return _cleared(conversation, view, _too_many(sizes, total, settings, window), settings, cost)


def _too_many(sizes: Mapping[int, int], total: int, settings: SessionPruning, window: int) -> set[int]:
    """The oldest results of these sizes, as many as have to go; what is shorter than what would stand for it stays."""
    found: set[int] = set()
    if sum(sizes.values()) < settings.min_prunable_tool_chars:
        return found
    for index, size in sizes.items():
        gain = size - len(settings.hard_clear_placeholder)
        if _fill(total, window) >= settings.hard_clear_ratio and gain > 0:
            found.add(index)
            total -= gain
    return found


def _size(message: Message) -> int:
    return sum(map(len, (*message.texts, *(call.arguments for call in message.calls))))


def _characters(conversation: Conversation, view: View) -> int:
    """Characters of all that is sent, but for the copies of pinned messages."""
    total = sum(map(_size, conversation.instructions))
    for index, part in standing(view):
        match part:
            case Verbatim() | Altered() if index is not None:
                total += _size(message_of(conversation, index, part))
            case Carried(carried):
                total += _size(conversation.transcript.messages[carried])
            case Summary(chunk):
                total += len(chunk.text)
            case _:
                pass
    return total


def _fill(characters: int, window: int) -> float:
    return characters / CHARACTERS_PER_TOKEN / window


def _eligible(conversation: Conversation, view: View, settings: SessionPruning) -> dict[int, Message]:
    """Results of allowed tools, without images, before the assistant's latest messages; oldest first."""
    messages = conversation.transcript.messages
    spoken = [index for index, message in enumerate(messages) if message.kind is Kind.ASSISTANT]
    if len(spoken) < settings.keep_last_assistants:
        return {}
    cutoff = spoken[-settings.keep_last_assistants] if settings.keep_last_assistants else len(messages)
    allowed = {
        index
        for index in results(conversation, view)
        if index < cutoff
        and not messages[index].media
        and is_allowed(conversation.transcript.tool_name(index), settings.deny)
    }
    return {index: message_of(conversation, index, part) for index, part in standing(view) if index in allowed}


def _cleared(
    conversation: Conversation, view: View, indexes: Container[int], settings: SessionPruning, cost: Cost
) -> View:
    def change(index: int, message: Message) -> Message | None:
        if index not in indexes or not message.result_places:
            return None
        return with_text(message, settings.hard_clear_placeholder)

    return alter(conversation, view, "cleared", cost, change, may_grow=True)
