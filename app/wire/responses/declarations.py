"""Declarations: a request's tools and the format of its answer, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.tokens.declarations import Declarations, ResponseFormat, Schema, Tool
from app.wire.members import RawObject, split_array

MEMBERS = ("tools", "tool_choice", "text")


def read_declarations(source: RawObject) -> Declarations:
    """Whatever is of the wrong type is left out."""
    tools = _elements(source, "tools")
    choice = source.value("tool_choice")
    functions = [tool for tool, _ in tools if tool.get("type") == "function"]
    return Declarations(
        tools=tuple(
            Tool(_text(tool, "name"), _text(tool, "description"), _object(tool.get("parameters"))) for tool in functions
        ),
        choice=choice if isinstance(choice, str) else "",
        forced=_text(_object(choice), "name"),
        response_format=_response_format(_object(source.value("text")).get("format")),
        others=(*(text for tool, text in tools if tool.get("type") != "function"), *_unread(source)),
    )


def _unread(source: RawObject) -> list[str]:
    """What cannot be decoded, a number beyond all bounds for one, as its text: too much rather than nothing."""
    raws = (source.raw(name) for name in MEMBERS if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def _response_format(value: object) -> ResponseFormat | None:
    held = _object(value)
    if held.get("type") != "json_schema":
        return None
    return ResponseFormat(_text(held, "name"), _text(held, "description"), _object(held.get("schema")))


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
