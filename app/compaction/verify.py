"""Verify: how a view accounts for every message. A changed payload that fails here is not sent.

What formats demand of the order is looked for, too, as far as a view can break it. What a provider says of single
messages is not: those are as the client sent them.

`repair` is the last step before the check. A provider refuses a payload with a call but not its result, or the other
way round: both are taken out. Some refuse two messages of the assistant in a row as well: for those a note stands
between what was made neighbours. `coverage_of` is the account as data that can be shown.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
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
    Recalled,
    Summary,
    Verbatim,
    View,
    append,
    carried_context,
    message_of,
    standing,
)
from app.conversation.messages import History, Kind, Message, own_message
from app.conversation.reasons import Code
from app.conversation.tool_results import CallPosition
from app.tokens.calibration import ONE_TO_ONE, Line
from app.tokens.estimate import Cost

Order = Sequence[int | None]
"""All that is sent: which messages, and None for what Steno says itself."""


def problems(conversation: Conversation, view: View, limit: int, *, alternates: bool = False) -> list[Code]:
    """Problems of a view: empty if every message is covered exactly once and a provider would take it.

    `alternates`: it refuses two messages of the assistant in a row, and one that begins. Those of the user become one.
    """
    transcript, messages = conversation.transcript, conversation.transcript.messages
    order = list(order_of(view))
    sent = [index for index in order if index is not None]
    covered: list[int] = []
    verbatim, as_asked, quoted = set[int](), set[int](), set[int]()
    for part in view.parts:
        match part:
            case Summary(chunk):
                ends = conversation.chain.positions
                start, stop = ends.get(chunk.from_digest, 0), ends.get(chunk.through_digest, 0)
                carried = {start + offset for offset in chunk.carried}
                covered += [index for index in range(start, stop) if index not in carried]
            case Verbatim(start, stop):
                covered += range(start, stop)
                verbatim.update(range(start, stop))
            case Carried(index):
                covered.append(index)
                verbatim.add(index)
            case Altered(index):
                covered.append(index)
                if _keeps_own_words(messages[index], part):
                    as_asked.add(index)
            case Pruned(start, stop):
                covered += range(start, stop)
            case Pinned(start, stop):
                verbatim.update(range(start, stop))
            case Recalled(indexes):
                quoted.update(indexes)
            case _:
                pass
    kept_calls = kept_calls_of(view)
    ends_with_thoughts = any(
        # Its calls were taken out from behind them.
        messages[index].signed_thinking and not calls and index not in view.without_thinking
        for index, calls in kept_calls.items()
    )
    checks = (
        (sorted(covered) != list(range(len(transcript))), Code.NOT_COVERED_ONCE),
        (0 <= transcript.last_user not in verbatim | as_asked, Code.LAST_USER_MESSAGE_CHANGED),
        (not verbatim.issuperset(messages.instruction_places), Code.INSTRUCTIONS_CHANGED),
        (not verbatim.issuperset(messages.live_places), Code.INSTRUCTIONS_CHANGED),
        (_lacks_client_context(conversation, view), Code.CLIENT_INSTRUCTIONS_MISSING),
        (_is_pair_split(messages, sent, kept_calls), Code.TOOL_PAIR_SPLIT),
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
    for part in view.parts:
        match part:
            case Summary() | Note() | Recalled():
                yield None
            case Verbatim(start, stop) | Pinned(start, stop):
                yield from range(start, stop)
            case Carried(index) | Altered(index):
                yield index
            case _:  # Left out.
                pass


def kept_calls_of(view: View) -> Mapping[int, frozenset[int]]:
    """The calls that are kept of each message that lost some, or whose arguments were cut."""
    return {
        part.index: frozenset(place for place, _ in part.calls)
        for part in view.parts
        if isinstance(part, Altered) and part.calls is not None
    }


def gaps_in(messages: Sequence[Message], order: Order) -> list[int]:
    """Places of the order before which something of the user is missing: where an assistant's message begins, or
    follows another one, and did not in the client's own history."""
    found: list[int] = []
    last: int | None = -1
    for place, index in enumerate(order):
        kind = None if index is None else messages[index].kind
        if kind is Kind.ASSISTANT and last is not None and last != _spoken_before(messages, index or 0):
            found.append(place)
        if kind is not Kind.INSTRUCTIONS:
            last = index if kind is Kind.ASSISTANT else None
    return found


def _spoken_before(messages: Sequence[Message], index: int) -> int:
    """The message before it, but for instructions; -1 without one."""
    return next((i for i in range(index - 1, -1, -1) if messages[i].kind is not Kind.INSTRUCTIONS), -1)


def _are_results_apart(messages: Sequence[Message], order: Order) -> bool:
    """Whether anything stands between a call and its result that did not in the client's own history, or the result
    stands before the call."""
    placed = {index: place for place, index in enumerate(order) if index is not None}
    return any(
        _is_apart(messages, order, placed, index, index - caller.distance)
        for index in placed
        for caller in messages[index].callers
        if caller and index - caller.distance in placed
    )


def _is_apart(messages: Sequence[Message], order: Order, placed: Mapping[int, int], result: int, caller: int) -> bool:
    if placed[result] < placed[caller]:
        return True
    if result - 1 != caller and not messages[result - 1].answers:
        return False  # The client put something between them, too.
    previous = order[placed[result] - 1]
    return previous is None or not caller <= previous < result


