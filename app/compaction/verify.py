"""Verification of views before they are sent. A view must account for every message, and keep the message order that
providers demand (`problems`). Steno never sends a view with a problem. The check ignores the contents of messages.

`repair` comes before the check. It removes calls without results and results without calls, because providers refuse
both. Some providers refuse consecutive assistant messages: `separated` puts a note between them. `coverage_of` reports
how a view sends each message.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from app.compaction.view import (
    Altered,
    Carried,
    Conversation,
    Note,
    Part,
    Pinned,
    Pruned,
    Summary,
    Verbatim,
    View,
    carried_context,
    message_of,
    omitted_in,
    sent_in,
    standing,
    whole,
    with_changes,
)
from app.conversation.messages import History, Kind, Message, own_message
from app.conversation.reasons import Code
from app.conversation.tool_results import CallPosition
from app.tokens.calibration import ONE_TO_ONE, Line
from app.tokens.estimate import Cost

Order = Sequence[int | None]
"""Indexes of the sent messages, in order; None for a message that Steno wrote."""


def problems(conversation: Conversation, view: View, limit: int, *, alternates: bool = False) -> list[Code]:
    """Return the problems of a view; empty if it covers every message exactly once and a provider would accept it.
    `alternates`: whether the provider refuses consecutive assistant messages and a leading assistant message."""
    transcript, messages = conversation.transcript, conversation.transcript.messages
    order = list(order_of(view))
    sent = {index for index in order if index is not None}
    covered: list[int] = []
    verbatim, as_asked, quoted = set[int](), set[int](), set[int]()
    for part in view.parts:
        omitted, shown = omitted_in(conversation, part), sent_in(part)
        carried = {omitted.start + offset for offset in part.chunk.carried} if isinstance(part, Summary) else ()
        covered += [index for index in omitted if index not in carried]
        covered += () if isinstance(part, Pinned) else shown
        if not isinstance(part, Altered):
            verbatim.update(shown)
        elif _keeps_own_words(messages[part.index], part):
            as_asked.add(part.index)
        if isinstance(part, Note):
            quoted.update(part.messages)
    kept_calls = kept_calls_of(view)
    ends_with_thoughts = any(
        # A message with signed thoughts must keep at least one of its calls.
        messages[index].signed_thinking and not calls and index not in view.without_thinking
        for index, calls in kept_calls.items()
    )
    calls = _calls_sent(messages, sent, kept_calls)
    # A call without any result, or a result without its call, except if the client sent it so.
    is_pair_split = any((call in calls) is sent.isdisjoint(results) for call, results in messages.results.items())
    checks = (
        (sorted(covered) != list(range(len(transcript))), Code.NOT_COVERED_ONCE),
        (0 <= transcript.last_user not in verbatim | as_asked, Code.LAST_USER_MESSAGE_CHANGED),
        (not verbatim.issuperset((*messages.instruction_places, *messages.live_places)), Code.INSTRUCTIONS_CHANGED),
        (_lacks_client_context(conversation, view), Code.CLIENT_INSTRUCTIONS_MISSING),
        (is_pair_split, Code.TOOL_PAIR_SPLIT),
        (_are_results_apart(messages, order), Code.RESULT_APART),
        (_is_parted(messages, order), Code.BOUND_MESSAGE_PARTED),
        (ends_with_thoughts, Code.THOUGHTS_LAST),
        (alternates and bool(gaps_in(messages, order)), Code.ROLES_NOT_ALTERNATING),
        (not (sent or view.chunks or conversation.instructions), Code.NOTHING_LEFT),
        (not quoted.isdisjoint(verbatim), Code.QUOTED_AND_SENT),
        (view.tokens > limit, Code.OVER_THE_LIMIT),
    )
    return [problem for failed, problem in checks if failed]


def order_of(view: View) -> Iterator[int | None]:
    return (index for part in view.parts for index in _order_in(part))


def _order_in(part: Part) -> Order:
    return (None,) if isinstance(part, Summary | Note) else sent_in(part)


def kept_calls_of(view: View) -> Mapping[int, Collection[int]]:
    """Return the positions of the remaining calls of each message whose calls were removed or shortened."""
    altered = (part for part in view.parts if isinstance(part, Altered))
    return {part.index: {place for place, _ in part.calls} for part in altered if part.calls is not None}


def _calls_sent(
    messages: Sequence[Message], sent: Iterable[int], kept_calls: Mapping[int, Collection[int]]
) -> set[CallPosition]:
    """Return the calls that the `sent` messages still contain. `kept_calls`: see `kept_calls_of`."""
    kept = ((index, kept_calls.get(index, range(len(messages[index].calls)))) for index in sent)
    return {CallPosition(index, place) for index, places in kept for place in places}


def gaps_in(messages: Sequence[Message], order: Order) -> list[int]:
    """Return the positions in `order` of assistant messages that come first or follow another assistant message, unless
    they do so in the client's history."""
    found: list[int] = []
    last: int | None = -1
    for place, index in enumerate(order):
        kind = None if index is None else messages[index].kind
        if index is not None and kind is Kind.ASSISTANT and last is not None:
            before = (i for i in reversed(range(index)) if messages[i].kind is not Kind.INSTRUCTIONS)
            found += [place] if last != next(before, -1) else []
        if kind is not Kind.INSTRUCTIONS:
            last = index if kind is Kind.ASSISTANT else None
    return found


