"""The members of a request beside its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.simulator.refusals import (
    Refusal,
    Refused,
    check_number,
    missing,
    unknown,
    unreadable,
    wrong_type,
    wrong_value,
)
from lab.simulator.responses.refusals import background_not_stored, no_input, two_states

# fmt: off
ACCEPTED = frozenset({
    "access_programs", "background", "background_options", "context_management", "conversation", "image", "include",
    "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation",
    "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options",
    "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
    "client_metadata",  # Codex sends it
})
# fmt: on
"""The arguments of POST /v1/responses in the official SDK (openai 3.54)."""

_FLAGS = ("background", "parallel_tool_calls", "store", "stream")
_STRINGS = ("instructions", "model", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
_OBJECTS = ("metadata", "prompt", "reasoning", "stream_options", "text")
_ARRAYS = ("context_management", "include", "tools")
_ANY_SIZE = 2**63
_RANGES: Mapping[str, tuple[float, float]] = {
    "max_output_tokens": (16, _ANY_SIZE),
    "max_tool_calls": (1, _ANY_SIZE),
    "top_logprobs": (0, 20),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
}


def check_arguments(request: Any) -> Mapping[str, Any]:
    """The request, whose members have the right types. Null counts as left out."""
    if not isinstance(request, dict):
        raise Refused(unreadable())
    for name in request:
        if name not in ACCEPTED:
            raise Refused(unknown(name))
    given = {name: value for name, value in request.items() if value is not None}
    if "model" not in given:
        raise Refused(missing("model"))
    _check_types(given)
    for name, (least, most) in _RANGES.items():
        if name in given:
            check_number(name, given[name], least, most)
    _check_state(given)
    _check_tools(given)
    for index, entry in enumerate(given.get("context_management", ())):
        if not isinstance(entry, dict) or entry.get("type") != "compaction":
            kind = str(entry.get("type") if isinstance(entry, dict) else entry)
            raise Refused(wrong_value(f"context_management[{index}].type", kind, ("compaction",)))
        if not isinstance(entry.get("compact_threshold", 0), int | None):
            path = f"context_management[{index}].compact_threshold"
            raise Refused(wrong_type(path, "an integer", entry["compact_threshold"]))
    return given


def _check_types(given: Mapping[str, Any]) -> None:
    for names, kind, expected in (
        (_FLAGS, bool, "a boolean"),
        (_STRINGS, str, "a string"),
        (_OBJECTS, dict, "an object"),
        (_ARRAYS, list, "an array"),
    ):
        for name in names:
            if name in given and not isinstance(given[name], kind):
                raise Refused(wrong_type(name, expected, given[name]))
    if not isinstance(given.get("input", ""), str | list):
        raise Refused(wrong_type("input", "one of a string or array of input items", given["input"]))


def _check_state(given: Mapping[str, Any]) -> None:
    if not any(name in given for name in ("input", "previous_response_id", "prompt", "conversation")):
        raise Refused(no_input())
    if "previous_response_id" in given and "conversation" in given:
        raise Refused(two_states())
    if given.get("background") and given.get("store") is False:
        raise Refused(background_not_stored())
    if given.get("truncation", "disabled") not in ("auto", "disabled"):
        raise Refused(wrong_value("truncation", str(given["truncation"]), ("auto", "disabled")))


def _check_tools(given: Mapping[str, Any]) -> None:
    for index, tool in enumerate(given.get("tools", ())):
        path = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise Refused(wrong_type(path, "an object", tool))
        if tool.get("type") is None:
            raise Refused(missing(f"{path}.type"))
        if tool["type"] in ("function", "custom") and not tool.get("name"):
            raise Refused(missing(f"{path}.name"))
    choice = given.get("tool_choice")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise Refused(wrong_value("tool_choice", choice, ("none", "auto", "required")))
    if isinstance(choice, dict) and choice.get("type") == "function":
        names = [tool.get("name") for tool in given.get("tools", ())]
        if choice.get("name") not in names:
            text = f"Tool choice '{choice.get('name')}' not found in 'tools' parameter."
            raise Refused(Refusal(text, "tool_choice"))
