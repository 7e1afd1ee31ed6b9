"""Verify: the last stage. A changed payload that fails here is not sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from app.core.history.messages import Message
from app.core.reasons import Code
from app.core.view.chunks import SummaryChunk
from app.core.view.reading import said_again
from app.core.view.view import (
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


def problems(conversation: Conversation, view: View, limit: int) -> list[Code]:
    """What is wrong with a view: empty if every message is covered exactly once and a provider would take it."""
    transcript = conversation.transcript
    covered: list[int] = []
    sent: list[int] = []
    quoted: set[int] = set()
    kept_calls: dict[int, frozenset[str]] = {}
    for part in view.parts:
        match part:
            case Summary(chunk):
                covered.extend(_summarised(conversation, chunk))
            case Pruned(start, stop):
                covered.extend(range(start, stop))
            case Pinned(start, stop):
                sent.extend(range(start, stop))
            case Note():
                pass
            case Recalled(messages):
                quoted.update(messages)
            case _:
                indexes = range(part.start, part.stop) if isinstance(part, Verbatim) else (part.index,)
                covered.extend(indexes)
                sent.extend(indexes)
                if isinstance(part, Altered) and part.calls is not None:
                    calls = transcript.messages[part.index].calls
                    kept_calls[part.index] = frozenset(calls[position].id for position, _ in part.calls)
    verbatim = {i for part in view.parts for i in _verbatim_indexes(part)}
    shortened = (part for part in view.parts if isinstance(part, Altered))
    asked = verbatim | {part.index for part in shortened if _keeps_own_words(conversation, part)}
    checks = (
        (sorted(covered) != list(range(len(transcript))), Code.NOT_COVERED_ONCE),
        (0 <= transcript.last_user not in asked, Code.LAST_USER_MESSAGE_CHANGED),
        (not verbatim.issuperset(transcript.messages.instruction_places), Code.INSTRUCTIONS_CHANGED),
        (bool(_orphans(transcript.messages, sent, kept_calls)), Code.TOOL_PAIR_SPLIT),
        (_lacks_blocks(conversation, view), Code.CLIENT_INSTRUCTIONS_MISSING),
        (_is_parted(transcript.messages, sent), Code.BOUND_MESSAGE_PARTED),
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


def _keeps_own_words(conversation: Conversation, part: Altered) -> bool:
    """Whether all that was taken away of a message are results that stand in it."""
    message = conversation.transcript.messages[part.index]
    places, pairs = message.result_places, zip(part.texts, message.texts, strict=True)
    return bool(places) and all(now == was for place, (now, was) in enumerate(pairs) if place not in places)


def _lacks_blocks(conversation: Conversation, view: View) -> bool:
    """Whether something that the client said for good is said nowhere in the view."""
    noted = [part.text for part in view.parts if isinstance(part, Note)]
    again = said_again(conversation, view.parts)
    return not all(any(block.text in text for text in noted) for block in again.blocks)


def _is_parted(messages: Sequence[Message], sent: Iterable[int]) -> bool:
    """Whether a message is sent without the one behind it that it is bound to."""
    followed = pairwise((*sent, -1))
    return any(messages[index].bound and index + 1 not in (then, len(messages)) for index, then in followed)


def _orphans(
    messages: Sequence[Message], sent: Iterable[int], kept_calls: Mapping[int, frozenset[str]]
) -> set[tuple[str, str]]:
    """Calls without a result and results without a call among the messages that are sent."""
    calls: set[str] = set()
    results: set[str] = set()
    orphaned: set[tuple[str, str]] = set()
    for index in sent:
        message = messages[index]
        answered = [id_ for id_ in message.answers if id_]
        results.update(answered)
        orphaned.update(("result", id_) for id_ in answered if id_ not in calls)
        made = frozenset(call.id for call in message.calls if not call.by_place)
        calls.update(kept_calls.get(index, made))
    return orphaned | {("call", call) for call in calls - results}
