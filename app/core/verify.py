"""Verify: the last stage. A changed payload that fails here is not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.core.messages import RESULT_ROLES, Message
from app.core.view import Carried, Conversation, Shortened, Summary, Verbatim, View


def problems(conversation: Conversation, view: View, limit: int) -> list[str]:
    """What is wrong with a view: empty if every message is covered exactly once and a provider would take it."""
    transcript = conversation.transcript
    covered: Counter[int] = Counter()
    sent: list[int] = []
    for part in view.parts:
        match part:
            case Verbatim(start, stop):
                sent.extend(range(start, stop))
            case Carried(index) | Shortened(index):
                sent.append(index)
            case Summary(chunk):
                start = conversation.chain.positions.get(chunk.from_digest, 0)
                stop = conversation.chain.positions.get(chunk.through_digest, 0)
                carried = {start + offset for offset in chunk.carried}
                covered.update(index for index in range(start, stop) if index not in carried)
    covered.update(sent)
    verbatim = {i for part in view.parts for i in _verbatim_indexes(part)}
    checks = (
        (covered != Counter(range(len(transcript))), "not_covered_once"),
        (0 <= transcript.last_user not in verbatim, "last_user_message_changed"),
        (not _orphans(transcript.messages[i] for i in sent) <= _orphans(transcript.messages), "tool_pair_split"),
        (view.tokens > limit, "over_the_limit"),
    )
    return [problem for failed, problem in checks if failed]


def _verbatim_indexes(part: object) -> Iterable[int]:
    match part:
        case Verbatim(start, stop):
            return range(start, stop)
        case Carried(index):
            return (index,)
        case _:
            return ()


def _orphans(messages: Iterable[Message]) -> set[tuple[str, str]]:
    """Calls without a result and results without a call. A client's own orphans are for the provider to judge."""
    calls: set[str] = set()
    results: set[str] = set()
    orphaned: set[tuple[str, str]] = set()
    for message in messages:
        if message.role in RESULT_ROLES and message.answers:
            results.add(message.answers)
            if message.answers not in calls:
                orphaned.add(("result", message.answers))
        calls.update(call.id for call in message.calls)
    return orphaned | {("call", call) for call in calls - results}
