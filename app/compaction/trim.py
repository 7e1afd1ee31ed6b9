"""Trimming: views with shortened messages or without their oldest units, for one request only.

- `fit`: if the payload is too large, cut large tool results, call arguments and pasted documents to head and tail.
- `truncations`: cut all tool results and call arguments, as a last resort.
- `fade`: shorten tool results, and shorten them more if they are older or if the window is fuller.
- `prune_session`: trim or clear old tool results, as OpenClaw does.
- `prune`: omit whole units, the oldest first. A note (stub) may replace them.

Steno stores no changes, so a later, smaller request has the whole messages again. Steno never changes the instructions
and the last user message, and never shortens texts of the assistant.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.mask import is_allowed
from app.compaction.result_excerpts import shorten
from app.compaction.user_words import OmittedWords
from app.compaction.view import (
    Alteration,
    Altered,
    Conversation,
    Note,
    Part,
    Pruned,
    Summary,
    View,
    carried_context,
    message_of,
    most_carried_tokens,
    standing,
    tokens_in,
    with_carried_context,
    with_changes,
)
from app.conversation.messages import Kind, Message, own_message, tool_name
from app.conversation.quoting import word
from app.tokens.estimate import Cost

SHORTEST = 200
"""Minimum characters of a shortened text."""
OLDEST_WEIGHT = 0.20
Change = Callable[[int, Message], Message | None]
"""Function that gets a position and its message, and returns the shortened message or None for no change."""
CHARACTERS_PER_TOKEN = 4
"""Assumed characters per token. Steno uses this number to turn a share of the room into a maximum length. `_fill` uses
this number, too, as OpenClaw does. All other sizes use the estimate."""
RESULT_SHARE = 0.30
"""Maximum share of the room for the newest tool result or pasted document. The oldest gets a fifth of this share."""
LONGEST_RESULT = 400_000
ARGUMENTS_SHARE = 0.15
LONGEST_ARGUMENTS = 200_000
BANDS = ((0.99, 0.05), (0.90, 0.2), (0.85, 0.5), (0.80, 1.0))
"""Pairs of a share of the limit and a factor. `fade` uses the first pair whose share the messages reach."""
LEAST_ROOM = 1_024
FADE_AT = BANDS[-1][0]
STUB_TOKENS = 100
"""Tokens reserved for a stub, the note on omitted messages."""
CUT_ARGUMENTS = "_shortened"
"""Name of the only member in shortened arguments."""
MOST_NAMES = 8
"""Maximum number of tools that a stub names."""


def alter(
    conversation: Conversation, view: View, by: Alteration, cost: Cost, change: Change, *, may_grow: bool = False
) -> View:
    """Return the view with changed messages. Without `may_grow`, a message that would not shrink stays unchanged."""
    messages = conversation.transcript.messages

    def altered(index: int, part: Part) -> Part:
        message = message_of(conversation, index, part)
        changed = change(index, message) if _may_change(conversation, index) else None
        if changed is None or changed == message:
            return part
        # Masked media stay masked.
        media = part.media if isinstance(part, Altered) else ()
        tokens = cost(replace(changed, texts=(*changed.texts, *media), media=()) if media else changed)
        calls = None
        if changed.calls != messages[index].calls:
            calls = tuple((position, call.arguments) for position, call in enumerate(changed.calls))
        smaller = may_grow or tokens < tokens_in(conversation, index, part)
        return Altered(index, changed.texts, tokens, by, calls, media) if smaller else part

    return with_changes(conversation, view, altered)


def results(conversation: Conversation, view: View) -> list[int]:
    messages = conversation.transcript.messages
    may_change = (i for i, _ in standing(view) if i is not None and _may_change(conversation, i))
    return [index for index in may_change if messages[index].kind is Kind.RESULT or messages[index].answers]


def _may_change(conversation: Conversation, index: int) -> bool:
    return index not in conversation.kept.whole and not conversation.transcript.messages[index].sealed


def weights(positions: list[int]) -> dict[int, float]:
    """Return a weight for each position: 0.20 for the oldest, rising linearly to 1.00 for the newest."""
    last = len(positions) - 1
    return {
        position: OLDEST_WEIGHT + (1 - OLDEST_WEIGHT) * rank / last if last else 1.0
        for rank, position in enumerate(positions)
    }


def shortened_texts(original: Message, message: Message, longest: int, places: Container[int]) -> Message:
    """Return the message with the texts at `places` cut to `longest` characters. Cut the `original` text, because the
    notice in a text that is cut twice would state a wrong size."""
    pairs = zip(original.texts, message.texts, strict=True)
    return replace(
        message,
        texts=tuple(
            shorten(was, longest) if place in places and len(now) > longest else now
            for place, (was, now) in enumerate(pairs)
        ),
    )


def shortened_arguments(original: Message, message: Message, longest: int) -> Message:
    """Return the message with the arguments of each call cut to about `longest` characters. The arguments stay a JSON
    object, because providers accept nothing else."""
    calls = list(message.calls)
    for place, (was, now) in enumerate(zip(original.calls, message.calls, strict=True)):
        if len(now.arguments) > longest:
            cut = {CUT_ARGUMENTS: shorten(was.arguments, longest)}
            calls[place] = replace(now, arguments=json.dumps(cut, ensure_ascii=False))
    return replace(message, calls=tuple(calls))


def fit(conversation: Conversation, view: View, at_most: int, cost: Cost) -> View:
    """Return the view with large tool results, call arguments and pasted documents cut.

    `at_most`: limit in tokens, which the view may still exceed. Formula of LibreChat agents for the maximum characters:
    min(0.30 x room x 4, 400,000) x `weights` for results and documents, min(0.15 x room x 4, 200,000) for arguments.
    """
    room = room_of(conversation, view, at_most)
    return cut_to_shares(conversation, view, room, "shortened", cost, documents=True)


def truncations(conversation: Conversation, view: View, at_most: int, cost: Cost) -> Iterator[View]:
    """Yield ever shorter views. First cut each result and each call's arguments to 4 x room / messages characters.
    Then halve this length again and again, down to 200: if a message has many calls, the first cut is not enough."""
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
    """Return how many of `at_most` tokens remain for messages after the instructions and summaries."""
    summaries = sum(part.chunk.tokens for part in view.parts if isinstance(part, Summary))
    return max(0, at_most - conversation.instruction_tokens - summaries)


def cut_to_shares(
    conversation: Conversation, view: View, room: int, by: Alteration, cost: Cost, *, documents: bool
) -> View:
    """Return the view with tool results and call arguments cut to their shares of the room. With `documents`, also cut
    user messages before the last user message."""
    longest = min(int(RESULT_SHARE * room) * CHARACTERS_PER_TOKEN, LONGEST_RESULT)
    longest_arguments = max(SHORTEST, min(int(ARGUMENTS_SHARE * room) * CHARACTERS_PER_TOKEN, LONGEST_ARGUMENTS))
    originals, last = conversation.transcript.messages, conversation.transcript.last_user
    pasted = (i for i, _ in standing(view) if i not in (None, last) and originals[i].kind in (Kind.USER, Kind.CLIENT))
    result_weights = weights(results(conversation, view))
    document_weights = weights([i for i in pasted if _may_change(conversation, i)]) if documents else {}

    def change(index: int, message: Message) -> Message:
        original, left = originals[index], message
        if weight := result_weights.get(index):
            most = max(SHORTEST, int(longest * weight))
            left = shortened_texts(original, left, most, original.result_places)
        if weight := document_weights.get(index):
            most = max(SHORTEST, int(longest * weight))
            # Results are cut above, and the client's own instructions stay whole.
            spared = {*conversation.client_context.places.get(index, ()), *original.result_places}
            left = shortened_texts(original, left, most, set(range(len(original.texts))) - spared)
        return shortened_arguments(original, left, longest_arguments)

    return alter(conversation, view, by, cost, change)


def fade(conversation: Conversation, view: View, limit: int, cost: Cost) -> View:
    """Return the view with tool results and arguments cut as by `fit`, with a room of max(1,024, effective x factor).
    `effective`: the limit minus the instructions' tokens. `factor`: see `BANDS`. Formula: LibreChat agents."""
    reached = (view.tokens - conversation.instruction_tokens) / limit if limit else 1.0
    factor = next((factor for band, factor in BANDS if reached >= band), None)
    if factor is None:
        return view
    effective = max(0, limit - conversation.instruction_tokens)
    return cut_to_shares(conversation, view, max(LEAST_ROOM, int(effective * factor)), "faded", cost, documents=False)


