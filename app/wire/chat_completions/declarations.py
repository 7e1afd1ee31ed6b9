"""Declarations: a chat request's tools and response format, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.tokens.declarations import Declarations, ResponseFormat, Schema, Tool
from app.wire.members import RawObject, split_array

MEMBERS = ("tools", "functions", "tool_choice", "function_call", "response_format")


def read_declarations(source: RawObject) -> Declarations:
    """Whatever is of the wrong type is left out."""
    tools = _elements(source, "tools")
    functions = _elements(source, "functions")
    choice = source.value("tool_choice") or source.value("function_call")
    wrapped = [tool["function"] for tool, _ in tools if "function" in tool]
    return Declarations(
        tools=tuple(_tool(_object(function)) for function in (*wrapped, *(function for function, _ in functions))),
        legacy=bool(functions),
        choice=choice if isinstance(choice, str) else "",
        forced=_forced(choice),
        response_format=_response_format(source.value("response_format")),
        others=(*(text for tool, text in tools if "function" not in tool), *_unread(source)),
    )


def _unread(source: RawObject) -> list[str]:
    """What cannot be decoded, a number beyond all bounds for one, as its text: too much rather than nothing."""
    raws = (source.raw(name) for name in MEMBERS if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def _tool(function: Mapping[str, Any]) -> Tool:
    return Tool(_text(function, "name"), _text(function, "description"), _object(function.get("parameters")))


def _forced(choice: object) -> str:
    """The function's name from `tool_choice` or, without its wrapping, from `function_call`."""
    named = _object(choice)
    return _text(_object(named.get("function", named)), "name")


def _response_format(value: object) -> ResponseFormat | None:
    match value:
        case {"type": "json_schema", "json_schema": dict(held)}:
            return ResponseFormat(_text(held, "name"), _text(held, "description"), _object(held.get("schema")))
        case _:
            return None


def _elements(source: RawObject, name: str) -> list[tuple[dict[str, Any], str]]:
    """The objects of an array, each with its text."""
    raw, value = source.raw(name), source.value(name)
    if raw is None or not isinstance(value, list):
        return []
    pairs = zip(value, split_array(raw), strict=True)
    return [(item, text.decode()) for item, text in pairs if isinstance(item, dict)]


def _object(value: object) -> Schema:
    return value if isinstance(value, dict) else {}


def _text(held: Mapping[str, Any], key: str) -> str:
    value = held.get(key)
    return value if isinstance(value, str) else ""
