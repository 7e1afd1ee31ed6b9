"""Request arguments: what OpenAI accepts beside the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab.simulator.chat_completions.messages import check_array, check_function_name, check_object
from lab.simulator.chat_completions.refusals import two_token_limits, unrecognized, unsupported
from lab.simulator.refusals import (
    Refusal,
    Refused,
    check_number,
    long_array,
    missing,
    only_when,
    only_with,
    unknown,
    wrong_type,
    wrong_value,
)

# fmt: off
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

MOST_TOOLS = 128
MOST_CHOICES = 128
_ANY_SIZE = 2**63
_RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (1, _ANY_SIZE),
    "max_completion_tokens": (1, _ANY_SIZE),
    "n": (1, MOST_CHOICES),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}
_FLAGS = ("stream", "store", "parallel_tool_calls", "logprobs")
_STREAM_OPTIONS = ("include_usage", "include_obfuscation")
_FORMATS = ("json_object", "json_schema", "text")
_TOOL_CHOICES = ("none", "auto", "required")


def check_arguments(arguments: Mapping[str, Any], unsupported_here: frozenset[str] = frozenset()) -> None:
    """Raise what the provider would say to these arguments. Null counts as left out."""
    strangers = [name for name in arguments if name not in ACCEPTED]
    if strangers:
        raise Refused(unrecognized(strangers))
    given = {name: value for name, value in arguments.items() if value is not None}
    for name in unsupported_here:
        if name in given:
            raise Refused(unsupported(name))
    _check_flags(given)
    _check_numbers(given)
    _check_stream_options(given)
    _check_tools(given)
    _check_tool_choice(given)
    _check_metadata(given)
    _check_response_format(given)


def _check_flags(given: Mapping[str, Any]) -> None:
    for name in _FLAGS:
        if not isinstance(given.get(name, False), bool):
            raise Refused(wrong_type(name, "a boolean", given[name]))


def _check_numbers(given: Mapping[str, Any]) -> None:
    if "max_tokens" in given and "max_completion_tokens" in given:
        raise Refused(two_token_limits())
    for name, (least, most) in _RANGES.items():
        if name in given:
            check_number(name, given[name], least, most)


def _check_stream_options(given: Mapping[str, Any]) -> None:
    options = given.get("stream_options")
    if options is None:
        return
    if not given.get("stream"):
        raise Refused(only_when("stream_options", "stream"))
    check_object("stream_options", options)
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            raise Refused(unknown(f"stream_options.{name}"))
        if not isinstance(value, bool):
            raise Refused(wrong_type(f"stream_options.{name}", "a boolean", value))


def _check_tools(given: Mapping[str, Any]) -> None:
    for plural, check in (("tools", _check_tool), ("functions", _check_function)):
        values = given.get(plural)
        if values is None:
            continue
        check_array(plural, values)
        if len(values) > MOST_TOOLS:
            raise Refused(long_array(plural, MOST_TOOLS, len(values)))
        for index, value in enumerate(values):
            check(f"{plural}[{index}]", value)


def _check_tool(path: str, tool: Any) -> None:
    check_object(path, tool)
    kind = tool.get("type")
    if kind is None:
        raise Refused(missing(f"{path}.type"))
    if kind not in ("function", "custom"):
        raise Refused(wrong_value(f"{path}.type", str(kind), ("function", "custom")))
    if kind not in tool:
        raise Refused(missing(f"{path}.{kind}"))
    _check_function(f"{path}.{kind}", tool[kind])


def _check_function(path: str, function: Any) -> None:
    check_object(path, function)
    check_function_name(f"{path}.name", function.get("name"))
    parameters = function.get("parameters")
    if parameters is not None:
        check_object(f"{path}.parameters", parameters)


def _check_tool_choice(given: Mapping[str, Any]) -> None:
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in given and "tools" not in given:
            raise Refused(only_with(name, "tools"))
    if "function_call" in given and "functions" not in given:
        raise Refused(only_with("function_call", "functions"))
    choice = given.get("tool_choice")
    if isinstance(choice, str) and choice not in _TOOL_CHOICES:
        raise Refused(wrong_value("tool_choice", choice, _TOOL_CHOICES))
    if isinstance(choice, dict) and choice.get("type") == "function":
        _check_chosen_function(choice.get("function"), given["tools"])


def _check_chosen_function(chosen: Any, tools: list[Any]) -> None:
    name = chosen.get("name") if isinstance(chosen, dict) else None
    if name is None:
        raise Refused(missing("tool_choice.function"))
    if name not in {tool["function"]["name"] for tool in tools if tool["type"] == "function"}:
        raise Refused(Refusal(f"Tool choice '{name}' not found in 'tools' parameter.", "tool_choice"))


def _check_metadata(given: Mapping[str, Any]) -> None:
    metadata = given.get("metadata")
    if metadata is None:
        return
    check_object("metadata", metadata)
    if not given.get("store"):
        raise Refused(only_when("metadata", "store"))
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise Refused(wrong_type(f"metadata.{name}", "a string", value))


def _check_response_format(given: Mapping[str, Any]) -> None:
    wanted = given.get("response_format")
    if wanted is None:
        return
    check_object("response_format", wanted)
    kind = wanted.get("type")
    if kind is None:
        raise Refused(missing("response_format.type"))
    if kind not in _FORMATS:
        raise Refused(wrong_value("response_format.type", str(kind), _FORMATS))
    if kind == "json_schema" and not isinstance(wanted.get("json_schema"), dict):
        raise Refused(missing("response_format.json_schema"))
