"""Fit: single messages that are too large for the budget are cut head and tail, for this request only.

The first mechanical step, where the payload would not fit. The last user message, the instructions and the
assistant's texts are never touched.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.compaction.alter import (
    SHORTEST,
    alter,
    asked_places,
    older_questions,
    results,
    shortened_arguments,
    shortened_texts,
    weights,
)
from app.compaction.view import Alteration, Conversation, Summary, View
from app.conversation.messages import Message
from app.tokens.estimate import Cost

CHARACTERS_PER_TOKEN = 4
RESULT_SHARE = 0.30
"""One tool result, or one pasted document, may take this share of the room, the newest; the oldest a fifth of that."""
LONGEST_RESULT = 400_000
ARGUMENTS_SHARE = 0.15
LONGEST_ARGUMENTS = 200_000


def fit(conversation: Conversation, view: View, at_most: int, cost: Cost) -> View:
    """The view with its large tool results, call arguments and pasted documents cut, the older the shorter.

    `at_most` is the limit in tokens; whether the result meets it is for the caller to check. Formula (LibreChat
    agents): a result keeps min(0.30 x room x 4, 400,000) characters times its recency, at least 200; arguments keep
    min(0.15 x room x 4, 200,000).
    """
    room = room_of(conversation, view, at_most)
    return cut_to_shares(conversation, view, room, "shortened", cost, documents=True)


def truncations(conversation: Conversation, view: View, at_most: int, cost: Cost) -> Iterator[View]:
    """The last resort: max(200, 4 x room / messages) characters of every result and every call's arguments.

    Then half of that, and so on: one message may hold many calls.
    """
    messages = max(1, len(conversation.transcript))
    longest = CHARACTERS_PER_TOKEN * (room_of(conversation, view, at_most) // messages)
    while longest > SHORTEST:
        yield _truncated(conversation, view, longest, cost)
        longest //= 2
    yield _truncated(conversation, view, SHORTEST, cost)


def _truncated(conversation: Conversation, view: View, longest: int, cost: Cost) -> View:
    originals, held = conversation.transcript.messages, frozenset(results(conversation, view))

    def change(index: int, message: Message) -> Message:
        original = originals[index]
        left = shortened_texts(original, message, longest, original.result_places) if index in held else message
        return shortened_arguments(original, left, longest)

    return alter(conversation, view, "truncated", cost, change)


def room_of(conversation: Conversation, view: View, at_most: int) -> int:
    """Tokens that the limit leaves for messages that no summary stands for."""
    summaries = sum(part.chunk.tokens for part in view.parts if isinstance(part, Summary))
    return max(0, at_most - conversation.instruction_tokens - summaries)


def cut_to_shares(
    conversation: Conversation, view: View, room: int, by: Alteration, cost: Cost, *, documents: bool
) -> View:
    """Every tool result within its share of the room, and every call's arguments; `documents`: older user messages."""
    longest = min(int(RESULT_SHARE * room) * CHARACTERS_PER_TOKEN, LONGEST_RESULT)
    longest_arguments = max(SHORTEST, min(int(ARGUMENTS_SHARE * room) * CHARACTERS_PER_TOKEN, LONGEST_ARGUMENTS))
    originals, weight = conversation.transcript.messages, weights(results(conversation, view))
    asked = weights(older_questions(conversation, view)) if documents else {}

    def change(index: int, message: Message) -> Message:
        original, left = originals[index], message
        if index in weight:
            most = max(SHORTEST, int(longest * weight[index]))
            left = shortened_texts(original, left, most, original.result_places)
        if index in asked:
            most = max(SHORTEST, int(longest * asked[index]))
            left = shortened_texts(original, left, most, asked_places(conversation, index))
        return shortened_arguments(original, left, longest_arguments)

    return alter(conversation, view, by, cost, change)
