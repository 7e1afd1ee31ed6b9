"""Messages: what OpenAI accepts in one, and which may follow which."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.simulator.chat_completions.refusals import (
    no_content,
    repeated_tool_result,
    stray_tool_result,
    unanswered_calls,
    wrong_tool_result,
)
from lab.simulator.refusals import (
    ANY_INDEX,
    Refusal,
    Refused,
    empty_array,
    missing,
    roles_do_not_alternate,
    too_long,
    unknown,
    wrong_pattern,
    wrong_type,
    wrong_value,
)

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
INSTRUCTION_ROLES = frozenset({"system", "developer"})
LONGEST_TEXT = 10_485_760
LONGEST_NAME = 64
NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")

_PATH = f"messages[{ANY_INDEX}]"
_OLD_PATH = f"messages.[{ANY_INDEX}]"
_SPEAKER_PATTERN = re.compile(r"[^\s<|\\/>]+")
_KEYS: Mapping[str, frozenset[str]] = {
    "system": frozenset({"role", "content", "name"}),
    "developer": frozenset({"role", "content", "name"}),
    "user": frozenset({"role", "content", "name"}),
    # annotations: the SDKs' messages carry it, and the provider takes its own answers back.
    "assistant": frozenset(
        {"role", "content", "name", "refusal", "tool_calls", "function_call", "audio", "annotations"}
    ),
    "tool": frozenset({"role", "content", "name", "tool_call_id"}),
    "function": frozenset({"role", "content", "name"}),
}
_PARTS: Mapping[str, tuple[str, ...]] = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
    "function": ("text",),
}
_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")


def check_message(message: Any, lenient: bool) -> None:
    """Raise what the provider would say to this message, wherever it stands. `lenient` lets unknown keys pass."""
    check_object(_PATH, message)
    role = _role(message)
    if not lenient:
        _check_keys(_PATH, message, _KEYS[role])
    _check_speaker(message)
    _check_content(role, message, lenient)
    if role == "assistant":
        _check_spoken(message)
    if role == "tool":
        _check_string(f"{_PATH}.tool_call_id", message.get("tool_call_id"))
    if role == "function" and not isinstance(message.get("name"), str):
        text = "Missing parameter 'name': messages with role 'function' must have a 'name'."
        raise Refused(Refusal(text, f"{_OLD_PATH}.name"))


def check_tool_pairs(messages: Sequence[Mapping[str, Any]]) -> None:
    """Each tool result answers a call of the assistant message before it, and each call is answered."""
    open_calls: list[str] = []
    answered: set[str] = set()
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            _check_tool_result(index, message["tool_call_id"], open_calls, answered)
            continue
        _check_all_answered(index, open_calls, answered)
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        answered = set()
    _check_all_answered(len(messages), open_calls, answered)


def check_alternation(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse for providers that demand it: instructions stand only at the start, no two user messages in a row."""
    roles = ["system" if message["role"] in INSTRUCTION_ROLES else message["role"] for message in messages]
    for before, after in pairwise(roles):
        if (before, after) == ("user", "user") or (after == "system" and before != "system"):
            raise Refused(roles_do_not_alternate())


def _role(message: Mapping[str, Any]) -> str:
    if "role" not in message:
        raise Refused(missing(f"{_PATH}.role"))
    role = message["role"]
    if not isinstance(role, str):
        raise Refused(wrong_type(f"{_PATH}.role", "a string", role))
    if role not in ROLES:
        raise Refused(wrong_value(f"{_PATH}.role", role, ROLES))
    return role


