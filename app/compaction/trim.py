"""Trimming: views whose single messages are shortened, or whose oldest units are left out, for this request only.

- `fit`: large tool results, call arguments and pasted documents are cut head and tail, where the payload would not fit;
  `truncations`: all of them, in an emergency.
- `fade`: the fuller the window, the less is left of tool results, the oldest first.
- `prune_session`: old tool results are trimmed or cleared, as OpenClaw does it.
- `prune`: whole units are left out, the oldest first. The answer names them, a stub may stand in their place.

Nothing of this is stored, so a later, smaller request has the whole messages again. The instructions and the last user
message are never touched, and texts of the assistant are never shortened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.mask import cut_arguments, is_allowed
from app.compaction.tool_output import shorten
from app.compaction.user_words import OmittedWords
from app.compaction.view import (
    Alteration,
    Altered,
    Carried,
    Conversation,
    Note,
    Part,
    Pruned,
    Summary,
    Verbatim,
    View,
    append,
    carried_context,
    message_of,
    most_carried_tokens,
    standing,
    with_carried_context,
)
from app.conversation.messages import Kind, Message, own_message
from app.conversation.quoting import word
from app.tokens.estimate import Cost

SHORTEST = 200
"""Characters that are left of a text in any case."""
OLDEST_WEIGHT = 0.20
Change = Callable[[int, Message], Message | None]
"""Function that returns what is left of the message at that position, or None to leave it as it is."""
CHARACTERS_PER_TOKEN = 4
"""Measure of shares of the room, and OpenClaw's measure of fill; everything else in Steno uses the estimate."""
RESULT_SHARE = 0.30
"""One tool result, or one pasted document, may take this share of the room, the newest; the oldest a fifth of that."""
LONGEST_RESULT = 400_000
ARGUMENTS_SHARE = 0.15
LONGEST_ARGUMENTS = 200_000
BANDS = ((0.99, 0.05), (0.90, 0.2), (0.85, 0.5), (0.80, 1.0))
"""Pairs of a pressure and the share of the room that counts from it on: light, clear, heavy, near placeholders."""
LEAST_ROOM = 1_024
FADE_AT = BANDS[-1][0]
STUB_TOKENS = 100
"""Room that is kept for a stub."""
MOST_NAMES = 8
"""Tools that a stub names."""


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
    return index not in conversation.kept.whole and not conversation.transcript.messages[index].sealed


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


class SessionPruning(Struct, frozen=True):
    """OpenClaw's settings and defaults, of which Steno's own set the mode and the tools. Sizes in characters, ratios of
    the window: it measures fill in characters, not by the trigger. `min_prunable_tool_chars` is a sum over all results.
    """

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
    """The view with old results trimmed and, where that is not enough, cleared, before the assistant's third-last
    message. `window` in the provider's tokens."""
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
        kept = index in conversation.kept.messages or message.kind is Kind.INSTRUCTIONS
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
