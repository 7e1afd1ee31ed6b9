"""The judge of replays: logs written by hand, one right and each of the others wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from lab.replay.evidence import Report, SentMessages
from lab.replay.judge import Judge, SummaryCalls, Verdict
from lab.simulator import Record

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "You answer questions about orders."}
TURNS: Messages = [
    {"role": "user", "content": "Where is order ORD-1?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"order": "ORD-1"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"place": "Turku"}'},
    {"role": "assistant", "content": "It is in Turku."},
    {"role": "user", "content": "Yes"},
    {"role": "assistant", "content": "Good."},
    {"role": "user", "content": "Yes"},
    {"role": "assistant", "content": "Can I help with anything else, such as the return of the parcel of last week?"},
    {"role": "user", "content": "And where is ORD-2, which I have been waiting for since the beginning of the month?"},
]
HISTORY = [SYSTEM, *TURNS]
NOTES = "The user asked for ORD-1, which is in Turku."
MORE_NOTES = "The user said yes twice."
FOLDED = "ORD-1 is in Turku, and the user agreed."


def summary(text: str) -> dict[str, Any]:
    return {"role": "user", "content": f"[Notes]\n<notes>\n{text}\n</notes>"}


def body(messages: Sequence[Any]) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": messages}).encode()


SEQUENCE = count(1)
"""Of the requests that a provider got."""


def record(kind: Any, messages: Sequence[Any], text: str) -> Record:
    path = "/v1/chat/completions"
    return Record(next(SEQUENCE), 0.0, "POST", path, (), body(messages), kind, status=200, text=text)


def asked(sections: Sequence[str], text: str) -> Record:
    content = "\n".join((*sections, "<ab12 end>", "", "End of the transcript. Yes, write the notes."))
    return record("summary", [{"role": "system", "content": "Rules."}, {"content": content}], text)


def call(quoted: Sequence[dict[str, Any]], text: str) -> Record:
    """A summary call that was shown these messages, in Steno's form."""
    sections = [f"<ab12 {number} {heading(message)}>\n{shown(message)}" for number, message in enumerate(quoted, 1)]
    return asked(sections, text)


def update(before: str, quoted: Sequence[dict[str, Any]], text: str) -> Record:
    """A call that brings a summary up to date with these messages."""
    sections = [f"<ab12 notes on messages 1>\n{before}\n<ab12 end>"]
    return asked([*sections, *(f"<ab12 {heading(message)}>\n{shown(message)}" for message in quoted)], text)


def fold(texts: Sequence[str], text: str) -> Record:
    return asked([f"<ab12 notes on messages {number}>\n{shown}" for number, shown in enumerate(texts, 1)], text)


class Conversation:
    """Requests and the log that grows with them."""

    def __init__(self) -> None:
        self._judge = Judge("one", SummaryCalls(), SentMessages())
        self._requests = count(1)

    def request(
        self,
        history: Sequence[Any],
        payload: Sequence[Any],
        *made: Record,
        report: Report = Report(),  # noqa: B008 - a frozen value
    ) -> Verdict:
        sent = record("chat", payload, "fine")
        return self._judge.judge(next(self._requests), body(history), [*made, sent], report)


def heading(message: dict[str, Any]) -> str:
    return f"{message['role']}, shown as context"


