"""The judge of a request: what OpenAI would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.simulator.refusals import (
    check_keys,
    check_kind,
    check_number,
    check_object,
    check_string,
    check_types,
    empty_array,
    long_array,
    missing,
    refusal,
    roles_do_not_alternate,
    too_long,
    unreadable,
    wrong_pattern,
    wrong_type,
)
from lab.simulator.replies import texts_of

Json = Mapping[str, Any]

# fmt: off
MOST_ANSWERS = 128
ACCEPTED = frozenset({
    "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
    "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n", "parallel_tool_calls",
    "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
    "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
    "web_search_options",
})
# fmt: on
"""The arguments of POST /v1/chat/completions in the official SDK (openai 3.52)."""

LONGEST_TEXT = 10_485_760
LONGEST_NAME = 64
_KINDS_OF_TOOLS = ("function", "custom")
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_SPEAKER = re.compile(r"[^\s<|\\/>]+")

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_KEYS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("system", "developer", "user", "function"), frozenset({"role", "content", "name"})),
    # annotations: the SDKs' messages carry it, and the provider takes its own answers back.
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "function_call", "audio", "annotations"}
    ),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("system", "developer", "tool", "function"), ("text",)),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
}
_IN_PARTS = {"image_url": ("url",), "input_audio": ("data", "format")}
"""Required members of what a part holds."""
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")


def check(request: Any, alternating: bool = False, most: int | None = None) -> None:
    """Raise what the provider would say, but for the request's size. `alternating`: to a provider that wants users and
    assistants in turn; `most`: messages."""
    if not isinstance(request, dict):
        raise unreadable()
    if request.get("model") in (None, ""):
        raise refusal("you must provide a model parameter")
    if "messages" not in request:
        raise missing("messages")
    _check_arguments(request)
    messages = request["messages"]
    _check_array("messages", messages, most)
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    _check_order(messages, alternating)
    wanted = request.get("response_format")
    if isinstance(wanted, dict) and wanted.get("type") == "json_object":
        texts = (text for message in messages for text in texts_of(message))
        if not any("json" in text.lower() for text in texts):
            text = "'messages' must contain the word 'json' in some form, to use 'response_format' of type"
            raise refusal(f"{text} 'json_object'.", "messages")


def check_model(request: Json, unsupported: Collection[str]) -> None:
    """Raise what a model that takes not all arguments would say."""
    for name in unsupported:
        if request.get(name) is not None:
            hint = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
            text = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
            raise refusal(text, name, "unsupported_parameter")


# Arguments


def _check_arguments(arguments: Json) -> None:
    """Check names, and the values that Steno may change; null counts as left out."""
    if strangers := [name for name in arguments if name not in ACCEPTED]:
        plural = "s" if len(strangers) > 1 else ""
        raise refusal(f"Unrecognized request argument{plural} supplied: {', '.join(strangers)}")
    given = {name: value for name, value in arguments.items() if value is not None}
    check_types(given, {bool: ("stream",), dict: ("stream_options",)})
    if "max_tokens" in given and "max_completion_tokens" in given:
        text = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        raise refusal(text, "max_tokens", "invalid_parameter_combination")
    for name in ("max_tokens", "max_completion_tokens", "n"):
        if name in given:
            check_number(name, given[name], 1)
    if (answers := given.get("n", 1)) > MOST_ANSWERS:
        text = f"Invalid 'n': integer above maximum value. Expected a value <= {MOST_ANSWERS}, but got {answers}."
        raise refusal(text, "n", "integer_above_max_value")
    if "stream_options" in given and not given.get("stream"):
        text = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise refusal(text, "stream_options")


# Messages


def _check_message(path: str, message: Any) -> None:
    check_object(path, message)
    role = message.get("role")
    check_kind(f"{path}.role", role, ROLES)
    check_keys(path, message, _KEYS[role])
    if message.get("name") is not None:
        _check_name(f"{path}.name", message["name"], _SPEAKER)
    _check_content(path, role, message)
    if role == "assistant":
        _check_spoken(path, message)
    if role == "tool":
        check_string(f"{path}.tool_call_id", message.get("tool_call_id"))
    if role == "function" and not isinstance(message.get("name"), str):
        text = "Missing parameter 'name': messages with role 'function' must have a 'name'."
        raise refusal(text, f"{_dotted(path)}.name")


def _check_content(path: str, role: str, message: Json) -> None:
    inside, content = f"{path}.content", message.get("content")
    if content is None:
        if role == "assistant" and any(message.get(key) for key in _INSTEAD_OF_CONTENT):
            return
        if role == "function" and "content" in message:
            return
        text = "Invalid value for 'content': expected a string, got null."
        raise refusal(text, f"{_dotted(path)}.content") if "content" in message else missing(inside)
    if isinstance(content, str):
        _check_length(inside, content)
    elif not isinstance(content, list):
        raise wrong_type(inside, "one of a string or array of objects", content)
    elif not content:
        raise empty_array(inside)
    else:
        for index, part in enumerate(content):
            _check_part(f"{inside}[{index}]", part, _PARTS[role])


def _dotted(path: str) -> str:
    """Path of a message as the provider's older checks write it."""
    return path.replace("[", ".[")


