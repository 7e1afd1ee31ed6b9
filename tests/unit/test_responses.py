"""Responses: items in, core messages out, and items again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from app.compaction.view import Altered, Carried, Conversation, Note, Pruned, Verbatim, View
from app.conversation.messages import Kind, Media, Message
from app.formats.reader import MessageReader
from app.formats.responses.format import RESPONSES
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY


def read(item: Mapping[str, Any] | bytes) -> Message:
    raw = item if isinstance(item, bytes) else json.dumps(item).encode()
    return RESPONSES.message(raw).message


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", **members}).encode()


def talk(*items: Mapping[str, Any], **members: Any) -> Conversation:
    raw = RESPONSES.read(body(input=items, **members)).raw_messages
    read_ = MessageReader(IDENTITY, RESPONSES.message).read(raw)
    return Conversation(read_, IDENTITY, "t", lambda: Costs([1] * len(read_), 0), None)


def rendered(conversation: Conversation, *parts: Any) -> list[Any]:
    return [json.loads(raw) for raw in RESPONSES.render(conversation, View(parts, 1))]


USER = {"role": "user", "content": "q"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]}

# Reading


@pytest.mark.parametrize(
    ("call", "name", "arguments"),
    [
        ({"type": "function_call", "name": "f", "arguments": '{"a":1}'}, "f", '{"a":1}'),
        ({"type": "custom_tool_call", "name": "f", "input": "run"}, "f", "run"),
        ({"type": "computer_call", "action": {"type": "wait"}}, "computer", '{"type":"wait"}'),
        ({"type": "computer_call", "actions": [{"type": "wait"}]}, "computer", '[{"type":"wait"}]'),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, "local_shell", '{"command":["ls"]}'),
        ({"type": "shell_call", "action": {"commands": ["ls"]}}, "shell", '{"commands":["ls"]}'),
        ({"type": "apply_patch_call", "operation": {"diff": "+a"}}, "apply_patch", '{"diff":"+a"}'),
        ({"type": "program", "code": "run()", "fingerprint": "x"}, "program", "run()"),
        ({"type": "tool_search_call", "arguments": {"q": "a"}}, "tool_search", '{"q":"a"}'),
    ],
)
def test_calls_of_every_family_are_read(call: dict[str, Any], name: str, arguments: str) -> None:
    message = read({"call_id": "c", "id": "i", **call})
    assert message.kind is Kind.ASSISTANT
    assert [(made.id, made.name, made.arguments) for made in message.calls] == [("c", name, arguments)]
    assert message.sealed is (name == "program")


@pytest.mark.parametrize(
    ("result", "texts"),
    [
        ({"type": "function_call_output", "call_id": "c", "output": "a"}, ("a",)),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]}, ("a",)),
        ({"type": "local_shell_call_output", "id": "c", "output": "a"}, ("a",)),
        ({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": "b"}]}, ("a", "b")),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "completed"}, ()),
        ({"type": "program_output", "call_id": "c", "result": "a"}, ("a",)),
        ({"type": "mcp_approval_response", "approval_request_id": "c", "approve": True}, ("approved",)),
        ({"type": "mcp_approval_response", "approval_request_id": "c", "reason": "no"}, ("denied", "no")),
        ({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot"}}, ()),
        ({"type": "tool_search_output", "call_id": "c", "tools": []}, ("[]",)),
    ],
)
def test_results_of_every_family_are_read(result: dict[str, Any], texts: tuple[str, ...]) -> None:
    message = read(result)
    assert (message.kind, message.answers, message.texts) == (Kind.RESULT, ("c",), texts)
    assert message.sealed is (result["type"] == "tool_search_output")


@pytest.mark.parametrize(
    ("item", "name", "texts"),
    [
        ({"type": "web_search_call", "action": {"query": "a"}}, "web_search", ()),
        (
            {"type": "file_search_call", "queries": ["q"], "results": [{"filename": "f", "text": "a"}]},
            "file_search",
            ("f", "a"),
        ),
        (
            {"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": "a"}]},
            "code_interpreter",
            ("a",),
        ),
        (
            {"type": "mcp_call", "name": "m", "arguments": "{}", "output": "a", "error": {"code": 1}},
            "m",
            ("a", '{"code":1}'),
        ),
        (
            {"type": "image_generation_call", "result": "iVBORw0KGgo=", "revised_prompt": "a cat"},
            "image_generation",
            (),
        ),
    ],
)
def test_what_a_providers_own_tool_did_is_one_item(item: dict[str, Any], name: str, texts: tuple[str, ...]) -> None:
    message = read({"id": "i", **item})
    assert (message.kind, message.texts, message.calls) == (Kind.ASSISTANT, texts, ())
    assert [call.name for call in message.settled] == [name]
    assert [media.kind for media in message.media] == (["image"] if name == "image_generation" else [])


def test_lists_of_tools_are_sealed_and_what_runs_the_model_is_instructions() -> None:
    for item in ({"type": "additional_tools", "role": "developer", "tools": [{}]}, {"type": "configuration_update"}):
        assert (read(item).kind, read(item).sealed) == (Kind.INSTRUCTIONS, True)
    assert read({"type": "mcp_list_tools", "id": "i", "tools": [{}]}).sealed


def test_an_unknown_item_is_kept_and_told_whole() -> None:
    message = read({"type": "x_new", "held": 1})
    assert (message.kind, message.role, message.texts) == (Kind.OTHER, "x_new", ('{"type":"x_new","held":1}',))


def test_pictures_files_and_recordings_are_media() -> None:
    parts = [
        {"type": "input_image", "image_url": "data:image/gif;base64,R0lGODlhAgADAAAA" + "A" * 40, "detail": "low"},
        {"type": "input_file", "file_data": "abc"},
        {"type": "input_audio", "input_audio": {"data": "A" * 8, "format": "pcm16"}},
    ]
    image, file, audio = read({"role": "user", "content": [{"type": "input_text", "text": "a"}, *parts]}).media
    assert (image.kind, image.width, image.height, image.detail) == ("image", 2, 3, "low")
    assert file == Media("file", 3)
    assert (audio.kind, audio.seconds) == ("audio", 6 / 48_000)


@pytest.mark.parametrize("raw", [b"1", b"{}", b'"a', b'{"role":1}', b'"instructions":1', b"[]"])
def test_what_is_no_item_is_unreadable(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(raw)


# Requests


def test_a_text_becomes_an_item_where_it_is_not_alone() -> None:
    request = RESPONSES.read(b'{"model":"m", "input":"hi", "instructions": "Be kind."}')
    found = MessageReader(IDENTITY, RESPONSES.message).read(request.raw_messages)
    conversation = Conversation(found, IDENTITY, "t", lambda: Costs([1, 1], 0), None)
    sent = request.with_messages(RESPONSES.render(conversation, View((Note("stub", "Mind.", 1), Verbatim(0, 1)), 1)))
    note, item = json.loads(sent)["input"]
    assert note["content"][0]["text"] == "Mind."
    assert item == {"type": "message", "role": "user", "content": "hi"}
    assert json.loads(sent)["instructions"] == "Be kind."
    [joined] = RESPONSES.render(conversation, View((Note("stub", "Gone.", 1), Verbatim(0, 1)), 1), alternate=True)[1:]
    assert [part["text"] for part in json.loads(joined)["content"]] == ["Gone.", "hi"]


def test_a_prompt_of_unknown_size_is_not_typical() -> None:
    for members in (
        {"truncation": "auto"},
        {"tools": [{"type": "web_search"}]},
        {"text": {"format": {"type": "json_schema"}}},
    ):
        assert not RESPONSES.read(body(input="a", **members)).is_typical
    assert RESPONSES.read(body(input="a", truncation="disabled", tools=[{"type": "custom"}])).is_typical


# Rendering


def test_who_stands_behind_reasoning_that_is_gone_loses_its_id() -> None:
    said = {"type": "message", "id": "msg_1", "role": "developer", "content": "a"}
    conversation = talk(USER, THOUGHT, said, USER)
    left = rendered(conversation, Pruned(0, 2), Carried(2), Verbatim(3, 4))
    assert left == [{"type": "message", "role": "developer", "content": "a"}, USER]
    assert rendered(conversation, Verbatim(0, 4)) == [USER, THOUGHT, said, USER]


@pytest.mark.parametrize(
    ("call", "member", "held"),
    [
        ({"type": "function_call", "arguments": "{}"}, "arguments", '{"_shortened":"a"}'),
        ({"type": "custom_tool_call", "input": "b"}, "input", '{"_shortened":"a"}'),
        ({"type": "tool_search_call", "arguments": {"q": 1}}, "arguments", {"_shortened": "a"}),
        (
            {"type": "apply_patch_call", "operation": {"type": "create_file", "diff": "b"}},
            "operation",
            {"type": "create_file", "diff": '{"_shortened":"a"}'},
        ),
        ({"type": "shell_call", "action": {"commands": ["b"]}}, "action", {"commands": ['{"_shortened":"a"}']}),
    ],
)
def test_arguments_that_were_cut_stand_where_the_family_takes_a_text(
    call: dict[str, Any], member: str, held: Any
) -> None:
    conversation = talk({"call_id": "c", "name": "f", **call}, USER)
    kept = Altered(0, (), 1, "shortened", ((0, '{"_shortened":"a"}'),))
    assert rendered(conversation, kept)[0][member] == held
    same = Altered(0, (), 1, "shortened", ((0, conversation.transcript.messages[0].calls[0].arguments),))
    assert RESPONSES.render(conversation, View((same,), 1))[0] == conversation.transcript.messages[0].raw


def test_an_object_that_takes_no_long_text_is_sealed_where_it_is_long() -> None:
    assert read({"type": "computer_call", "call_id": "c", "action": {"type": "type", "text": "a" * 300}}).sealed


def test_parts_that_are_left_empty_go_but_for_the_last() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    conversation = talk({"type": "function_call_output", "call_id": "c", "output": parts}, USER)
    assert rendered(conversation, Altered(0, ("cut", ""), 1, "trimmed"))[0]["output"] == [
        {"type": "input_text", "text": "cut"}
    ]
    assert len(rendered(conversation, Altered(0, ("", ""), 1, "trimmed"))[0]["output"]) == 1
    denied = talk({"type": "mcp_approval_response", "approval_request_id": "c", "approve": False, "reason": "no"}, USER)
    left = rendered(denied, Altered(0, ("x", "cut"), 1, "trimmed"))[0]
    assert (left["approve"], left["reason"]) == (False, "cut")