def shown(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return "\n".join(
        (*filter(None, [message["content"]]), *(f"[calls {c['name']} with {c['arguments']}]" for c in calls))
    )


def told(status: str, *left_out: int) -> Report:
    """What Steno says of a payload: its status, and the first and last message that it left out."""
    listed = [{"kind": "pruned", "first_index": left_out[0], "last_index": left_out[1]}] if left_out else []
    return Report(frozenset(["pruned"] if left_out else []), lambda: listed, status=status)


def kinds(verdict: Verdict) -> set[str]:
    return {violation.kind for violation in verdict.violations}


@pytest.fixture
def conversation() -> Conversation:
    """One that has come to its sixth message uncompacted."""
    conversation = Conversation()
    assert not conversation.request(HISTORY[:6], HISTORY[:6]).violations
    return conversation


# What is right


RULE = {"role": "developer", "content": "Be brief."}
RULED = [SYSTEM, *TURNS[:4], RULE, *TURNS[4:]]
FIRST, SECOND = call(TURNS[:4], NOTES), call(TURNS[4:6], MORE_NOTES)
SUMMARISED = [SYSTEM, summary(NOTES), *TURNS[4:]]
RIGHT: dict[str, tuple[Messages, list[Record], Messages, int]] = {
    "an untouched history": (HISTORY, [], HISTORY, 0),
    "a summary of the first turn": (HISTORY, [FIRST], [SYSTEM, summary(NOTES), *TURNS[4:]], 4),
    "an instruction in the middle, behind the summary": (
        RULED,
        [call([*TURNS[:4], RULE], NOTES)],
        [SYSTEM, summary(NOTES), RULE, *TURNS[4:]],
        4,
    ),
    "a fold whose summaries were right": (
        HISTORY,
        [FIRST, SECOND, fold([NOTES, MORE_NOTES], FOLDED)],
        [SYSTEM, summary(FOLDED), *TURNS[6:]],
        6,
    ),
    "a summary brought up to date stands for what both were made from": (
        HISTORY,
        [FIRST, update(NOTES, TURNS[4:6], MORE_NOTES)],
        [SYSTEM, summary(MORE_NOTES), *TURNS[6:]],
        6,
    ),
    "a call that was shown the conversation itself": (
        HISTORY,
        [record("summary", [SYSTEM, *TURNS[:4], {"role": "user", "content": "Now write the notes."}], NOTES)],
        [SYSTEM, summary(NOTES), *TURNS[4:]],
        4,
    ),
}


@pytest.mark.parametrize(("history", "made", "payload", "summarised"), RIGHT.values(), ids=RIGHT)
def test_right_is(
    conversation: Conversation, history: Messages, made: list[Record], payload: Messages, summarised: int
) -> None:
    verdict = conversation.request(history, payload, *made)
    assert not verdict.violations
    assert (verdict.summarised, verdict.verbatim) == (summarised, len(history) - summarised)
    assert verdict.compaction == verdict.broke == bool(made)
    assert (verdict.summary_calls, verdict.folds) == (
        len(made),
        sum("notes on messages 2" in str(m.body) for m in made),
    )
    assert (verdict.kept_bytes == verdict.previous_bytes > 0) is (not made)


# What is left out, and named


@pytest.mark.parametrize("status", ["full", "trimmed", "summarized"])
def test_the_status_has_to_be_that_of_the_payload(status: str) -> None:
    payloads = {"full": HISTORY, "trimmed": [SYSTEM, *TURNS[4:]], "summarized": [SYSTEM, summary(NOTES), *TURNS[4:]]}
    for right, payload in payloads.items():
        conversation = Conversation()
        calls = [call(TURNS[:4], NOTES)] if right == "summarized" else []
        left_out = (0, 3) if right == "trimmed" else ()
        verdict = conversation.request(HISTORY, payload, *calls, report=told(status, *left_out))
        assert kinds(verdict) == (set() if status == right else {"status"})


# What is wrong
WRONG: dict[str, tuple[list[Record], Messages, set[str]]] = {
    "a message left out": ([], [*HISTORY[:4], *HISTORY[5:]], {"lost", "prefix"}),
    "a message that the summary call was not shown": (
        [call([*TURNS[:2], TURNS[3]], NOTES)],
        SUMMARISED,
        {"foreign_summary", "lost"},
    ),
    "a summary that no call wrote": ([], [SYSTEM, summary("Invented."), *TURNS[4:]], {"changed", "lost", "prefix"}),
    "one byte of a message": (
        [],
        [*HISTORY[:4], {"role": "assistant", "content": "It is in Turku!"}, *HISTORY[5:]],
        {"changed", "lost", "prefix"},
    ),
    "a changed instruction": (
        [],
        [{"role": "system", "content": "You answer questions."}, *TURNS],
        {"instructions", "lost", "prefix"},
    ),
    "the last user message in a summary": ([call(TURNS, NOTES)], [SYSTEM, summary(NOTES)], {"last_user"}),
    "a result without its call": (
        [call(TURNS[:2], NOTES)],
        [SYSTEM, summary(NOTES), TURNS[0], *TURNS[2:]],
        {"split_pair"},
    ),
    "a message both in the summary and verbatim": ([FIRST], [SYSTEM, summary(NOTES), *TURNS[3:]], {"twice"}),
    "the user message of a split turn without its copy": (
        [call(TURNS[:3], NOTES)],
        [SYSTEM, summary(NOTES), *TURNS[3:]],
        {"lost"},
    ),
    "a compaction that nobody sees": ([FIRST], HISTORY, {"idle"}),
}


@pytest.mark.parametrize(("made", "payload", "found"), WRONG.values(), ids=WRONG)
def test_wrong_is(conversation: Conversation, made: list[Record], payload: Messages, found: set[str]) -> None:
    assert kinds(conversation.request(HISTORY, payload, *made)) == found


# Recalled passages


def recalling(*quoted: tuple[int, str, str]) -> dict[str, Any]:
    """A note that quotes these, each with position and speaker."""
    lines = [f"{position} {speaker}: {text}".replace("\n", "\n\t") for position, speaker, text in quoted]
    return {"role": "user", "content": "\n".join(("[Quoted.]", "<recalled 0a1b2c3d>", *lines, "</recalled 0a1b2c3d>"))}


PLACE = (3, "tool find", '{"place": "Turku"}')


def with_note(conversation: Conversation, *quoted: tuple[int, str, str]) -> Verdict:
    """The first turn is summarised, and something of it recalled."""
    payload = [SYSTEM, summary(NOTES), *TURNS[4:-1], recalling(*quoted), TURNS[-1]]
    return conversation.request(HISTORY, payload, FIRST, report=Report(frozenset({"recalled"})))


def test_passages_of_summarised_messages_are_right(conversation: Conversation) -> None:
    quoted = (1, "user", "Where is order"), (2, "assistant calls find", '{"order": "ORD-1"}'), PLACE
    verdict = with_note(conversation, *quoted)
    assert not verdict.violations
    assert verdict.passages == {1: ("Where is order",), 2: ('{"order": "ORD-1"}',), 3: ('{"place": "Turku"}',)}
    assert [message.role for message in verdict.recalling] == ["user"]
    assert (verdict.verbatim, verdict.summarised) == (6, 4)


def test_a_note_may_stand_before_a_carried_message(conversation: Conversation) -> None:
    question, *steps = TURNS[0], *({"role": "assistant", "content": f"Step {number}."} for number in range(6))
    again = [SYSTEM, summary(NOTES), question, *steps[1:4], {"role": "user", "content": "Now write the notes."}]
    made = call([question, steps[0]], NOTES), record("summary", again, MORE_NOTES)
    payload = [SYSTEM, summary(MORE_NOTES), recalling((2, "assistant", "Step 0.")), question, *steps[4:]]
    verdict = conversation.request([SYSTEM, question, *steps], payload, *made, report=Report(frozenset({"recalled"})))
    assert not verdict.violations


@pytest.mark.parametrize(
    "quoted",
    [
        (3, "tool find", '{"place": "Tartu"}'),
        (3, "user", '{"place": "Turku"}'),
        (0, "system", "You answer"),
    ],
)
def test_quotation_of_what_nobody_said_there_is_wrong(conversation: Conversation, quoted: tuple[int, str, str]) -> None:
    assert kinds(with_note(conversation, quoted)) == {"recalled"}
