"""Altering: what the stages that shorten single messages have in common.

A stage says what is left of a message; what it says nothing of stays as it is. Such a change is for one payload only
and kept nowhere, so a later, smaller request has the whole message again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from msgspec.structs import replace

from app.compaction.mask import cut_arguments
from app.compaction.tool_output import shorten
from app.compaction.view import Alteration, Altered, Conversation, Part, View, append, message_of, standing
from app.conversation.messages import Kind, Message
from app.tokens.estimate import Cost

SHORTEST = 200
"""Characters that are left of a text in any case."""
OLDEST_WEIGHT = 0.20

Change = Callable[[int, Message], Message | None]
"""Function that returns what is left of the message at that position, or None to leave it as it is."""


def alter(
    conversation: Conversation, view: View, by: Alteration, cost: Cost, change: Change, *, may_grow: bool = False
) -> View:
    """The view with its messages changed, but for those that no stage may touch and those that would only grow."""
    parts: list[Part] = []
    saved = 0
    for index, part in standing(view):
        now = part
        if index is not None and _may_change(conversation, index):
            message = message_of(conversation, index, part)
            before = part.tokens if isinstance(part, Altered) else conversation.transcript.tokens_of(index)
            media = part.media if isinstance(part, Altered) else ()
            now = (
                _altered(conversation, index, message, change(index, message), before, by, cost, may_grow, media)
                or part
            )
            saved += before - now.tokens if isinstance(now, Altered) else 0
        append(parts, now)
    return replace(view, parts=tuple(parts), tokens=view.tokens - saved)


def _altered(
    conversation: Conversation,
    index: int,
    message: Message,
    changed: Message | None,
    before: int,
    by: Alteration,
    cost: Cost,
    may_grow: bool,
    media: tuple[str, ...],
) -> Altered | None:
    if changed is None or changed == message:
        return None
    # A mask in place of its media stays.
    tokens = cost(replace(changed, texts=(*changed.texts, *media), media=()) if media else changed)
    calls = None
    if changed.calls != conversation.transcript.messages[index].calls:
        calls = tuple((position, call.arguments) for position, call in enumerate(changed.calls))
    return Altered(index, changed.texts, tokens, by, calls, media) if may_grow or tokens < before else None


def results(conversation: Conversation, view: View) -> list[int]:
    """The positions of the messages in the view that hold tool results which may be altered, oldest first."""
    messages = conversation.transcript.messages
    held = ((index, messages[index]) for index in _changeable(conversation, view))
    return [index for index, message in held if message.kind is Kind.RESULT or message.answers]


def older_questions(conversation: Conversation, view: View) -> list[int]:
    """Positions of user messages but the last: what was asked, and what was pasted."""
    transcript = conversation.transcript
    asked = (index for index in _changeable(conversation, view) if transcript.messages[index].kind in _ASKED)
    return [index for index in asked if index != transcript.last_user]


_ASKED = frozenset({Kind.USER, Kind.CLIENT})


def asked_places(conversation: Conversation, index: int) -> frozenset[int]:
    """Places among the texts of a user message but the last that may be shortened: no results, and no instructions of
    the client."""
    message = conversation.transcript.messages[index]
    kept = conversation.client_context.places.get(index, frozenset())
    return frozenset(range(len(message.texts))) - kept - frozenset(message.result_places)


def _changeable(conversation: Conversation, view: View) -> Iterator[int]:
    return (index for index, _ in standing(view) if index is not None and _may_change(conversation, index))


def _may_change(conversation: Conversation, index: int) -> bool:
    return index not in conversation.unchangeable and not conversation.transcript.messages[index].sealed


def weights(positions: list[int]) -> dict[int, float]:
    """Recency: 0.20 for the oldest, growing linearly to 1.00 for the newest."""
    last = len(positions) - 1
    return {
        position: OLDEST_WEIGHT + (1 - OLDEST_WEIGHT) * rank / last if last else 1.0
        for rank, position in enumerate(positions)
    }


def shortened_texts(original: Message, message: Message, longest: int, places: Container[int]) -> Message:
    """Head and tail of its texts at these places, at most so many characters each.

    What an earlier stage left of them, where that is not longer. Otherwise it is cut out of the original: a notice
    inside a notice would tell a size that nothing ever had.
    """
    pairs = zip(original.texts, message.texts, strict=True)
    return replace(
        message,
        texts=tuple(
            shorten(was, longest) if place in places and len(now) > longest else now
            for place, (was, now) in enumerate(pairs)
        ),
    )


def shortened_arguments(original: Message, message: Message, longest: int) -> Message:
    """The message with arguments of at most about so many characters, as JSON objects; cut out of the original, too."""
    calls = tuple(
        replace(now, arguments=cut_arguments(was.arguments, longest)) if len(now.arguments) > longest else now
        for was, now in zip(original.calls, message.calls, strict=True)
    )
    return replace(message, calls=calls)


def result_size(message: Message) -> int:
    """Characters of the results that it holds."""
    return sum(len(message.texts[place]) for place in message.result_places)


def with_text(message: Message, text: str) -> Message:
    """All of its results' text in the first of them; the others are left empty."""
    first, *others = message.result_places
    texts = list(message.texts)
    texts[first] = text
    for place in others:
        texts[place] = ""
    return replace(message, texts=tuple(texts))


def trimmed(message: Message, longest: int, head: int, tail: int) -> Message:
    """Head and tail of results longer than `longest`, with the original size. All in characters."""
    text = "\n".join(message.texts[place] for place in message.result_places)
    if len(text) <= max(longest, head + tail):
        return message
    note = f"[Tool result trimmed: kept first {head} chars and last {tail} chars of {len(text)} chars.]"
    return with_text(message, f"{text[:head]}\n...\n{text[len(text) - tail :]}\n\n{note}")