# OpenClaw's defaults: sizes in characters, ratios of the window. They do not depend on the trigger.
KEPT_ASSISTANTS = 3
TRIM_RATIO, CLEAR_RATIO = 0.3, 0.5
LONGEST_UNTRIMMED = 4_000
TRIMMED_HEAD = TRIMMED_TAIL = 1_500
LEAST_CLEARED = 50_000
"""If all results together have fewer characters than this, no result is cleared."""
CLEARED = "[Old tool result content cleared]"


class SessionPruning(Struct, frozen=True):
    mode: Literal["adaptive", "aggressive"] = "adaptive"
    deny: tuple[str, ...] = ()


def is_quiet(conversation: Conversation, settings: SessionPruning, window: int) -> bool:
    """Return whether session pruning certainly changes nothing. Tokens are not counted."""
    messages = conversation.transcript.messages
    if settings.mode == "aggressive":
        return not any(message.kind is Kind.RESULT or message.answers for message in messages)
    return _fill(sum(map(_size, (*conversation.instructions, *messages))), window) < TRIM_RATIO


def prune_session(conversation: Conversation, view: View, settings: SessionPruning, window: int, cost: Cost) -> View:
    """Return the view with trimmed tool results before the assistant's third-last message. If that is not enough, clear
    the oldest of these results. In mode `aggressive`, clear all of them at once. `window` is in provider tokens."""
    eligible = _eligible(conversation, view, settings)
    gone: Container[int] = eligible
    if settings.mode == "adaptive":
        sent = (message_of(conversation, i, part) for i, part in standing(view) if i is not None)
        total = sum(map(_size, (*conversation.instructions, *sent))) + sum(len(chunk.text) for chunk in view.chunks)
        if _fill(total, window) < TRIM_RATIO:
            return view
        left = {index: _trimmed(message) for index, message in eligible.items()}
        sizes = {index: len("".join(_results_in(message))) for index, message in left.items()}
        total -= sum(len("".join(_results_in(message))) for message in eligible.values()) - sum(sizes.values())
        view = alter(conversation, view, "trimmed", cost, lambda index, _: left.get(index))
        gone = _too_many(sizes, total, window)

    def change(index: int, message: Message) -> Message | None:
        return _with_result(message, CLEARED) if index in gone and message.result_places else None

    return alter(conversation, view, "cleared", cost, change, may_grow=True)


