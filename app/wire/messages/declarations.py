"""Declarations: a request's tools and the schema of its answer, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.tokens.declarations import Declarations, ResponseFormat, Schema, Tool
from app.wire.members import RawObject, split_array

MEMBERS = ("tools", "tool_choice", "mcp_servers", "output_config", "output_format")


def read_declarations(source: RawObject) -> Declarations:
    """Whatever is of the wrong type is left out."""
    tools = _tools(source)
    choice = _object(source.value("tool_choice"))
    return Declarations(
        tools=tuple(_tool(tool) for tool, _ in tools if is_own(tool)),
        choice=_text(choice, "type"),
        forced=_text(choice, "name"),
        must_call=_text(choice, "type") not in ("", "auto", "none"),
        response_format=_response_format(source),
        others=(*(text.decode() for tool, text in tools if not is_own(tool)), *_unread(source)),
    )


def _tools(source: RawObject) -> list[tuple[dict[str, Any], bytes]]:
    """The objects of the array, each with its text."""
    raw, value = source.raw("tools"), source.value("tools")
    if raw is None or not isinstance(value, list):
        return []
    return [(tool, text) for tool, text in zip(value, split_array(raw), strict=True) if isinstance(tool, dict)]


def is_own(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is declared by the client, and none that the provider knows by its type."""
    return tool.get("type") in (None, "custom")


def _unread(source: RawObject) -> list[str]:
    """What cannot be decoded, a number beyond all bounds for one, as its text: too much rather than nothing."""
    raws = (source.raw(name) for name in MEMBERS if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def _tool(tool: Mapping[str, Any]) -> Tool:
    return Tool(_text(tool, "name"), _text(tool, "description"), _object(tool.get("input_schema")))


def _response_format(source: RawObject) -> ResponseFormat | None:
    given = _object(_object(source.value("output_config")).get("format") or source.value("output_format"))
    if given.get("type") != "json_schema":
        return None
    return ResponseFormat("", "", _object(given.get("schema")))


def _object(value: object) -> Schema:
    return value if isinstance(value, dict) else {}


def _text(held: Mapping[str, Any], key: str) -> str:
    value = held.get(key)
    return value if isinstance(value, str) else ""