def _is_parted(messages: Sequence[Message], order: Order) -> bool:
    """Whether a message is sent without the one behind it that it is bound to, or something stands between them."""
    return any(
        index is not None and messages[index].bound and index + 1 not in (then, len(messages))
        for index, then in pairwise((*order, None))
    )


def _keeps_own_words(message: Message, part: Altered) -> bool:
    """Whether all that was taken away of a message are results that stand in it."""
    places, pairs = message.result_places, zip(part.texts, message.texts, strict=True)
    return bool(places) and all(now == was for place, (now, was) in enumerate(pairs) if place not in places)


def _lacks_client_context(conversation: Conversation, view: View) -> bool:
    """Whether something that the client said for good is said nowhere in the view."""
    noted = [part.text for part in view.parts if isinstance(part, Note)]
    carried = carried_context(conversation, view.parts)
    return not all(any(block.text in text for text in noted) for block in carried.blocks)


def _is_pair_split(messages: History, sent: Sequence[int], kept_calls: Mapping[int, frozenset[int]]) -> bool:
    """Whether a call is sent without any of its results, or a result without its call. Those that the client itself
    sent alone are no fault of the view."""
    indexes = frozenset(sent)
    return any(
        is_call_kept(call, indexes, kept_calls) is indexes.isdisjoint(results)
        for call, results in messages.results.items()
    )


def is_call_kept(call: CallPosition, sent: Container[int], kept_calls: Mapping[int, Container[int]]) -> bool:
    """Whether a call is among the `sent` messages. `kept_calls`: the calls that are kept of those messages that lost
    some."""
    return call.message in sent and (call.message not in kept_calls or call.call in kept_calls[call.message])


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


def coverage_of(
    conversation: Conversation, view: View | None, line: Line = ONE_TO_ONE, cost: Cost | None = None
) -> list[dict[str, Any]]:
    """The payload in order. Indexes count the messages after the leading instructions, from 0, both ends inclusive.
    `cost` counts a message; a view without some of the history's thinking needs it.

    Tokens are the provider's, and add up to the whole: the instructions bear what stands in no message, which is tools,
    response format, the reply's priming, and what the provider adds. `tools_tokens` of them are no instructions.
    """
    if view is None:
        return _untouched(conversation, line)
    parts = _parts(conversation, view)
    messages = conversation.transcript.messages
    spared = {i: cost(messages[i]) - cost(replace(messages[i], thoughts=())) for i in view.without_thinking if cost}
    for shown in parts:
        if shown["kind"] not in ("summarized", "pruned"):
            shown["tokens"] -= sum(tokens for index, tokens in spared.items() if _holds(shown, index))
        for name in shown.keys() & {"tokens", "user_words_tokens"}:
            shown[name] = round(line.ratio * shown[name])
    left = line.to_provider_tokens(view.tokens) - sum(shown["tokens"] for shown in parts)
    return [_instructions(conversation, line, left), *parts]


def _parts(conversation: Conversation, view: View) -> list[dict[str, Any]]:
    """Entries of a view's parts, with our tokens."""
    transcript = conversation.transcript
    parts: list[dict[str, Any]] = []
    for part in view.parts:
        match part:
            case Summary(chunk):
                place = _place(chunk.first_index, chunk.last_index)
                said = {"user_words_tokens": chunk.user_words_tokens} if chunk.user_words else {}
                parts.append({"kind": "summarized", **place, "summary_id": chunk.id, "tokens": chunk.tokens, **said})
            case Carried(index):
                parts.append({"kind": "carried", **_place(index, index), "tokens": transcript.tokens_of(index)})
            case Altered(index, _, tokens, by):
                parts.append({"kind": by, **_place(index, index), "tokens": tokens})
            case Pruned(start, stop, by):
                parts.append({"kind": "pruned", "by": by, **_place(start, stop - 1), "tokens": 0})
            case Pinned(start, stop):
                parts.append({"kind": "pinned", **_place(start, stop - 1), "tokens": transcript.tokens(start, stop)})
            case Note(kind, _, tokens):
                parts.append({"kind": kind, "tokens": tokens})
            case Recalled(quoted, _, tokens):
                parts.append({"kind": "recalled", "messages": list(quoted), "tokens": tokens})
            case _:
                place = _place(part.start, part.stop - 1)
                parts.append({"kind": "verbatim", **place, "tokens": transcript.tokens(part.start, part.stop)})
    return parts


def _holds(part: dict[str, Any], index: int) -> bool:
    return bool(part.get("first_index", index + 1) <= index <= part.get("last_index", -1))


def _untouched(conversation: Conversation, line: Line) -> list[dict[str, Any]]:
    total, messages = conversation.tokens, len(conversation.transcript.messages)
    reported = line.to_provider_tokens(total)
    if not messages:
        return [_instructions(conversation, line, reported)]
    tokens = round(line.ratio * (total - conversation.instruction_tokens))
    verbatim = {"kind": "verbatim", "first_index": 0, "last_index": messages - 1, "tokens": tokens}
    return [_instructions(conversation, line, reported - tokens), verbatim]


def _instructions(conversation: Conversation, line: Line, left: int) -> dict[str, Any]:
    """Entry of the instructions: they bear what is left of the whole, as the provider counts it."""
    tools = max(0, min(left, round(line.ratio * conversation.costs.fixed)))
    return {"kind": "instructions", "messages": len(conversation.instructions), "tools_tokens": tools, "tokens": left}


def _place(first: int, last: int) -> dict[str, int]:
    return {"first_index": first, "last_index": last}
