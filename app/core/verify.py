"""Verify: the last stage. A changed payload that fails here is not sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from app.core.chunks import SummaryChunk
from app.core.messages import RESULT_ROLES, Message
from app.core.view import Carried, Conversation, Part, Summary, Verbatim, View


def problems(conversation: Conversation, view: View, limit: int) -> list[str]:
    """What is wrong with a view: empty if every message is covered exactly once and a provider would take it."""
    transcript = conversation.transcript
    covered: Counter[int] = Counter()
    sent: list[int] = []
    for part in view.parts:
        if isinstance(part, Summary):
            covered.update(_summarised(conversation, part.chunk))
        else:
            sent.extend(range(part.start, part.stop) if isinstance(part, Verbatim) else (part.index,))
    covered.update(sent)
    verbatim = {i for part in view.parts for i in _verbatim_indexes(part)}
    checks = (
        (covered != Counter(range(len(transcript))), "not_covered_once"),
        (0 <= transcript.last_user not in verbatim, "last_user_message_changed"),
        (not _orphans(transcript.messages[i] for i in sent) <= _orphans(transcript.messages), "tool_pair_split"),
        (view.tokens > limit, "over_the_limit"),
    )
    return [problem for failed, problem in checks if failed]


def _summarised(conversation: Conversation, chunk: SummaryChunk) -> Iterable[int]:
    """The messages that only the summary stands for."""
    start, stop = (conversation.chain.positions.get(end, 0) for end in (chunk.from_digest, chunk.through_digest))
    return (index for index in range(start, stop) if index - start not in chunk.carried)


def _verbatim_indexes(part: Part) -> Iterable[int]:
    if isinstance(part, Verbatim):
        return range(part.start, part.stop)
    return (part.index,) if isinstance(part, Carried) else ()


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
