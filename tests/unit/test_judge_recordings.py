"""Recordings for replays: the shapes of files, and conversations chained into one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lab.formats.known import GEMINI, MESSAGES, RESPONSES
from lab.replay.recordings import (
    OPENING,
    Recording,
    UnreadableRecording,
    chain,
    converted,
    read_recordings,
    with_questions,
)

CALL: Any = {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
AGENT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_a", "content": "Turku"},
    {"role": "assistant", "content": "In Turku."},
]
DIALOGUE: dict[str, Any] = {
    "id": "talk",
    "speakers": ["Ada", "Ben"],
    "sessions": [
        {"date_time": "1 May", "turns": [{"speaker": "Ben", "text": "Hi!"}, {"speaker": "Ada", "text": "Hello."}]},
        {"date_time": "2 May", "turns": [{"speaker": "Ada", "text": "Back."}, {"speaker": "Ben", "text": "Good."}]},
    ],
}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "talks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_json_lines_of_messages(tmp_path: Path) -> None:
    [first, second] = read_recordings(written(tmp_path, {"id": "a", "messages": AGENT}, {"messages": AGENT[:2]}))
    assert (first.name, first.messages) == ("a", tuple(AGENT))
    assert second.name == "talks-2"


def test_dialogue_has_roles_for_speakers_and_dates_for_sessions(tmp_path: Path) -> None:
    [talk] = read_recordings(written(tmp_path, DIALOGUE))
    assert talk.messages == (
        {"role": "assistant", "content": "[1 May] Hi!"},
        {"role": "user", "content": "Hello.\n[2 May] Back."},
        {"role": "assistant", "content": "Good."},
    )
    assert talk.requests == (2,)  # Nobody asked for the first one.


def test_chain_drops_later_instructions_and_renames_tool_calls() -> None:
    [both, rest] = chain([Recording(name, tuple(AGENT)) for name in "abc"], 2)
    assert [message["role"] for message in both.messages].count("system") == 1
    ids = [call["id"] for message in both.messages for call in message.get("tool_calls", ())]
    assert len(set(ids)) == 2
    assert [message["tool_call_id"] for message in both.messages if message["role"] == "tool"] == ids
    assert (both.name, rest.name) == ("a+1", "c+0")
    assert AGENT[2]["tool_calls"] == [CALL]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{]", "line 2"),
        ('{"id": "x"}', 'expected an object with "messages", "input"'),
        ('{"messages": [{"content": "x"}]}', "message 1 has no role"),
        ('{"speakers": ["A", "B"], "sessions": [{"turns": []}]}', "date_time"),
        ('{"messages": [], "remarks": {"first": "x"}}', "questions or remarks"),
    ],
)
def test_line_that_is_no_recording_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(UnreadableRecording, match=problem):
        read_recordings(written(tmp_path, {"messages": AGENT}, line))


# Other formats

BLOCKS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is it?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_a", "name": "find", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_a", "content": "Turku"}]},
    {"role": "assistant", "content": "In Turku."},
]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is it?"},
    {"type": "reasoning", "id": "rs_a", "summary": []},
    {"type": "function_call", "call_id": "call_a", "name": "find", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_a", "output": "Turku"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "In Turku."}]},
]


@pytest.mark.parametrize(
    "line",
    [
        {"system": "Be brief.", "messages": BLOCKS[:1]},
        {"messages": BLOCKS},
        {"messages": BLOCKS[:1], "tools": [{"name": "find", "input_schema": {}}]},
    ],
)
def test_messages_are_known_by_their_system_prompt_their_blocks_or_their_tools(tmp_path: Path, line: Any) -> None:
    [read] = read_recordings(written(tmp_path, line))
    assert read.format is MESSAGES
    assert read.beside == {key: value for key, value in line.items() if key != "messages"}


def test_a_conversation_of_items_is_one_of_responses(tmp_path: Path) -> None:
    [read] = read_recordings(written(tmp_path, {"id": "a", "instructions": "Be brief.", "input": ITEMS, "model": "m"}))
    assert (read.name, read.format, read.beside) == ("a", RESPONSES, {"instructions": "Be brief."})
    assert read.requests == (1, 4)  # Where the model begins, not at each of its items.


@pytest.mark.parametrize(("member", "said", "ids"), [("messages", BLOCKS, "toolu_a"), ("input", ITEMS, "call_a")])
def test_chained_calls_of_other_formats_get_ids_of_their_own(
    tmp_path: Path, member: str, said: list[dict[str, Any]], ids: str
) -> None:
    [both] = chain(read_recordings(written(tmp_path, {member: said}, {member: said})), 2)
    told = json.dumps(both.messages)
    assert [told.count(f'"{ids}_{number}"') for number in (0, 1)] == [2, 2]


def test_chat_completions_as_messages() -> None:
    said = converted(Recording("a", tuple(AGENT)), MESSAGES)
    assert said.beside == {"system": "Be brief.", "tools": [{"name": "find", "input_schema": {"type": "object"}}]}
    assert said.messages[1]["content"] == [{"type": "tool_use", "id": "call_a", "name": "find", "input": {}}]
    assert said.messages[2]["content"] == [{"type": "tool_result", "tool_use_id": "call_a", "content": "Turku"}]
    assert said.requests == (1, 3)


def test_all_results_of_a_step_are_one_message_and_what_the_user_says_is_another() -> None:
    calls = [{**CALL, "id": name} for name in "ab"]
    results = [{"role": "tool", "tool_call_id": name, "content": "Turku"} for name in "ab"]
    talk = [*AGENT[:2], {"role": "assistant", "content": None, "tool_calls": calls}, *results, AGENT[1]]
    said = converted(Recording("a", tuple(talk)), MESSAGES)
    assert [block["tool_use_id"] for block in said.messages[2]["content"]] == ["a", "b"]
    assert said.messages[3]["content"] == [{"type": "text", "text": "Where is it?"}]


def test_what_the_assistant_said_first_gets_an_opening_and_remarks_their_new_places(tmp_path: Path) -> None:
    asked = {**DIALOGUE, "qa": [{"question": "How?", "answer": "Good.", "evidence": ["x"]}]}
    asked["sessions"] = [{"date_time": "1 May", "turns": [{"id": "x", "speaker": "Ben", "text": "Good."}]}]
    [talk] = read_recordings(written(tmp_path, asked))
    said = converted(talk, MESSAGES)
    assert said.messages[0] == {"role": "user", "content": [{"type": "text", "text": OPENING}]}
    assert said.remarks["x"].index == 1
    ruled = Recording("a", (AGENT[0], *talk.messages), remarks={"x": talk.remarks["x"].__class__(1, "Good.")})
    assert converted(ruled, RESPONSES).remarks["x"].index == 1  # Behind the instructions.


def test_chat_completions_as_items() -> None:
    said = converted(Recording("a", tuple(AGENT)), RESPONSES)
    assert said.beside == {"instructions": "Be brief."}
    assert [item.get("type") for item in said.messages] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert said.requests == (1, 3)


def test_chat_completions_as_contents() -> None:
    said = converted(Recording("a", tuple(AGENT)), GEMINI)
    assert said.beside == {"systemInstruction": {"parts": [{"text": "Be brief."}]}}
    assert said.messages[1] == {
        "role": "model",
        "parts": [{"functionCall": {"id": "call_a", "name": "find", "args": {}}}],
    }
    answered = {"id": "call_a", "name": "find", "response": {"output": "Turku"}}
    assert said.messages[2] == {"role": "user", "parts": [{"functionResponse": answered}]}
    assert said.requests == (1, 3)


# Questions of a file


def test_questions_of_a_file_take_the_place_of_the_conversations_own(tmp_path: Path) -> None:
    talks = [{**DIALOGUE, "id": name, "sessions": with_ids(name)} for name in ("one", "two")]
    recordings = read_recordings(written(tmp_path, *talks))
    asked = tmp_path / "asked.jsonl"
    asked.write_text(
        '{"conversation": "two", "question": "Who?", "evidence": ["D1:1", "D2:2"], "category": "indirect",'
        ' "before": "Ben?"}\n\n{"conversation": "three", "question": "What?", "evidence": ["D9:9"]}\n'
    )
    one, two = with_questions(recordings, asked)
    assert one.questions == ()
    [question] = two.questions
    assert (question.text, question.evidence, question.answer) == ("Who?", ("D1:1", "D2:2"), "")
    assert (question.kind, question.before) == ("indirect", "Ben?")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"conversation": "one", "evidence": ["D1:1"]}', "line 1: a question lacks 'question'"),
        ('{"question": "Who?", "evidence": ["D1:1"]}', "line 1: a question lacks 'conversation'"),
        ('{"conversation": "one", "question": "Who?", "evidence": []}', "line 1: a question without evidence"),
        ('{"conversation": "one", "question": "Who?", "evidence": ["D3:1"]}', "one has no remark D3:1"),
        ("[]", "line 1: a question lacks"),
        ("{", "asked.jsonl, line 1"),
    ],
)
def test_questions_that_cannot_be_asked_say_where_they_are(tmp_path: Path, line: str, told: str) -> None:
    recordings = read_recordings(written(tmp_path, {**DIALOGUE, "id": "one", "sessions": with_ids("one")}))
    asked = tmp_path / "asked.jsonl"
    asked.write_text(line)
    with pytest.raises(UnreadableRecording, match=re.escape(told)):
        with_questions(recordings, asked)


def with_ids(name: str) -> list[dict[str, Any]]:
    """The sessions of the dialogue, each remark with an id."""
    return [
        {
            "date_time": session["date_time"],
            "turns": [
                {**turn, "id": f"D{number}:{place}", "text": f"{turn['text']} {name}"}
                for place, turn in enumerate(session["turns"], 1)
            ],
        }
        for number, session in enumerate(DIALOGUE["sessions"], 1)
    ]
