"""What the simulated provider refuses, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lab.simulator.chat_completions.format import ChatCompletions
from lab.simulator.chat_completions.judge import refusal_of
from lab.simulator.format import Accepted
from lab.simulator.log import Record
from lab.simulator.refusals import Refusal, Refused
from lab.simulator.rules import Model, Rules

MODELS = {"m": Model("m"), "o": Model("o", unsupported=frozenset({"max_tokens"}))}
RULES = Rules(1_000, MODELS, max_messages=2_048)
USER = {"role": "user", "content": "Hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "found"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
UNSET = object()


def read(payload: Any, rules: Rules = RULES) -> Accepted:
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    record = Record(1, 0.0, "POST", ChatCompletions.path, (), body, "chat")
    return ChatCompletions(len).read(record, rules, lambda _: None)


def refusal(payload: Any, rules: Rules = RULES) -> Refusal:
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


AT, CALLED = "messages[1]", "messages[1].tool_calls[0]"
LACKS, TYPE, VALUE, EMPTY = "missing_required_parameter", "invalid_type", "invalid_value", "empty_array"
BAD: Mapping[str, tuple[Any, str | None, str | None]] = {
    "not JSON": (b'{"model": ', None, None),
    "too deep": (b'{"model": "m", "messages": [' + b"[" * 5_000 + b"]" * 5_000 + b"]}", None, None),
    "not an object": ([1], None, None),
    "no model": (request(model=UNSET), None, None),
    "model": (request(model="x"), None, "model_not_found"),
    "stranger": (request(context={}), None, None),
    "no messages": (request(UNSET), "messages", LACKS),
    "empty messages": (request([]), "messages", EMPTY),
    "many messages": (request([USER] * 2_049), "messages", "array_above_max_length"),
    "empty tools": (request(tools=[]), "tools", EMPTY),
    "many tools": (request(tools=[TOOL] * 129), "tools", "array_above_max_length"),
    "tool without name": (
        request(tools=[{"type": "function", "function": {}}]),
        "tools[0].function.name",
        LACKS,
    ),
    "choice without tools": (request(tool_choice="auto"), "tool_choice", None),
    "choice of no tool": (
        request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "fly"}}),
        "tool_choice",
        None,
    ),
    "zero tokens": (request(max_tokens=0), "max_tokens", "integer_below_min_value"),
    "both limits": (
        request(max_tokens=1, max_completion_tokens=1),
        "max_tokens",
        "invalid_parameter_combination",
    ),
    "limit unsupported": (request(model="o", max_tokens=1), "max_tokens", "unsupported_parameter"),
    "stream options alone": (request(stream_options={"include_usage": True}), "stream_options", None),
    "metadata unstored": (request(metadata={"conversation_id": "a"}), "metadata", None),
    "JSON unmentioned": (request(response_format={"type": "json_object"}), "messages", None),
    "no role": (with_message(content="hi"), f"{AT}.role", LACKS),
    "role": (with_message(role="robot", content="hi"), f"{AT}.role", VALUE),
    "key": (
        with_message(role="user", content="hi", reasoning_content="x"),
        f"{AT}.reasoning_content",
        "unknown_parameter",
    ),
    "no content": (with_message(role="user"), f"{AT}.content", LACKS),
    "null content": (with_message(role="system", content=None), "messages.[1].content", None),
    "assistant says nothing": (with_message(role="assistant", content=None), "messages.[1].content", None),
    "long content": (
        with_message(role="user", content="x" * 10_485_761),
        f"{AT}.content",
        "string_above_max_length",
    ),
    "part of another role": (
        with_message(role="system", content=[{"type": "image_url", "image_url": {"url": "data:"}}]),
        f"{AT}.content[0].type",
        VALUE,
    ),
    "key of another provider": (
        with_message(role="user", content=[{"type": "text", "text": "hi", "cache_control": {}}]),
        f"{AT}.content[0].cache_control",
        "unknown_parameter",
    ),
    "speaker": (with_message(role="user", content="hi", name="Jo Ann"), f"{AT}.name", VALUE),
    "no calls": (with_message(role="assistant", content="hi", tool_calls=[]), f"{AT}.tool_calls", EMPTY),
    "function name": (with_name("look up"), f"{CALLED}.function.name", VALUE),
    "parsed arguments": (
        with_call(function={"name": "look_up", "arguments": {}}),
        f"{CALLED}.function.arguments",
        TYPE,
    ),
    "result without id": (with_message(role="tool", content="found"), f"{AT}.tool_call_id", LACKS),
    "nameless function": (with_message(role="function", content="found"), "messages.[1].name", None),
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


@pytest.mark.parametrize(("payload", "param", "code"), BAD.values(), ids=BAD)
def test_bad_payload_is_refused(payload: Any, param: str | None, code: str | None) -> None:
    refused = refusal(payload)
    assert (refused.param, refused.code, refused.type) == (param, code, "invalid_request_error")
    assert refused.status == (404 if code == "model_not_found" else 400)


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


def test_lenient_provider_takes_unknown_message_keys() -> None:
    message = {"role": "user", "content": "hi", "reasoning_content": "x"}
    assert read(request([message]), replace(RULES, lenient_messages=True)).conversation == [message]


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
        assert read(request(messages), strict).conversation == messages
    else:
        assert "conversation roles must alternate" in refusal(request(messages), strict).message
        assert read(request(messages)).conversation == messages
        assert refusal_of(request(messages), alternating=True) == refusal(request(messages), strict)
