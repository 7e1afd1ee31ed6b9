"""Declarations, as far as they are read alike in all formats: tolerantly, as the provider judges what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from app.core.tokens.declarations import ResponseFormat, Schema, Tool
from app.wire.members import RawObject, split_array


def elements_of(source: RawObject, name: str) -> list[tuple[dict[str, Any], str]]:
    """The objects of an array, each with its text."""
    raw, value = source.raw(name), source.value(name)
    if raw is None or not isinstance(value, list):
        return []
    pairs = zip(value, split_array(raw), strict=True)
    return [(item, text.decode()) for item, text in pairs if isinstance(item, dict)]


def unread(source: RawObject, members: Iterable[str]) -> list[str]:
    """Members that cannot be decoded, for a number beyond all bounds, as their text: too much rather than nothing."""
    raws = (source.raw(name) for name in members if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def tool_of(held: Mapping[str, Any], parameters: str = "parameters") -> Tool:
    """A tool whose schema is the member `parameters`."""
    return Tool(text_at(held, "name"), text_at(held, "description"), object_of(held.get(parameters)))


def response_format_of(held: Mapping[str, Any]) -> ResponseFormat:
    """The format of an answer that has to follow a schema."""
    return ResponseFormat(text_at(held, "name"), text_at(held, "description"), object_of(held.get("schema")))


def object_of(value: object) -> Schema:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text_at(held: Mapping[str, Any], key: str) -> str:
    """The text of a member, empty if it is none."""
    value = held.get(key)
    return value if isinstance(value, str) else ""
