"""Pruning: whole units are left out, the oldest first. The answer names them, a stub may stand in their place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from msgspec.structs import replace

from app.compaction.select import carried_context, most_carried_tokens, with_carried_context
from app.compaction.view import Altered, Conversation, Note, Part, Pruned, View, append, standing
from app.conversation.messages import Kind, own_message
from app.conversation.quoting import word
from app.tokens.estimate import Cost

STUB_TOKENS = 100
"""Room that is kept for a stub."""
MOST_NAMES = 8
"""Tools that a stub names."""


class OmittedWords(Protocol):
    """The user's words in messages that are left out with a stub in their place."""

    def tokens_of(self, index: int) -> int:
        """Tokens of the words in one message."""

    def room_for(self, tokens: int) -> int:
        """Room that so many tokens of words need."""

    def text(self, out: AbstractSet[int], room: int) -> str:
        """Text with what the user said in these messages, as far as it fits into the room; empty for none."""


@dataclass(slots=True)
class _Unit:
    indexes: list[int]
    tokens: int
    droppable: bool


def prune(
    conversation: Conversation,
    view: View,
    at_most: int,
    target: int,
    cost: Cost,
    *,
    stub: bool,
    most_turns: int | None = None,
    words: OmittedWords | None = None,
) -> View:
    """The view without its oldest units, so that it has at most so many tokens, or as few as can be.

    Instructions, the last user message, pinned messages and the last unit stay, with the calls of its results. Where
    units must go, as many go as bring the view to `target`, and they are the same in the requests that follow: which
    go is found by living through the history from its beginning. `most_turns` also leaves out everything before so
    many whole turns and the current one. Room is kept for the `words` of what goes: see `with_words`.
    """
    units = _units(conversation, view)
    beside = (STUB_TOKENS if stub else 0) + _most_carried_tokens(conversation, view, units)
    fixed = view.tokens - sum(unit.tokens for unit in units) + beside
    gone = _gone(units, fixed, at_most, target, words) if view.tokens > at_most else 0
    gone = max(gone, _before_turns(conversation, units, most_turns))
    dropped = [unit for unit in units[:gone] if unit.droppable]
    if not dropped:
        return view
    return _without(conversation, view, dropped, cost if stub else None)


def with_words(view: View, words: OmittedWords, limit: int, cost: Cost) -> View:
    """The view with the user's words of what is left out behind the stub, as far as there is room under the limit;
    itself where there are none. Done last: then no payload is too large for want of the room that they take."""
    stub = next((part for part in view.parts if isinstance(part, Note) and part.kind == "stub"), None)
    pruned = (part for part in view.parts if isinstance(part, Pruned) and part.by == "pruned")
    out = frozenset(index for part in pruned for index in range(part.start, part.stop))
    if stub is None or not (text := words.text(out, limit - view.tokens)):
        return view
    note = Note("user_words", text, cost(own_message(text)))
    tokens = view.tokens + note.tokens
    place = view.parts.index(stub) + 1
    parts = (*view.parts[:place], note, *view.parts[place:])
    return replace(view, parts=parts, tokens=tokens) if tokens <= limit else view


def _units(conversation: Conversation, view: View) -> list[_Unit]:
    """Units of the history that are left, oldest first; the last one is not to be dropped.

    Only what directly follows a call belongs to it: a result that comes later is taken out by the repair with its call,
    and one unit over half of the history could not be dropped at all.
    """
    transcript = conversation.transcript
    units: list[_Unit] = []
    was_bound = False
    for index, part in standing(view):
        if index is None:
            continue
        message = transcript.messages[index]
        if not (message.answers or message.is_result_text or was_bound) or not units:
            units.append(_Unit([], 0, droppable=True))
        unit = units[-1]
        unit.indexes.append(index)
        unit.tokens += part.tokens if isinstance(part, Altered) else transcript.tokens_of(index)
        kept = index in conversation.untouchable or message.kind is Kind.INSTRUCTIONS
        unit.droppable = unit.droppable and not kept
        was_bound = message.bound
    if units:
        units[-1].droppable = False
        callers = {
            index - caller.distance
            for index in units[-1].indexes
            for caller in transcript.messages[index].callers
            if caller
        }
        for unit in units:
            unit.droppable = unit.droppable and callers.isdisjoint(unit.indexes)
    return units


def _most_carried_tokens(conversation: Conversation, view: View, units: Sequence[_Unit]) -> int:
    """Tokens by which the note of client context may grow, whichever units go."""
    out = {index for unit in units if unit.droppable for index in unit.indexes}
    now = carried_context(conversation, view.parts).tokens
    return max(0, most_carried_tokens(conversation, view.parts, out) - now)


def _gone(units: list[_Unit], fixed: int, at_most: int, target: int, words: OmittedWords | None) -> int:
    """Number of the first unit that must be kept, if each unit in turn was the end of a request."""
    gone, tokens = 0, fixed
    said = held = 0
    for number, unit in enumerate(units):
        tokens += unit.tokens
        aim = target if tokens > at_most else at_most
        while tokens > aim and gone < number:
            if units[gone].droppable:
                tokens -= units[gone].tokens + held
                said += sum(map(words.tokens_of, units[gone].indexes)) if words else 0
                held = words.room_for(said) if words else 0
                tokens += held
            gone += 1
    return gone


def _before_turns(conversation: Conversation, units: list[_Unit], most_turns: int | None) -> int:
    starts = conversation.transcript.turn_starts
    if most_turns is None or len(starts) <= most_turns + 1:
        return 0
    return sum(unit.indexes[0] < starts[-1 - most_turns] for unit in units)


def _without(conversation: Conversation, view: View, dropped: list[_Unit], cost: Cost | None) -> View:
    out = {index for unit in dropped for index in unit.indexes}
    parts: list[Part] = []
    tokens = view.tokens - sum(unit.tokens for unit in dropped)
    note = _stub(conversation, out, cost) if cost is not None else None
    for index, part in standing(view):
        if index is None or index not in out:
            append(parts, part)
            continue
        last = parts[-1] if parts else None
        if isinstance(last, Pruned) and last.stop == index:
            parts[-1] = Pruned(last.start, index + 1)
        else:
            parts.append(Pruned(index, index + 1))
    if note is not None:
        first = next(place for place, part in enumerate(parts) if isinstance(part, Pruned))
        parts.insert(first + 1, note)
        tokens += note.tokens
    return with_carried_context(conversation, replace(view, parts=tuple(parts), tokens=tokens))


def _stub(conversation: Conversation, out: Iterable[int], cost: Cost) -> Note:
    """Note in place of messages that are left out: how many, whose, and which tools were used. Never a summary."""
    messages = [conversation.transcript.messages[index] for index in sorted(out)]
    roles = Counter("other" if message.kind is Kind.OTHER else message.role for message in messages)
    calls = (call for message in messages for call in (*message.calls, *message.settled))
    named = dict.fromkeys(word(call.name) for call in calls if call.name)
    used = f" Tools that were used: {', '.join([*named][:MOST_NAMES])}." if named else ""
    counts = ", ".join(f"{count} {role}" for role, count in roles.items())
    text = (
        f"[{len(messages)} earlier messages of this conversation ({counts}) are left out here because they do not fit"
        f" into the model's context window.{used}]"
    )
    return Note("stub", text, cost(own_message(text)))
