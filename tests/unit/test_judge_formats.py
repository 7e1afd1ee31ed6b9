"""The judge of replays before Messages and Responses: what each holds that Chat Completions do not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lab.formats.format import ReplayFormat
from lab.formats.known import MESSAGES, RESPONSES
from lab.replay.evidence import Report, SentMessages, split_pairs
from lab.replay.judge import Judge, SummaryCalls, Verdict
from lab.simulator import Record

Said = dict[str, Any]

THOUGHT = {"type": "thinking", "thinking": "Let me see.", "signature": "s"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"order": "ORD-1"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Turku"}
BLOCKS: list[Said] = [
    {"role": "user", "content": "Where is order ORD-1?"},
    {"role": "assistant", "content": [THOUGHT, USE]},
    {"role": "user", "content": [RESULT]},
    {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "It is in Turku."}]},
    {"role": "user", "content": "Thank you."},
    {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "You are welcome, as always."}]},
    {"role": "user", "content": [{"type": "text", "text": "And where is ORD-2?"}]},
]
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "find", "arguments": '{"order": "ORD-1"}'}
ANSWER = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "Turku."}]}
ITEMS: list[Said] = [
    {"role": "user", "content": "Where is order ORD-1?"},
    REASONING,
    CALL,
    {"type": "function_call_output", "call_id": "call_1", "output": "Turku"},
    {**REASONING, "id": "rs_2"},
    ANSWER,
    {"role": "user", "content": "And where is ORD-2?"},
]
NOTES = "The user asked for ORD-1, which is in Turku."


def body(written: ReplayFormat, said: Sequence[Said]) -> bytes:
    beside = {MESSAGES.name: "system", RESPONSES.name: "instructions"}[written.name]
    return json.dumps({"model": "m", beside: "Be brief.", written.history: list(said)}).encode()


def summary(written: ReplayFormat) -> Said:
    kind = "text" if written is MESSAGES else "input_text"
    return {"role": "user", "content": [{"type": kind, "text": f"[Notes]\n{NOTES}"}]}


def call(written: ReplayFormat, *sections: tuple[str, str]) -> Record:
    """A summary call that was shown these messages, by role, in Steno's form."""
    shown = "\n".join(f"<ab12 {number} {role}>\n{text}" for number, (role, text) in enumerate(sections, 1))
    asked = [{"role": "user", "content": f"{shown}\n<ab12 end>\n\nEnd of the transcript."}]
    return Record(1, 0.0, "POST", written.path, (), body(written, asked), "summary", status=200, text=NOTES)


def judged(
    written: ReplayFormat, history: Sequence[Said], payload: Sequence[Said], *made: Record, report: Report | None = None
) -> Verdict:
    judge = Judge("one", SummaryCalls(), SentMessages(written))
    sent = Record(2, 0.0, "POST", written.path, (), body(written, payload), "chat", status=200, text="fine")
    return judge.judge(1, body(written, history), [*made, sent], report or Report())


def kinds(verdict: Verdict) -> set[str]:
    return {violation.kind for violation in verdict.violations}


BLOCKS_SHOWN = (
    ("user", "Where is order ORD-1?"),
    ("assistant", '[calls find with {"order":"ORD-1"}]'),
    ("tool find", "Turku"),
    ("assistant", "It is in Turku."),
)
ITEMS_SHOWN = (*BLOCKS_SHOWN[:1], ("assistant", '[calls find with {"order": "ORD-1"}]'), ("tool find", "Turku"))


def test_what_stands_beside_the_messages_is_the_first_of_them() -> None:
    verdict = judged(MESSAGES, BLOCKS, BLOCKS)
    assert (verdict.violations, verdict.verbatim) == ((), 8)


def test_another_system_prompt_is_a_violation() -> None:
    judge = Judge("one", SummaryCalls(), SentMessages(MESSAGES))
    other = body(MESSAGES, BLOCKS).replace(b"Be brief.", b"Be long.")
    sent = Record(2, 0.0, "POST", MESSAGES.path, (), other, "chat", status=200, text="fine")
    assert "instructions" in kinds(judge.judge(1, body(MESSAGES, BLOCKS), [sent]))


def test_a_message_without_its_thinking_is_there_and_one_without_a_word_is_not() -> None:
    told = call(MESSAGES, *BLOCKS_SHOWN)
    left = {**BLOCKS[5], "content": BLOCKS[5]["content"][1:]}
    verdict = judged(MESSAGES, BLOCKS, [summary(MESSAGES), BLOCKS[4], left, BLOCKS[6]], told)
    assert (verdict.violations, verdict.summarised, verdict.verbatim) == ((), 4, 4)
    less = {**left, "content": [{"type": "text", "text": "You are welcome."}]}
    assert {"lost", "changed"} <= kinds(judged(MESSAGES, BLOCKS, [summary(MESSAGES), BLOCKS[4], less, BLOCKS[6]], told))


def test_thinking_is_missed_in_no_summary_and_a_result_is() -> None:
    payload = [summary(MESSAGES), *BLOCKS[4:]]
    assert not judged(MESSAGES, BLOCKS, payload, call(MESSAGES, *BLOCKS_SHOWN)).violations
    without = call(MESSAGES, *BLOCKS_SHOWN[:2], BLOCKS_SHOWN[3])
    assert "foreign_summary" in kinds(judged(MESSAGES, BLOCKS, payload, without))


def test_reasoning_is_quoted_to_nobody_and_what_stood_behind_it_may_lose_its_id() -> None:
    history = [*ITEMS[:4], *ITEMS[5:]]
    left = {key: value for key, value in ANSWER.items() if key != "id"}
    told = call(RESPONSES, *ITEMS_SHOWN)
    verdict = judged(RESPONSES, history, [summary(RESPONSES), ITEMS[0], left, ITEMS[6]], told)
    assert (verdict.violations, verdict.summarised) == ((), 3)


@pytest.mark.parametrize(
    ("items", "split"),
    [
        ([CALL, {**CALL, "call_id": "b"}, {**ITEMS[3], "call_id": "b"}, ITEMS[3]], set()),
        ([CALL, ANSWER, ITEMS[3]], set()),
        ([CALL, ANSWER], {"call_1"}),
        ([ITEMS[3], CALL], {"call_1"}),
    ],
)
def test_a_result_of_responses_may_stand_anywhere_behind_its_call(items: list[Said], split: set[str]) -> None:
    reader = SentMessages(RESPONSES)
    assert split_pairs(reader.split(body(RESPONSES, items))) == split


def test_all_results_of_one_message_have_to_be_there() -> None:
    calls = {"role": "assistant", "content": [USE, {**USE, "id": "toolu_2"}]}
    reader = SentMessages(MESSAGES)
    assert split_pairs(reader.split(body(MESSAGES, [BLOCKS[0], calls, BLOCKS[2]]))) == {"toolu_2"}
