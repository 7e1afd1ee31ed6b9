"""Verify: the last stage. A changed payload that fails here is not sent.

What formats demand of the order is looked for, too, as far as a view can break it. What a provider says of single
messages is not: those are as the client sent them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from app.compaction.chunks import SummaryChunk
from app.compaction.select import carried_context
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
)
from app.conversation.messages import History, Kind, Message
from app.conversation.reasons import Code
from app.conversation.tool_results import CallPosition

Order = Sequence[int | None]
"""All that is sent: which messages, and None for what Steno says itself."""


def problems(conversation: Conversation, view: View, limit: int, *, alternates: bool = False) -> list[Code]:
    """Problems of a view: empty if every message is covered exactly once and a provider would take it.

    `alternates`: it refuses two messages of the assistant in a row, and one that begins. Those of the user become one.
    """
    transcript = conversation.transcript
    covered: list[int] = []
    order = list(order_of(view))
    sent = [index for index in order if index is not None]
    quoted: set[int] = set()
    for part in view.parts:
        match part:
            case Summary(chunk):
                covered.extend(_summarised(conversation, chunk))
            case Pruned(start, stop):
                covered.extend(range(start, stop))
            case Pinned() | Note():
                pass
            case Recalled(messages):
                quoted.update(messages)
            case _:
                indexes = range(part.start, part.stop) if isinstance(part, Verbatim) else (part.index,)
                covered.extend(indexes)
    kept_calls = kept_calls_of(view)
    verbatim = {i for part in view.parts for i in _verbatim_indexes(part)}
    shortened = (part for part in view.parts if isinstance(part, Altered))
    asked = verbatim | {part.index for part in shortened if _keeps_own_words(conversation, part)}
    checks = (
        (sorted(covered) != list(range(len(transcript))), Code.NOT_COVERED_ONCE),
        (0 <= transcript.last_user not in asked, Code.LAST_USER_MESSAGE_CHANGED),
        (not verbatim.issuperset(transcript.messages.instruction_places), Code.INSTRUCTIONS_CHANGED),
        (not verbatim.issuperset(transcript.messages.live_places), Code.INSTRUCTIONS_CHANGED),
        (_lacks_client_context(conversation, view), Code.CLIENT_INSTRUCTIONS_MISSING),
        (_is_pair_split(transcript.messages, sent, kept_calls), Code.TOOL_PAIR_SPLIT),
        (_are_results_apart(transcript.messages, order), Code.RESULT_APART),
        (_is_parted(transcript.messages, order), Code.BOUND_MESSAGE_PARTED),
        (_ends_with_thoughts(transcript.messages, kept_calls, view.without_thinking), Code.THOUGHTS_LAST),
        (alternates and bool(gaps_in(transcript.messages, order)), Code.ROLES_NOT_ALTERNATING),
        (not (sent or view.chunks or conversation.instructions), Code.NOTHING_LEFT),
        (not quoted.isdisjoint(verbatim), Code.QUOTED_AND_SENT),
        (view.tokens > limit, Code.OVER_THE_LIMIT),
    )
    return [problem for failed, problem in checks if failed]


def _summarised(conversation: Conversation, chunk: SummaryChunk) -> Iterable[int]:
    """The messages that only the summary stands for."""
    start, stop = (conversation.chain.positions.get(end, 0) for end in (chunk.from_digest, chunk.through_digest))
    carried = frozenset(start + offset for offset in chunk.carried)
    return (index for index in range(start, stop) if index not in carried)


def _verbatim_indexes(part: Part) -> Iterable[int]:
    if isinstance(part, Verbatim | Pinned):
        return range(part.start, part.stop)
    return (part.index,) if isinstance(part, Carried) else ()


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


def _ends_with_thoughts(
    messages: Sequence[Message], kept_calls: Mapping[int, frozenset[int]], without_thinking: frozenset[int]
) -> bool:
    """Whether a message may, as its calls were taken out from behind them."""
    return any(
        messages[index].signed_thinking and not calls and index not in without_thinking
        for index, calls in kept_calls.items()
    )


def _is_parted(messages: Sequence[Message], order: Order) -> bool:
    """Whether a message is sent without the one behind it that it is bound to, or something stands between them."""
    return any(
        index is not None and messages[index].bound and index + 1 not in (then, len(messages))
        for index, then in pairwise((*order, None))
    )


def _keeps_own_words(conversation: Conversation, part: Altered) -> bool:
    """Whether all that was taken away of a message are results that stand in it."""
    message = conversation.transcript.messages[part.index]
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
