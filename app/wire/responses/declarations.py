"""Declarations: a request's tools and the format of its answer, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from app.core.tokens.declarations import Declarations
from app.wire.declared import elements_of, object_of, response_format_of, text_at, tool_of, unread
from app.wire.members import RawObject

MEMBERS = ("tools", "tool_choice", "text")


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    choice = source.value("tool_choice")
    held = object_of(object_of(source.value("text")).get("format"))
    return Declarations(
        tools=tuple(tool_of(tool) for tool, _ in tools if tool.get("type") == "function"),
        choice=choice if isinstance(choice, str) else "",
        forced=text_at(object_of(choice), "name"),
        response_format=response_format_of(held) if held.get("type") == "json_schema" else None,
        others=(*(text for tool, text in tools if tool.get("type") != "function"), *unread(source, MEMBERS)),
    )