def _are_results_apart(messages: Sequence[Message], order: Order) -> bool:
    """Return whether a result precedes its call, or the view separates a call from the results that follow it."""
    placed = {index: place for place, index in enumerate(order) if index is not None}
    for result, place in placed.items():
        for call in (result - caller.distance for caller in messages[result].callers if caller):
            if call in placed and place < placed[call]:
                return True
            if call in placed and (result - 1 == call or messages[result - 1].answers):
                previous = order[place - 1]
                if previous is None or not call <= previous < result:
                    return True
    return False


def _is_parted(messages: Sequence[Message], order: Order) -> bool:
    """Return whether the view separates a `bound` message from the history's next message."""
    return any(
        index is not None and messages[index].bound and index + 1 not in (then, len(messages))
        for index, then in pairwise((*order, None))
    )


def _keeps_own_words(message: Message, part: Altered) -> bool:
    """Return whether the message contains tool results, and none of its other texts was changed."""
    places, pairs = message.result_places, zip(part.texts, message.texts, strict=True)
    return bool(places) and all(now == was for place, (now, was) in enumerate(pairs) if place not in places)


def _lacks_client_context(conversation: Conversation, view: View) -> bool:
    """Return whether the view omits client context without a note that repeats it."""
    noted = [part.text for part in view.parts if isinstance(part, Note) and part.kind == "client_instructions"]
    carried = carried_context(conversation, view.parts)
    return not all(any(block.text in text for text in noted) for block in carried.blocks)


GAP = "[Messages of this conversation are left out here.]"


def repair(conversation: Conversation, view: View, cost: Cost, *, orphans: bool = True) -> View:
    """Return the view without calls whose results are omitted, and without results whose calls are omitted. `orphans`:
    also remove calls and results without a counterpart in the history, except at its end: see `_begin_of_end`."""
    messages = conversation.transcript.messages
    end = _begin_of_end(messages) if orphans else 0
    held = {index: part for index, part in standing(view) if index is not None}
    sent = {index for index in order_of(view) if index is not None}
    left: dict[int, list[int]] = {}
    lost: set[int] = set()
    for index, part in held.items():
        calls = _calls_left(messages, index, sent, end)
        if len(calls) == len(messages[index].calls):
            continue
        left[index], message = calls, message_of(conversation, index, part)
        # Omit a message that would be empty, or that must not be changed.
        if message.sealed or not (calls or any(text.strip() for text in message.texts)):
            lost.add(index)
    kept = _calls_sent(messages, sent - lost, {**kept_calls_of(view), **left})
    lost |= {index for index in held if _loses_calls(messages, index, kept, end)}
    for place in [*held][::-1]:
        if messages[place].bound and place + 1 in lost:
            lost.add(place)
    if not (lost or left):
        return view

    def repaired(index: int, part: Part) -> Part:
        if index in lost:
            return Pruned(index, index + 1, "repaired")
        return _with_calls(conversation, index, part, left[index], cost) if index in left else part

    bare = {index for index in left.keys() - lost if messages[index].signed_thinking and not left[index]}
    changed = with_changes(conversation, view, repaired)
    return replace(changed, without_thinking=view.without_thinking | bare)


def separated(conversation: Conversation, view: View, cost: Cost) -> View:
    """Return the view with a note before each assistant message in `gaps_in`."""
    gaps = frozenset(gaps_in(conversation.transcript.messages, list(order_of(view))))
    if not gaps:
        return view
    note = Note("stub", GAP, cost(own_message(GAP)))
    parts: list[Part] = []
    place = 0
    for part in view.parts:
        size = len(_order_in(part))
        parts += [note, part] if size and place in gaps else [part]
        place += size
    return replace(view, parts=tuple(parts), tokens=view.tokens + len(gaps) * note.tokens)