def _results_in(message: Message) -> list[str]:
    return [message.texts[place] for place in message.result_places]


def _with_result(message: Message, text: str) -> Message:
    """Return the message with `text` as its first result and the other results empty."""
    first, *others = message.result_places
    instead = {first: text} | dict.fromkeys(others, "")
    return replace(message, texts=tuple(instead.get(place, now) for place, now in enumerate(message.texts)))


def _trimmed(message: Message) -> Message:
    text = "\n".join(_results_in(message))
    if len(text) <= LONGEST_UNTRIMMED:
        return message
    note = f"[Tool result trimmed: kept first {TRIMMED_HEAD} chars and last {TRIMMED_TAIL} chars of {len(text)} chars.]"
    return _with_result(message, f"{text[:TRIMMED_HEAD]}\n...\n{text[-TRIMMED_TAIL:]}\n\n{note}")


def _too_many(sizes: Mapping[int, int], total: int, window: int) -> set[int]:
    """Return the positions of the results to clear: the oldest, until the prompt fills less than `CLEAR_RATIO` of the
    window. Skip results that are not longer than the placeholder (`CLEARED`). Return none if all results together have
    fewer than `LEAST_CLEARED` characters. `total`: characters of the prompt before clearing."""
    found: set[int] = set()
    for index, size in sizes.items() if sum(sizes.values()) >= LEAST_CLEARED else ():
        gain = size - len(CLEARED)
        if _fill(total, window) >= CLEAR_RATIO and gain > 0:
            found.add(index)
            total -= gain
    return found