def _check_keys(path: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    for key in value:
        if key not in known:
            raise Refused(unknown(f"{path}.{key}"))


def _check_string(path: str, value: Any) -> None:
    if value is None:
        raise Refused(missing(path))
    if not isinstance(value, str):
        raise Refused(wrong_type(path, "a string", value))


def _check_speaker(message: Mapping[str, Any]) -> None:
    name = message.get("name")
    if name is None:
        return
    path = f"{_PATH}.name"
    _check_string(path, name)
    if not _SPEAKER_PATTERN.fullmatch(name):
        raise Refused(wrong_pattern(path, r"^[^\s<|\\/>]+$"))
    if len(name) > LONGEST_NAME:
        raise Refused(too_long(path, LONGEST_NAME, len(name)))


def _check_content(role: str, message: Mapping[str, Any], lenient: bool) -> None:
    path = f"{_PATH}.content"
    content = message.get("content")
    if content is None:
        if role == "assistant" and any(message.get(key) for key in _INSTEAD_OF_CONTENT):
            return
        if role == "function" and "content" in message:
            return
        raise Refused(no_content(_OLD_PATH) if "content" in message else missing(path))
    if isinstance(content, str):
        _check_length(path, content)
    elif not isinstance(content, list):
        raise Refused(wrong_type(path, "one of a string or array of objects", content))
    elif not content:
        raise Refused(empty_array(path))
    else:
        for index, part in enumerate(content):
            _check_part(f"{path}[{index}]", part, _PARTS[role], lenient)


def _check_part(path: str, part: Any, allowed: tuple[str, ...], lenient: bool) -> None:
    check_object(path, part)
    kind = part.get("type")
    _check_string(f"{path}.type", kind)
    if kind not in allowed:
        raise Refused(wrong_value(f"{path}.type", str(kind), allowed))
    if not lenient:
        _check_keys(path, part, ("type", kind, "prompt_cache_breakpoint"))
    value = part.get(kind)
    inside = f"{path}.{kind}"
    if kind in ("text", "refusal"):
        _check_string(inside, value)
        _check_length(inside, part[kind])
    elif value is None:
        raise Refused(missing(inside))
    else:
        check_object(inside, value)
    if kind == "image_url":
        _check_string(f"{inside}.url", value.get("url"))
    elif kind == "input_audio":
        _check_string(f"{inside}.data", value.get("data"))
        _check_string(f"{inside}.format", value.get("format"))


def _check_length(path: str, text: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise Refused(too_long(path, LONGEST_TEXT, len(text)))


def _check_spoken(message: Mapping[str, Any]) -> None:
    """Check members that only an assistant message holds."""
    if message.get("refusal") is not None:
        _check_string(f"{_PATH}.refusal", message["refusal"])
    if message.get("function_call") is not None:
        _check_called(f"{_PATH}.function_call", message["function_call"], "arguments")
    calls = message.get("tool_calls")
    path = f"{_PATH}.tool_calls"
    if calls is None:
        return
    check_array(path, calls)
    for index, call in enumerate(calls):
        _check_call(f"{path}[{index}]", call)


def _check_call(path: str, call: Any) -> None:
    check_object(path, call)
    _check_string(f"{path}.id", call.get("id"))
    kind = call.get("type")
    _check_string(f"{path}.type", kind)
    if kind not in ("function", "custom"):
        raise Refused(wrong_value(f"{path}.type", str(kind), ("function", "custom")))
    called = call.get(kind)
    if called is None:
        raise Refused(missing(f"{path}.{kind}"))
    _check_called(f"{path}.{kind}", called, "arguments" if kind == "function" else "input")


def _check_called(path: str, called: Any, argument: str) -> None:
    check_object(path, called)
    check_function_name(f"{path}.name", called.get("name"))
    _check_string(f"{path}.{argument}", called.get(argument))


def check_object(path: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise Refused(wrong_type(path, "an object", value))


def check_array(path: str, value: Any) -> None:
    if not isinstance(value, list):
        raise Refused(wrong_type(path, "an array of objects", value))
    if not value:
        raise Refused(empty_array(path))


def check_function_name(path: str, name: Any) -> None:
    _check_string(path, name)
    if not NAME_PATTERN.fullmatch(name):
        raise Refused(wrong_pattern(path, "^[a-zA-Z0-9_-]+$"))
    if len(name) > LONGEST_NAME:
        raise Refused(too_long(path, LONGEST_NAME, len(name)))


def _check_tool_result(index: int, call_id: str, open_calls: Sequence[str], answered: set[str]) -> None:
    if not open_calls:
        raise Refused(stray_tool_result(index))
    if call_id not in open_calls:
        raise Refused(wrong_tool_result(index, call_id))
    if call_id in answered:
        raise Refused(repeated_tool_result(index, call_id))
    answered.add(call_id)


def _check_all_answered(index: int, open_calls: Sequence[str], answered: Collection[str]) -> None:
    unanswered = [call_id for call_id in open_calls if call_id not in answered]
    if unanswered:
        raise Refused(unanswered_calls(index, unanswered))
