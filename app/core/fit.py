"""Fit: shorten single messages that are too large for the budget, for this request only.

The mechanical step of the ladder, where no summary can be had. The last user message and the instructions are never
touched, nor is a message of the assistant.
"""

from __future__ import annotations

from dataclasses import replace

from app.core.estimate import Cost
from app.core.messages import Message
from app.core.prompts import shorten
from app.core.view import Conversation, Part, Shortened, Verbatim, View

CHARACTERS_PER_TOKEN = 4
MESSAGE_SHARE = 0.30
"""One message may take this share of the room, the newest; the oldest a fifth of that."""
LONGEST = 400_000
SHORTEST = 200
OLDEST_WEIGHT = 0.20

SHORTENED_ROLES = frozenset({"tool", "function", "user"})


def fit(conversation: Conversation, view: View, at_most: int, cost: Cost) -> View:
    """The view with its large tool results and pasted documents cut head and tail, the older the shorter.

    `at_most` is the limit in tokens; whether the result meets it is for the caller to check. Formula: a text keeps
    min(0.30 * room * 4, 400,000) characters times its recency, which grows from 0.20 to 1.00, at least 200.
    """
    summaries = sum(chunk.tokens for chunk in view.chunks)
    room = max(0, at_most - conversation.instruction_tokens - summaries)
    allowed = min(int(MESSAGE_SHARE * room) * CHARACTERS_PER_TOKEN, LONGEST)
    transcript = conversation.transcript
    parts: list[Part] = []
    saved = 0
    for part in view.parts:
        if not isinstance(part, Verbatim):
            parts.append(part)
            continue
        oldest, span = part.start, max(1, part.stop - part.start - 1)
        for index in range(part.start, part.stop):
            message = transcript.messages[index]
            recency = OLDEST_WEIGHT + (1 - OLDEST_WEIGHT) * (index - oldest) / span
            longest = max(SHORTEST, int(allowed * recency))
            shortened = None
            if message.role in SHORTENED_ROLES and index != transcript.last_user:
                shortened = _shorten(index, message, transcript.tokens_of(index), longest, cost)
            saved += transcript.tokens_of(index) - shortened.tokens if shortened else 0
            _append(parts, shortened or Verbatim(index, index + 1))
    return replace(view, parts=tuple(parts), tokens=view.tokens - saved)


def _shorten(index: int, message: Message, before: int, longest: int, cost: Cost) -> Shortened | None:
    texts = tuple(shorten(text, longest) for text in message.texts)
    if texts == message.texts:
        return None
    tokens = cost(replace(message, texts=texts))
    return Shortened(index, texts, tokens) if tokens < before else None


def _append(parts: list[Part], part: Part) -> None:
    last = parts[-1] if parts else None
    if isinstance(part, Verbatim) and isinstance(last, Verbatim) and last.stop == part.start:
        parts[-1] = Verbatim(last.start, part.stop)
    else:
        parts.append(part)