def _size(message: Message) -> int:
    return sum(map(len, (*message.texts, *(call.arguments for call in message.calls))))


def _fill(characters: int, window: int) -> float:
    return characters / CHARACTERS_PER_TOKEN / window


def _eligible(conversation: Conversation, view: View, settings: SessionPruning) -> dict[int, Message]:
    """Return the messages with results that session pruning may change, by position, oldest first."""
    messages = conversation.transcript.messages
    spoken = [index for index, message in enumerate(messages) if message.kind is Kind.ASSISTANT]
    if len(spoken) < KEPT_ASSISTANTS:
        return {}
    allowed = {
        index
        for index in results(conversation, view)
        if index < spoken[-KEPT_ASSISTANTS]
        and not messages[index].media
        and is_allowed(tool_name(conversation.transcript.messages, index), settings.deny)
    }
    return {index: message_of(conversation, index, part) for index, part in standing(view) if index in allowed}


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
    """Return the view without its oldest units, so that it has at most `at_most` tokens or as few as possible.

    Instructions, the last user message, pinned messages, the last unit and calls with results in the last unit stay. If
    the view exceeds `at_most`, omit units until it has at most `target` tokens. Later requests omit the same units,
    because `_gone` replays the whole history. `most_turns`: number of whole turns to keep before the current
    turn; earlier turns are omitted, too. `words`: reserve room for the user's words of omitted messages.
    """
    units = _units(conversation, view)
    out = {index for unit in units if unit.droppable for index in unit.indexes}
    note = carried_context(conversation, view.parts).tokens
    grows = max(0, most_carried_tokens(conversation, view.parts, out) - note)  # Enough for any omitted units.
    fixed = view.tokens - sum(unit.tokens for unit in units) + grows + (STUB_TOKENS if stub else 0)
    gone = _gone(units, fixed, at_most, target, words) if view.tokens > at_most else 0
    starts = conversation.transcript.turn_starts
    if most_turns is not None and len(starts) > most_turns + 1:
        gone = max(gone, sum(unit.indexes[0] < starts[-1 - most_turns] for unit in units))
    dropped = {index for unit in units[:gone] if unit.droppable for index in unit.indexes}
    if not dropped:
        return view
    view = with_changes(conversation, view, lambda i, part: Pruned(i, i + 1) if i in dropped else part)
    if stub:
        made = _stub(conversation, dropped, cost)
        first = next(place for place, part in enumerate(view.parts) if isinstance(part, Pruned))
        parts = (*view.parts[: first + 1], made, *view.parts[first + 1 :])
        view = replace(view, parts=parts, tokens=view.tokens + made.tokens)
    return with_carried_context(conversation, view)


def _units(conversation: Conversation, view: View) -> list[_Unit]:
    """Return the view's units, oldest first; the last unit is not droppable. A result joins the unit directly before
    it. If the result's call is in an earlier unit, and Steno omits that unit, `repair` removes the result."""
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
        unit.tokens += tokens_in(conversation, index, part)
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


def _gone(units: list[_Unit], fixed: int, at_most: int, target: int, words: OmittedWords | None) -> int:
    """Return the index of the first unit that stays. Replay the history to repeat the omissions of earlier requests."""
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


def _stub(conversation: Conversation, out: Iterable[int], cost: Cost) -> Note:
    """Return a note with the number and roles of the omitted messages, and the tools that were used."""
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
