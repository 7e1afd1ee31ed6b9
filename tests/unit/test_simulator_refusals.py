"""What the simulated provider refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lab.simulator.chat_completions.judge import refusal_of
from lab.simulator.chat_completions.requests import AcceptedRequest, Reader
from lab.simulator.refusals import Refusal, Refused
from lab.simulator.rules import Model, RequestRules

RULES = RequestRules(
    models={"m": Model("m"), "o": Model("o", unsupported=frozenset({"max_tokens"}))},
    window=1_000,
    skew=1.0,
    offset=0,
    strict_roles=False,
    lenient_messages=False,
    max_messages=2_048,
)
USER = {"role": "user", "content": "Hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "found"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
UNSET = object()


def read(payload: Any, rules: RequestRules = RULES) -> AcceptedRequest:
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return Reader(len).read(body, rules, lambda _: None)


def refusal(payload: Any, rules: RequestRules = RULES) -> Refusal:
    with pytest.raises(Refused) as caught:
        read(payload, rules)
    refused = caught.value.refusal
    assert isinstance(refused, Refusal)
    return refused


def request(messages: Any = (USER,), **arguments: Any) -> dict[str, Any]:
    given = {"model": "m", "messages": messages, **arguments}
    return {name: value for name, value in given.items() if value is not UNSET}


def with_message(**message: Any) -> dict[str, Any]:
    return request([USER, message])


def with_call(**changes: Any) -> dict[str, Any]:
    return request([USER, {**CALLING, "tool_calls": [{**CALL, **changes}]}])


def with_name(name: str) -> dict[str, Any]:
    return with_call(function={"name": name, "arguments": "{}"})


BAD_ARGUMENTS: Mapping[str, tuple[Any, str, str | None, str | None]] = {
    "not JSON": (b'{"model": ', "We could not parse the JSON body of your request.", None, None),
    "not UTF-8": (
        b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
        "We could not parse the JSON body of your request.",
        None,
        None,
    ),
    "too deep": (
        b'{"model": "m", "messages": [' + b"[" * 5_000 + b"]" * 5_000 + b"]}",
        "We could not parse the JSON body of your request.",
        None,
        None,
    ),
    "lone surrogate": (
        rb'{"model": "m", "messages": [{"role": "user", "content": "\ud800"}]}',
        "We could not parse the JSON body of your request.",
        None,
        None,
    ),
    "not an object": ([1], "We could not parse the JSON body of your request.", None, None),
    "no model": (request(model=UNSET), "you must provide a model parameter", None, None),
    "model type": (
        request(model=1),
        "Invalid type for 'model': expected a string, but got an integer instead.",
        "model",
        "invalid_type",
    ),
    "model": (request(model="x"), "The model `x` does not exist", None, "model_not_found"),
    "stranger": (request(context={}), "Unrecognized request argument supplied: context", None, None),
    "strangers": (request(context={}, x=1), "Unrecognized request arguments supplied: context, x", None, None),
    "no messages": (
        request(UNSET),
        "Missing required parameter: 'messages'.",
        "messages",
        "missing_required_parameter",
    ),
    "messages type": (
        request("hi"),
        "Invalid type for 'messages': expected an array of objects, but got a string instead.",
        "messages",
        "invalid_type",
    ),
    "empty messages": (
        request([]),
        "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        "messages",
        "empty_array",
    ),
    "many messages": (
        request([USER] * 2_049),
        (
            "Invalid 'messages': array too long. Expected an array with maximum length 2048, "
            "but got an array with length 2049 instead."
        ),
        "messages",
        "array_above_max_length",
    ),
    "empty tools": (
        request(tools=[]),
        "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        "tools",
        "empty_array",
    ),
    "tool without name": (
        request(tools=[{"type": "function", "function": {}}]),
        "Missing required parameter: 'tools[0].function.name'.",
        "tools[0].function.name",
        "missing_required_parameter",
    ),
    "tool type": (
        request(tools=[{"type": "magic"}]),
        "Invalid value: 'magic'. Supported values are: 'function' and 'custom'.",
        "tools[0].type",
        "invalid_value",
    ),
    "choice without tools": (
        request(tool_choice="auto"),
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        "tool_choice",
        None,
    ),
    "parallel without tools": (
        request(parallel_tool_calls=True),
        "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        "parallel_tool_calls",
        None,
    ),
    "choice of no tool": (
        request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "fly"}}),
        "Tool choice 'fly' not found in 'tools' parameter.",
        "tool_choice",
        None,
    ),
    "zero tokens": (
        request(max_tokens=0),
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "max_tokens",
        "integer_below_min_value",
    ),
    "text for tokens": (
        request(max_completion_tokens="9"),
        "Invalid type for 'max_completion_tokens': expected an integer, but got a string instead.",
        "max_completion_tokens",
        "invalid_type",
    ),
    "both limits": (
        request(max_tokens=1, max_completion_tokens=1),
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        "max_tokens",
        "invalid_parameter_combination",
    ),
    "limit unsupported": (
        request(model="o", max_tokens=1),
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "max_tokens",
        "unsupported_parameter",
    ),
    "no choices": (
        request(n=0),
        "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        "n",
        "integer_below_min_value",
    ),
    "stream type": (
        request(stream="yes"),
        "Invalid type for 'stream': expected a boolean, but got a string instead.",
        "stream",
        "invalid_type",
    ),
    "stream options alone": (
        request(stream_options={"include_usage": True}),
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        "stream_options",
        None,
    ),
    "stream option": (
        request(stream=True, stream_options={"x": True}),
        "Unknown parameter: 'stream_options.x'.",
        "stream_options.x",
        "unknown_parameter",
    ),
    "temperature": (
        request(temperature=3),
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        "temperature",
        "decimal_above_max_value",
    ),
    "metadata unstored": (
        request(metadata={"conversation_id": "a"}),
        "The 'metadata' parameter is only allowed when 'store' is enabled.",
        "metadata",
        None,
    ),
    "JSON unmentioned": (
        request(response_format={"type": "json_object"}),
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        "messages",
        None,
    ),
}

BAD_MESSAGES: Mapping[str, tuple[Any, str, str | None, str | None]] = {
    "type": (
        request([USER, "hi"]),
        "Invalid type for 'messages[1]': expected an object, but got a string instead.",
        "messages[1]",
        "invalid_type",
    ),
    "no role": (
        with_message(content="hi"),
        "Missing required parameter: 'messages[1].role'.",
        "messages[1].role",
        "missing_required_parameter",
    ),
    "role": (
        with_message(role="robot", content="hi"),
        (
            "Invalid value: 'robot'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and "
            "'developer'."
        ),
        "messages[1].role",
        "invalid_value",
    ),
    "key": (
        with_message(role="user", content="hi", reasoning_content="x"),
        "Unknown parameter: 'messages[1].reasoning_content'.",
        "messages[1].reasoning_content",
        "unknown_parameter",
    ),
    "no content": (
        with_message(role="user"),
        "Missing required parameter: 'messages[1].content'.",
        "messages[1].content",
        "missing_required_parameter",
    ),
    "null content": (
        with_message(role="system", content=None),
        "Invalid value for 'content': expected a string, got null.",
        "messages.[1].content",
        None,
    ),
    "assistant says nothing": (
        with_message(role="assistant", content=None),
        "Invalid value for 'content': expected a string, got null.",
        "messages.[1].content",
        None,
    ),
    "content type": (
        with_message(role="user", content=7),
        (
            "Invalid type for 'messages[1].content': expected one of a string or array of objects, but got an integer "
            "instead."
        ),
        "messages[1].content",
        "invalid_type",
    ),
    "empty parts": (
        with_message(role="user", content=[]),
        (
            "Invalid 'messages[1].content': empty array. "
            "Expected an array with minimum length 1, but got an empty array instead."
        ),
        "messages[1].content",
        "empty_array",
    ),
    "part of another role": (
        with_message(role="system", content=[{"type": "image_url", "image_url": {"url": "data:"}}]),
        "Invalid value: 'image_url'. Supported values are: 'text'.",
        "messages[1].content[0].type",
        "invalid_value",
    ),
    "part without text": (
        with_message(role="user", content=[{"type": "text"}]),
        "Missing required parameter: 'messages[1].content[0].text'.",
        "messages[1].content[0].text",
        "missing_required_parameter",
    ),
    "key of another provider": (
        with_message(role="user", content=[{"type": "text", "text": "hi", "cache_control": {}}]),
        "Unknown parameter: 'messages[1].content[0].cache_control'.",
        "messages[1].content[0].cache_control",
        "unknown_parameter",
    ),
    "image without url": (
        with_message(role="user", content=[{"type": "image_url", "image_url": {}}]),
        "Missing required parameter: 'messages[1].content[0].image_url.url'.",
        "messages[1].content[0].image_url.url",
        "missing_required_parameter",
    ),
    "speaker": (
        with_message(role="user", content="hi", name="Jo Ann"),
        (
            r"Invalid 'messages[1].name': string does not match pattern. Expected a string that matches the pattern "
            r"'^[^\s<|\\/>]+$'."
        ),
        "messages[1].name",
        "invalid_value",
    ),
    "no calls": (
        with_message(role="assistant", content="hi", tool_calls=[]),
        (
            "Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1, but got an empty "
            "array instead."
        ),
        "messages[1].tool_calls",
        "empty_array",
    ),
    "call without id": (
        with_call(id=None),
        "Missing required parameter: 'messages[1].tool_calls[0].id'.",
        "messages[1].tool_calls[0].id",
        "missing_required_parameter",
    ),
    "call type": (
        with_call(type="magic"),
        "Invalid value: 'magic'. Supported values are: 'function' and 'custom'.",
        "messages[1].tool_calls[0].type",
        "invalid_value",
    ),
    "function name": (
        with_name("look up"),
        (
            "Invalid 'messages[1].tool_calls[0].function.name': string does not match pattern. Expected a string that "
            "matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
        "messages[1].tool_calls[0].function.name",
        "invalid_value",
    ),
    "long function name": (
        with_name("x" * 65),
        (
            "Invalid 'messages[1].tool_calls[0].function.name': string too long. "
            "Expected a string with maximum length 64, but got a string with length 65 instead."
        ),
        "messages[1].tool_calls[0].function.name",
        "string_above_max_length",
    ),
    "parsed arguments": (
        with_call(function={"name": "look_up", "arguments": {}}),
        (
            "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object "
            "instead."
        ),
        "messages[1].tool_calls[0].function.arguments",
        "invalid_type",
    ),
    "result without id": (
        with_message(role="tool", content="found"),
        "Missing required parameter: 'messages[1].tool_call_id'.",
        "messages[1].tool_call_id",
        "missing_required_parameter",
    ),
    "nameless function": (
        with_message(role="function", content="found"),
        "Missing parameter 'name': messages with role 'function' must have a 'name'.",
        "messages.[1].name",
        None,
    ),
}

STRAY = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: "
)
TWO_CALLS = {**CALLING, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
BAD_PAIRS: Mapping[str, tuple[list[Any], str, str]] = {
    "result first": ([RESULT, USER], STRAY, "messages.[0].role"),
    "result after user": ([CALLING, RESULT, USER, RESULT], STRAY, "messages.[3].role"),
    "call unanswered": ([USER, CALLING, USER], UNANSWERED + "c1", "messages.[2].role"),
    "call unanswered at the end": ([USER, CALLING], UNANSWERED + "c1", "messages.[2].role"),
    "one of two unanswered": ([TWO_CALLS, RESULT, USER], UNANSWERED + "c2", "messages.[2].role"),
    "none of two answered": ([TWO_CALLS, USER], UNANSWERED + "c1, c2", "messages.[1].role"),
    "user between": ([CALLING, USER, RESULT], UNANSWERED + "c1", "messages.[1].role"),
    "another id": (
        [CALLING, {**RESULT, "tool_call_id": "c9"}],
        "'tool_call_id' of 'c9' not found in 'tool_calls' of previous message.",
        "messages.[1].tool_call_id",
    ),
    "twice": ([CALLING, RESULT, RESULT], "Duplicate value for 'tool_call_id' of 'c1'", "messages.[2].tool_call_id"),
}


@pytest.mark.parametrize("case", [*BAD_ARGUMENTS.values(), *BAD_MESSAGES.values()], ids=[*BAD_ARGUMENTS, *BAD_MESSAGES])
def test_bad_payload_is_refused_in_the_providers_words(case: tuple[Any, str, str | None, str | None]) -> None:
    payload, message, param, code = case
    refused = refusal(payload)
    assert refused.message.startswith(message)
    assert (refused.param, refused.code) == (param, code)
    assert refused.type == "invalid_request_error"
    assert refused.status == (404 if code == "model_not_found" else 400)


@pytest.mark.parametrize(
    ("payload", "param", "code"),
    [
        (request(stream=True, stream_options=1), "stream_options", "invalid_type"),
        (request(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage", "invalid_type"),
        (request(tools={}), "tools", "invalid_type"),
        (request(tools=[1]), "tools[0]", "invalid_type"),
        (request(tools=[{}]), "tools[0].type", "missing_required_parameter"),
        (request(tools=[{"type": "function"}]), "tools[0].function", "missing_required_parameter"),
        (request(tools=[{"type": "function", "function": 1}]), "tools[0].function", "invalid_type"),
        (request(tools=[TOOL] * 129), "tools", "array_above_max_length"),
        (request(tools=[TOOL], tool_choice="always"), "tool_choice", "invalid_value"),
        (
            request(tools=[TOOL], tool_choice={"type": "function"}),
            "tool_choice.function",
            "missing_required_parameter",
        ),
        (
            request(functions=[{"name": "f", "parameters": []}]),
            "functions[0].parameters",
            "invalid_type",
        ),
        (request(function_call="auto"), "function_call", None),
        (request(metadata=[]), "metadata", "invalid_type"),
        (request(metadata={"a": 1}, store=True), "metadata.a", "invalid_type"),
        (request(response_format="json"), "response_format", "invalid_type"),
        (request(response_format={}), "response_format.type", "missing_required_parameter"),
        (request(response_format={"type": "xml"}), "response_format.type", "invalid_value"),
        (request(response_format={"type": "json_schema"}), "response_format.json_schema", "missing_required_parameter"),
        (with_message(role=1, content="hi"), "messages[1].role", "invalid_type"),
        (with_message(role="user", content="hi", name="x" * 65), "messages[1].name", "string_above_max_length"),
        (with_message(role="user", content=["hi"]), "messages[1].content[0]", "invalid_type"),
        (
            with_message(role="user", content=[{"type": "file"}]),
            "messages[1].content[0].file",
            "missing_required_parameter",
        ),
        (
            with_message(role="user", content=[{"type": "file", "file": 1}]),
            "messages[1].content[0].file",
            "invalid_type",
        ),
        (
            with_message(role="user", content=[{"type": "input_audio", "input_audio": {"data": "x"}}]),
            "messages[1].content[0].input_audio.format",
            "missing_required_parameter",
        ),
        (with_message(role="user", content="x" * 10_485_761), "messages[1].content", "string_above_max_length"),
        (with_message(role="assistant", content="hi", tool_calls=1), "messages[1].tool_calls", "invalid_type"),
        (with_message(role="assistant", content="hi", tool_calls=[1]), "messages[1].tool_calls[0]", "invalid_type"),
        (with_message(role="assistant", content=None, refusal=1), "messages[1].refusal", "invalid_type"),
        (
            with_message(role="assistant", content=None, function_call={"name": "f"}),
            "messages[1].function_call.arguments",
            "missing_required_parameter",
        ),
        (with_call(function=None), "messages[1].tool_calls[0].function", "missing_required_parameter"),
        (with_call(function=1), "messages[1].tool_calls[0].function", "invalid_type"),
    ],
)
def test_malformed_member_is_named(payload: Any, param: str, code: str | None) -> None:
    refused = refusal(payload)
    assert (refused.param, refused.code, refused.status) == (param, code, 400)


@pytest.mark.parametrize("case", BAD_PAIRS.values(), ids=BAD_PAIRS.keys())
def test_tool_pairs_are_checked_both_ways(case: tuple[list[Any], str, str]) -> None:
    messages, message, param = case
    refused = refusal(request(messages))
    assert message in refused.message
    assert (refused.param, refused.code) == (param, None)


@pytest.mark.parametrize(
    "payload",
    [
        request([{"role": "developer", "content": "Be brief."}, USER]),
        request([USER, CALLING, RESULT, {"role": "assistant", "content": "Found."}]),
        request([USER, TWO_CALLS, {**RESULT, "tool_call_id": "c2"}, RESULT]),
        request([USER, {"role": "assistant", "content": None, "refusal": "No."}]),
        request([USER, {"role": "assistant", "content": None, "audio": {"id": "a"}}]),
        request([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:", "detail": "low"}}]}]),
        request(metadata={"conversation_id": "a"}, store=True),
        request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "look_up"}}),
        request([{"role": "user", "content": "Answer in JSON."}], response_format={"type": "json_object"}),
        request(seed=123456789012345678901234567890, temperature=1.0, stop=None, max_tokens=None),
        request(stream=True, stream_options={"include_usage": True}),
    ],
)
def test_good_payload_is_accepted(payload: Any) -> None:
    assert read(payload).model == "m"


def test_same_bad_message_is_refused_at_its_own_place_each_time() -> None:
    """The check of a message is cached without its index."""
    reader = Reader(len)
    bad = {"role": "user"}
    params = []
    for messages in ([bad], [USER, bad]):
        with pytest.raises(Refused) as caught:
            reader.read(msgspec.json.encode(request(messages)), RULES, lambda _: None)
        params.append(caught.value.refusal.param)
    assert params == ["messages[0].content", "messages[1].content"]


def test_lenient_provider_takes_unknown_message_keys() -> None:
    message = {"role": "user", "content": "hi", "reasoning_content": "x"}
    assert read(request([message]), replace(RULES, lenient_messages=True)).messages == [message]


def test_every_model_is_known_where_models_are_any() -> None:
    assert read(request(model="whatever"), replace(RULES, models="any")).model == "whatever"


@pytest.mark.parametrize(
    ("roles", "accepted"),
    [
        ("system developer user assistant user", True),
        ("user assistant tool assistant user", True),
        ("system user user", False),
        ("system user assistant system user", False),
    ],
)
def test_strict_roles_demand_alternation(roles: str, accepted: bool) -> None:
    shapes: dict[str, list[Any]] = {"tool": [RESULT], "assistant": [CALLING]}
    names = roles.split()
    messages = [
        message
        for name, following in zip(names, [*names[1:], ""], strict=True)
        for message in (shapes[name] if name == "tool" or following == "tool" else [{"role": name, "content": "text"}])
    ]
    strict = replace(RULES, strict_roles=True)
    if accepted:
        assert read(request(messages), strict).messages == messages
    else:
        assert "conversation roles must alternate" in refusal(request(messages), strict).message
        assert read(request(messages)).messages == messages


# The judge

REFUSED_BY_THE_JUDGE = {
    "no messages": ({"model": "m"}, "messages"),
    "a stray argument": (request(context={}), None),
    "an unknown member": (with_message(role="user", content="x", x=1), "messages[1].x"),
    "an unanswered call": (request([USER, CALLING]), "messages.[2].role"),
}


@pytest.mark.parametrize(("payload", "param"), REFUSED_BY_THE_JUDGE.values(), ids=REFUSED_BY_THE_JUDGE)
def test_the_judge_refuses_what_the_provider_does(payload: Any, param: str | None) -> None:
    found = refusal_of(payload)
    assert found == refusal(payload)
    assert found.param == param


def test_the_judge_accepts_what_the_provider_does() -> None:
    assert refusal_of(request([USER, CALLING, RESULT, USER, USER], tools=[TOOL])) is None
    assert refusal_of(request([USER, USER]), alternating=True) is not None
