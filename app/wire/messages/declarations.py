"""Declarations: a request's tools and the schema of its answer, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.tokens.declarations import Declarations, ResponseFormat
from app.wire.declared import elements_of, object_of, text_at, tool_of, unread
from app.wire.members import RawObject

MEMBERS = ("tools", "tool_choice", "mcp_servers", "output_config", "output_format")


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    choice = object_of(source.value("tool_choice"))
    return Declarations(
        tools=tuple(tool_of(tool, "input_schema") for tool, _ in tools if is_own(tool)),
        choice=text_at(choice, "type"),
        forced=text_at(choice, "name"),
        must_call=text_at(choice, "type") not in ("", "auto", "none"),
        response_format=_response_format(source),
        others=(*(text for tool, text in tools if not is_own(tool)), *unread(source, MEMBERS)),
    )


def is_own(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is declared by the client, and none that the provider knows by its type."""
    return tool.get("type") in (None, "custom")


def _response_format(source: RawObject) -> ResponseFormat | None:
    given = object_of(object_of(source.value("output_config")).get("format") or source.value("output_format"))
    if given.get("type") != "json_schema":
        return None
    return ResponseFormat("", "", object_of(given.get("schema")))