def _begin_of_end(messages: Sequence[Message]) -> int:
    """Return the index of the first message of the history's end: the last assistant messages, and their results."""
    start = len(messages)
    while start and messages[start - 1].answers:
        start -= 1
    while start and messages[start - 1].kind is Kind.ASSISTANT:
        start -= 1
    return start


def _calls_left(messages: History, index: int, sent: set[int], end: int) -> list[int]:
    """Return the positions of the calls that stay: calls with a sent result. A call without a result in the history
    stays if it is at `end` or later, or has no id."""
    return [
        place
        for place, call in enumerate(messages[index].calls)
        if (
            not sent.isdisjoint(results)
            if (results := messages.results.get(CallPosition(index, place)))
            else index >= end or not call.id
        )
    ]


def _loses_calls(messages: History, index: int, kept: Collection[CallPosition], end: int) -> bool:
    """Return whether a message must be omitted, because its results have no call in `kept`. If the results have no call
    in the history, the message stays if it is a user message, or at `end` or later."""
    message = messages[index]
    if made := [CallPosition(index - caller.distance, caller.call) for caller in message.callers if caller]:
        return not any(call in kept for call in made)
    return any(message.answers) and index < end and message.kind is not Kind.USER


def _with_calls(conversation: Conversation, index: int, part: Part, left: Sequence[int], cost: Cost) -> Altered:
    """Return the assistant message with only the calls at `left`. If no call is left, also remove signed thoughts,
    because a message must not end with thoughts."""
    message, calls = message_of(conversation, index, part), conversation.transcript.messages[index].calls
    arguments = dict(part.calls) if isinstance(part, Altered) and part.calls is not None else {}
    kept = tuple(replace(calls[place], arguments=arguments.get(place, calls[place].arguments)) for place in left)
    thoughts = () if message.signed_thinking and not left else message.thoughts
    tokens = cost(replace(message, calls=kept, thoughts=thoughts))
    return Altered(
        index, message.texts, tokens, "repaired", tuple(zip(left, (call.arguments for call in kept), strict=True))
    )


def coverage_of(
    conversation: Conversation, view: View | None, line: Line = ONE_TO_ONE, cost: Cost | None = None
) -> list[dict[str, Any]]:
    """Return the parts of the view in order, as JSON members; without a view, the parts of the whole history.

    Index 0 is the first message after the leading instructions. Ranges include both ends. Tokens are in the provider's
    count and add up to the view's total. The first entry counts leading instructions, tools, response format and the
    provider's additions. Its `tools_tokens` exclude the instructions. `cost` is needed only if the view omits thinking.
    """
    view, messages = view or whole(conversation), conversation.transcript.messages
    spared = {i: cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in view.without_thinking if cost}
    entries, left = [_entry(conversation, part) for part in view.parts], line.to_provider_tokens(view.tokens)
    for part, entry in zip(view.parts, entries, strict=True):
        if spared:
            entry["tokens"] -= sum(tokens for index, tokens in spared.items() if index in sent_in(part))
        if "user_words_tokens" in entry:
            entry["user_words_tokens"] = round(line.ratio * entry["user_words_tokens"])
        entry["tokens"] = round(line.ratio * entry["tokens"])
        left -= entry["tokens"]
    tools = max(0, min(left, round(line.ratio * conversation.costs.fixed)))
    leading = len(conversation.instructions)
    return [{"kind": "instructions", "messages": leading, "tools_tokens": tools, "tokens": left}, *entries]


def _entry(conversation: Conversation, part: Part) -> dict[str, Any]:
    transcript = conversation.transcript
    match part:
        case Verbatim(start, stop) | Pinned(start, stop):
            name = "pinned" if isinstance(part, Pinned) else "verbatim"
            return {"kind": name, **_place(start, stop - 1), "tokens": transcript.tokens(start, stop)}
        case Summary(chunk):
            place = _place(chunk.first_index, chunk.last_index)
            said = {"user_words_tokens": chunk.user_words_tokens} if chunk.user_words else {}
            return {"kind": "summarized", **place, "summary_id": chunk.id, "tokens": chunk.tokens, **said}
        case Carried(index):
            return {"kind": "carried", **_place(index, index), "tokens": transcript.tokens_of(index)}
        case Altered(index, _, tokens, by):
            return {"kind": by, **_place(index, index), "tokens": tokens}
        case Pruned(start, stop, by):
            return {"kind": "pruned", "by": by, **_place(start, stop - 1), "tokens": 0}
        case _:
            quoted = {"messages": list(part.messages)} if part.messages else {}
            return {"kind": part.kind, **quoted, "tokens": part.tokens}


def _place(first: int, last: int) -> dict[str, int]:
    return {"first_index": first, "last_index": last}