def _check_part(path: str, part: Any, allowed: tuple[str, ...]) -> None:
    check_object(path, part)
    kind = part.get("type")
    check_kind(f"{path}.type", kind, allowed)
    check_keys(path, part, ("type", kind, "prompt_cache_breakpoint"))
    inside, value = f"{path}.{kind}", part.get(kind)
    if kind in ("text", "refusal"):
        check_string(inside, value)
        _check_length(inside, part[kind])
        return
    if value is None:
        raise missing(inside)
    check_object(inside, value)
    for name in _IN_PARTS.get(kind, ()):
        check_string(f"{inside}.{name}", value.get(name))


def _check_spoken(path: str, message: Json) -> None:
    if message.get("refusal") is not None:
        check_string(f"{path}.refusal", message["refusal"])
    if message.get("function_call") is not None:
        _check_called(f"{path}.function_call", message["function_call"], "arguments")
    if message.get("tool_calls") is None:
        return
    _check_array(f"{path}.tool_calls", message["tool_calls"])
    for index, call in enumerate(message["tool_calls"]):
        own = f"{path}.tool_calls[{index}]"
        check_object(own, call)
        check_string(f"{own}.id", call.get("id"))
        kind = call.get("type")
        check_kind(f"{own}.type", kind, _KINDS_OF_TOOLS)
        if call.get(kind) is None:
            raise missing(f"{own}.{kind}")
        _check_called(f"{own}.{kind}", call[kind], "arguments" if kind == "function" else "input")


def _check_called(path: str, called: Any, argument: str) -> None:
    check_object(path, called)
    _check_name(f"{path}.name", called.get("name"), _NAME)
    check_string(f"{path}.{argument}", called.get(argument))


# Order


def _check_order(messages: Sequence[Json], alternating: bool) -> None:
    """Each tool result answers a call of the assistant message before it, and each call is answered. `alternating`:
    instructions stand only at the start, and no two user messages in a row."""
    calls: list[str] = []
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            _check_tool_result(index, message["tool_call_id"], calls, answered)
            continue
        _check_all_answered(index, calls, answered)
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        answered = set()
    _check_all_answered(len(messages), calls, answered)
    roles = ["system" if message["role"] == "developer" else message["role"] for message in messages]
    for before, after in pairwise(roles if alternating else ()):
        if (before, after) == ("user", "user") or (after == "system" and before != "system"):
            raise roles_do_not_alternate()


def _check_tool_result(index: int, call_id: str, calls: Sequence[str], answered: set[str]) -> None:
    member, text = "tool_call_id", ""
    if not calls:
        member = "role"
        text = "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    elif call_id not in calls:
        text = f"'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
    elif call_id in answered:
        text = f"Duplicate value for 'tool_call_id' of '{call_id}'."
    if text:
        raise refusal(f"Invalid parameter: {text}", f"messages.[{index}].{member}")
    answered.add(call_id)


def _check_all_answered(index: int, calls: Sequence[str], answered: Collection[str]) -> None:
    if unanswered := [call_id for call_id in calls if call_id not in answered]:
        text = "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
        left = f"The following tool_call_ids did not have response messages: {', '.join(unanswered)}"
        raise refusal(f"{text} 'tool_call_id'. {left}", f"messages.[{index}].role")


# Values


def _check_array(path: str, value: Any, most: int | None = None) -> None:
    if not isinstance(value, list):
        raise wrong_type(path, "an array of objects", value)
    if not value:
        raise empty_array(path)
    if most is not None and len(value) > most:
        raise long_array(path, most, len(value))


def _check_name(path: str, name: Any, pattern: re.Pattern[str]) -> None:
    check_string(path, name)
    if not pattern.fullmatch(name):
        raise wrong_pattern(path, f"^{pattern.pattern}$")
    if len(name) > LONGEST_NAME:
        raise too_long(path, LONGEST_NAME, len(name))


def _check_length(path: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise too_long(path, LONGEST_TEXT, len(text))
