"""Repair: tool calls without a result and results without a call are taken out, as the last step before a check.

A provider refuses a payload with either, and would refuse every later one of that conversation. Some refuse two
messages of the assistant in a row as well: for those a note stands between what was made neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from app.core.history.messages import Message, own_message
from app.core.stages.alter import append, message_of, standing
from app.core.tokens.estimate import Cost
from app.core.view.verify import gaps_in, order_of
from app.core.view.view import Altered, Conversation, Note, Part, Pruned, Verbatim, View

GAP = "[Messages of this conversation are left out here.]"

Standing = tuple[int | None, Part]


def repair(conversation: Conversation, view: View, cost: Cost) -> View:
    """The view with every call answered right after it, or anywhere where that will do, and every result called for;
    itself where that is so."""
    items = list(standing(view))
    apart, lost = _pairs_apart(conversation, items)
    parts: list[Part] = []
    tokens = view.tokens
    answered: set[str] = set()  # Results of these calls may follow.
    untied: set[int] = set()
    for place, (index, part) in enumerate(items):
        now = part
        if index in lost:
            now = Pruned(index, index + 1, "repaired")
        elif index is not None and index not in apart:
            message = message_of(conversation, index, part)
            if message.is_paired:
                now = part if answered.issuperset(message.answers) else Pruned(index, index + 1, "repaired")
                answered.difference_update(message.answers)
            elif message.calls and not message.calls[0].by_place:
                following, is_last = _following(conversation, items, place + 1)
                now, answered = _with_calls(index, part, message, following, is_last, cost)
                if isinstance(now, Altered) and message.tied and not answered:
                    untied.add(index)
            elif not message.answers:
                answered = set()
        elif index is None and not isinstance(part, Pruned):
            answered = set()
        tokens += _tokens(conversation, index, now) - _tokens(conversation, index, part)
        append(parts, now)
    if tuple(parts) == view.parts:
        return view
    return replace(view, parts=tuple(parts), tokens=tokens, untied=view.untied | untied)


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


def _pairs_apart(conversation: Conversation, items: Sequence[Standing]) -> tuple[set[int], set[int]]:
    """Calls that may be answered anywhere, one in a message: those that are, with their results; and those that are
    not, with what is bound to them."""
    messages = conversation.transcript.messages
    unanswered: dict[str, int] = {}
    calls: set[int] = set()
    apart: set[int] = set()
    for index, _ in items:
        if index is None:
            continue
        named = [call.id for call in messages[index].calls if call.anywhere and not call.by_place]
        unanswered.update(dict.fromkeys(named, index))
        calls.update([index] * bool(named))
        if callers := [unanswered.pop(id_) for id_ in messages[index].answers if id_ in unanswered]:
            apart.update((index, *callers))
    lost = calls - apart
    for index, _ in reversed(items):
        if index is not None and messages[index].bound and index + 1 in lost:
            lost.add(index)
    return apart, lost


def _following(conversation: Conversation, items: Sequence[Standing], place: int) -> tuple[set[str], bool]:
    """The calls that are answered from there on, and whether nothing but results follows: those of no call go."""
    found: set[str] = set()
    for index, part in (items[later] for later in range(place, len(items))):
        if isinstance(part, Pruned):
            continue
        message = conversation.transcript.messages[index] if index is not None else None
        if message is None or not message.is_paired:
            return found, False
        found.update(message.answers)
    return found, True


def _with_calls(
    index: int, part: Part, message: Message, results: set[str], is_last: bool, cost: Cost
) -> tuple[Part, set[str]]:
    """The assistant's message with the calls that are answered, once each, and their ids.

    Without any of them it goes without signed thoughts as well: none may stand last.
    """
    kept: dict[str, tuple[int, str]] = {}
    for position, call in enumerate(message.calls):
        if call.id in results:
            kept.setdefault(call.id, (position, call.arguments))
    if len(kept) == len(message.calls):
        return part, set(kept)
    is_empty = not kept and (is_last or not any(text.strip() for text in message.texts))
    if is_empty or message.sealed:
        return Pruned(index, index + 1, "repaired"), set()
    calls = tuple(kept.values())
    thoughts = () if message.tied and not calls else message.thoughts
    left = replace(message, calls=tuple(message.calls[position] for position, _ in calls), thoughts=thoughts)
    return Altered(index, message.texts, cost(left), "repaired", calls), set(kept)


def _tokens(conversation: Conversation, index: int | None, part: Part) -> int:
    if isinstance(part, Altered):
        return part.tokens
    return conversation.transcript.tokens_of(index) if index is not None and isinstance(part, Verbatim) else 0
