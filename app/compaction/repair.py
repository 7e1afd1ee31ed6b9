"""Repair: calls and results that a view leaves alone are taken out, as the last step before a check.

A provider refuses a payload with a call but not its result, or the other way round. Some refuse two messages of the
assistant in a row as well: for those a note stands between what was made neighbours.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec.structs import replace

from app.compaction.verify import gaps_in, is_call_kept, kept_calls_of, order_of
from app.compaction.view import (
    Altered,
    Conversation,
    Note,
    Part,
    Pruned,
    Verbatim,
    View,
    append,
    message_of,
    standing,
)
from app.conversation.messages import History, Kind, Message, own_message
from app.conversation.tool_results import CallPosition
from app.tokens.estimate import Cost

GAP = "[Messages of this conversation are left out here.]"


def repair(conversation: Conversation, view: View, cost: Cost, *, orphans: bool = True) -> View:
    """The view without calls whose results it lacks, and results whose calls it lacks; itself where there are none.

    `orphans`: calls and results that the client itself sent alone go, too. Those at the end of the history stay: the
    client has just sent them.
    """
    held = {index: part for index, part in standing(view) if index is not None}
    messages = conversation.transcript.messages
    end = _begin_of_end(messages) if orphans else 0
    sent = {index for index in order_of(view) if index is not None}
    left = {
        index: calls
        for index in held
        if len(calls := _calls_left(messages, index, sent, end)) < len(messages[index].calls)
    }
    lost = {index for index, calls in left.items() if _goes(conversation, index, held[index], calls)}
    kept_calls = {**kept_calls_of(view), **left}
    lost |= {index for index in held if _loses_calls(messages, index, sent - lost, kept_calls, end)}
    for place in [*held][::-1]:
        if messages[place].bound and place + 1 in lost:
            lost.add(place)
    if not (lost or left):
        return view
    parts: list[Part] = []
    tokens, without_thinking = view.tokens, set(view.without_thinking)
    for index, part in standing(view):
        now = part
        if index in lost:
            now = Pruned(index, index + 1, "repaired")
        elif index in left:
            now = _with_calls(conversation, index, part, left[index], cost)
            if messages[index].signed_thinking and not left[index]:
                without_thinking.add(index)
        tokens += _tokens(conversation, index, now) - _tokens(conversation, index, part)
        append(parts, now)
    return replace(view, parts=tuple(parts), tokens=tokens, without_thinking=frozenset(without_thinking))


def separated(conversation: Conversation, view: View, cost: Cost) -> View:
    """The view with a note wherever the assistant would begin, or speak twice in a row, and did not in the client's own
    history; itself where that is nowhere so."""
    gaps = frozenset(gaps_in(conversation.transcript.messages, list(order_of(view))))
    if not gaps:
        return view
    note = Note("stub", GAP, cost(own_message(GAP)))
    parts: list[Part] = []
    place = 0
    for part in view.parts:
        size = len(list(order_of(replace(view, parts=(part,)))))
        parts += [note, part] if size and place in gaps else [part]
        place += size
    return replace(view, parts=tuple(parts), tokens=view.tokens + len(gaps) * note.tokens)


def _begin_of_end(messages: Sequence[Message]) -> int:
    """Index of the first message that the client has just sent: the results at the end with the calls before them."""
    start = len(messages)
    while start and messages[start - 1].answers:
        start -= 1
    while start and messages[start - 1].kind is Kind.ASSISTANT:
        start -= 1
    return start


def _calls_left(messages: History, index: int, sent: set[int], end: int) -> list[int]:
    """The calls of a message that stay: one of their results is sent. From `end` on so do those that have none, and
    those without an id."""
    return [
        place
        for place, call in enumerate(messages[index].calls)
        if (
            not sent.isdisjoint(results)
            if (results := messages.results.get(CallPosition(index, place)))
            else index >= end or not call.id
        )
    ]


def _goes(conversation: Conversation, index: int, part: Part, calls: Sequence[int]) -> bool:
    """Whether a message that loses some of its calls goes as a whole: it says nothing else, or may only be sent as it
    is."""
    message = message_of(conversation, index, part)
    return message.sealed or not (calls or any(text.strip() for text in message.texts))


def _loses_calls(
    messages: History, index: int, sent: set[int], kept_calls: Mapping[int, Container[int]], end: int
) -> bool:
    """Whether a message of results goes: none of their calls is sent. Before `end` so does one that names calls that
    are not in the history, unless a user speaks in it."""
    message = messages[index]
    made = [CallPosition(index - caller.distance, caller.call) for caller in message.callers if caller]
    if made:
        return not any(is_call_kept(call, sent, kept_calls) for call in made)
    return any(message.answers) and index < end and message.kind is not Kind.USER


def _with_calls(conversation: Conversation, index: int, part: Part, left: Sequence[int], cost: Cost) -> Altered:
    """The assistant's message with these of its calls. Without any it goes without signed thoughts as well: none may
    stand last."""
    message, calls = message_of(conversation, index, part), conversation.transcript.messages[index].calls
    arguments = dict(part.calls) if isinstance(part, Altered) and part.calls is not None else {}
    kept = tuple(replace(calls[place], arguments=arguments.get(place, calls[place].arguments)) for place in left)
    thoughts = () if message.signed_thinking and not left else message.thoughts
    tokens = cost(replace(message, calls=kept, thoughts=thoughts))
    return Altered(
        index, message.texts, tokens, "repaired", tuple(zip(left, (call.arguments for call in kept), strict=True))
    )


def _tokens(conversation: Conversation, index: int | None, part: Part) -> int:
    if isinstance(part, Altered):
        return part.tokens
    return conversation.transcript.tokens_of(index) if index is not None and isinstance(part, Verbatim) else 0
