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


Said = tuple[str, str | None, str | None]
"""Message, parameter and code of a refusal."""
NOT_JSON: Said = ("We could not parse the JSON body of your request.", None, None)


def missing(param: str) -> Said:
    return f"Missing required parameter: '{param}'.", param, "missing_required_parameter"


def wrong_type(param: str, expected: str, given: str) -> Said:
    return f"Invalid type for '{param}': expected {expected}, but got {given} instead.", param, "invalid_type"


def wrong_value(param: str, given: str, supported: str) -> Said:
    return f"Invalid value: '{given}'. Supported values are: {supported}.", param, "invalid_value"


def unknown(param: str) -> Said:
    return f"Unknown parameter: '{param}'.", param, "unknown_parameter"


def bad(param: str, problem: str, expected: str, code: str) -> Said:
    return f"Invalid '{param}': {problem}. Expected {expected}", param, code


def empty(param: str) -> Said:
    return bad(param, "empty array", "an array with minimum length 1, but got an empty array instead.", "empty_array")


def too_small(param: str) -> Said:
    expected = "a value >= 1, but got 0 instead."
    return bad(param, "integer below minimum value", expected, "integer_below_min_value")


def pattern(param: str, matched: str) -> Said:
    expected = f"a string that matches the pattern '{matched}'."
    return bad(param, "string does not match pattern", expected, "invalid_value")


def only_with(param: str, condition: str) -> Said:
    return f"The '{param}' parameter is only allowed when {condition}.", param, None


NO_TEXT: Said = ("Invalid value for 'content': expected a string, got null.", "messages.[1].content", None)
AT, CALLED = "messages[1]", "messages[1].tool_calls[0]"
WITHOUT_TOOLS = "Invalid value for '{0}': '{0}' is only allowed when 'tools' are specified."
BAD: Mapping[str, tuple[Any, Said]] = {
    "not JSON": (b'{"model": ', NOT_JSON),
    "too deep": (b'{"model": "m", "messages": [' + b"[" * 5_000 + b"]" * 5_000 + b"]}", NOT_JSON),
    "not an object": ([1], NOT_JSON),
    "no model": (request(model=UNSET), ("you must provide a model parameter", None, None)),
    "model": (request(model="x"), ("The model `x` does not exist", None, "model_not_found")),
    "stranger": (request(context={}), ("Unrecognized request argument supplied: context", None, None)),
    "no messages": (request(UNSET), missing("messages")),
    "empty messages": (request([]), empty("messages")),
    "many messages": (
        request([USER] * 2_049),
        bad(
            "messages",
            "array too long",
            "an array with maximum length 2048, but got an array with length 2049 instead.",
            "array_above_max_length",
        ),
    ),
    "empty tools": (request(tools=[]), empty("tools")),
    "tool without name": (request(tools=[{"type": "function", "function": {}}]), missing("tools[0].function.name")),
    "choice without tools": (request(tool_choice="auto"), (WITHOUT_TOOLS.format("tool_choice"), "tool_choice", None)),
    "choice of no tool": (
        request(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "fly"}}),
        ("Tool choice 'fly' not found in 'tools' parameter.", "tool_choice", None),
    ),
    "zero tokens": (request(max_tokens=0), too_small("max_tokens")),
    "both limits": (
        request(max_tokens=1, max_completion_tokens=1),
        (
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            "max_tokens",
            "invalid_parameter_combination",
        ),
    ),
    "stream options alone": (
        request(stream_options={"include_usage": True}),
        only_with("stream_options", "'stream' is enabled"),
    ),
    "metadata unstored": (request(metadata={"conversation_id": "a"}), only_with("metadata", "'store' is enabled")),
    "JSON unmentioned": (
        request(response_format={"type": "json_object"}),
        (
            "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
            "messages",
            None,
        ),
    ),
    "no role": (with_message(content="hi"), missing(f"{AT}.role")),
    "role": (
        with_message(role="robot", content="hi"),
        wrong_value(f"{AT}.role", "robot", "'system', 'assistant', 'user', 'function', 'tool', and 'developer'"),
    ),
    "key": (with_message(role="user", content="hi", reasoning_content="x"), unknown(f"{AT}.reasoning_content")),
    "no content": (with_message(role="user"), missing(f"{AT}.content")),
    "null content": (with_message(role="system", content=None), NO_TEXT),
    "assistant says nothing": (with_message(role="assistant", content=None), NO_TEXT),
    "key of another provider": (
        with_message(role="user", content=[{"type": "text", "text": "hi", "cache_control": {}}]),
        unknown(f"{AT}.content[0].cache_control"),
    ),
    "speaker": (with_message(role="user", content="hi", name="Jo Ann"), pattern(f"{AT}.name", r"^[^\s<|\\/>]+$")),
    "no calls": (with_message(role="assistant", content="hi", tool_calls=[]), empty(f"{AT}.tool_calls")),
    "function name": (with_name("look up"), pattern(f"{CALLED}.function.name", "^[a-zA-Z0-9_-]+$")),
    "parsed arguments": (
        with_call(function={"name": "look_up", "arguments": {}}),
        wrong_type(f"{CALLED}.function.arguments", "a string", "an object"),
    ),
    "result without id": (with_message(role="tool", content="found"), missing(f"{AT}.tool_call_id")),
    "nameless function": (
        with_message(role="function", content="found"),
        ("Missing parameter 'name': messages with role 'function' must have a 'name'.", "messages.[1].name", None),
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


@pytest.mark.parametrize(("payload", "said"), BAD.values(), ids=BAD)
def test_bad_payload_is_refused_in_the_providers_words(payload: Any, said: Said) -> None:
    refused = refusal(payload)
    message, *rest = said
    assert refused.message.startswith(message)
    assert [refused.param, refused.code] == rest
    assert refused.type == "invalid_request_error"
    assert refused.status == (404 if refused.code == "model_not_found" else 400)


LACKS, TYPE, LONG = "missing_required_parameter", "invalid_type", "string_above_max_length"
FUNCTION, FILE = {"type": "function"}, f"{AT}.content[0].file"


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
