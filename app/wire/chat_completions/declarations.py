"""Declarations: a chat request's tools and response format, read tolerantly: the provider judges what is wrong."""

from __future__ import annotations

from app.core.tokens.declarations import Declarations, ResponseFormat
from app.wire.declared import elements_of, object_of, response_format_of, text_at, tool_of, unread
from app.wire.members import RawObject

MEMBERS = ("tools", "functions", "tool_choice", "function_call", "response_format")


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    functions = elements_of(source, "functions")
    choice = source.value("tool_choice") or source.value("function_call")
    wrapped = [tool["function"] for tool, _ in tools if "function" in tool]
    return Declarations(
        tools=tuple(tool_of(object_of(function)) for function in (*wrapped, *(function for function, _ in functions))),
        legacy=bool(functions),
        choice=choice if isinstance(choice, str) else "",
        forced=_forced(choice),
        response_format=_response_format(source.value("response_format")),
        others=(*(text for tool, text in tools if "function" not in tool), *unread(source, MEMBERS)),
    )


def _forced(choice: object) -> str:
    """The function's name from `tool_choice` or, without its wrapping, from `function_call`."""
    named = object_of(choice)
    return text_at(object_of(named.get("function", named)), "name")


def _response_format(value: object) -> ResponseFormat | None:
    match value:
        case {"type": "json_schema", "json_schema": dict(held)}:
            return response_format_of(held)
        case _:
            return None
