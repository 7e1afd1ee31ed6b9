"""Declarations: what a request declares to the model beside its messages, and what the prompt therefore costs more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

Schema = Mapping[str, Any]
"""A JSON schema as received; anything may be missing or of the wrong type."""


class Tool(Struct, frozen=True):
    """A function the model may call."""

    name: str
    description: str
    parameters: Schema


class ResponseFormat(Struct, frozen=True):
    """A `json_schema` the answer has to follow."""

    name: str
    description: str
    schema: Schema


class Declarations(Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    legacy: bool = False
    """Declared as `functions`, the form before tools."""
    choice: str = ""
    """`tool_choice` or `function_call` where it is a word: none, auto, required; empty where it is missing."""
    forced: str = ""
    """The function the model has to call, where the request names one."""
    response_format: ResponseFormat | None = None
    others: tuple[str, ...] = ()
    """Tools that are no functions (custom, web search, ...), as JSON text."""
    must_call: bool = False
    """Whether the answer has to be a call, of whatever function."""
