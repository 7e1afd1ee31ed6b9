"""Bodies of requests, as far as they are read alike in all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.core.tokens.rules import LONGEST_MODEL
from app.wire.beginnings import Beginning, Beginnings
from app.wire.members import RawObject, TooManyValues, Unreadable, holds_more_values
from app.wire.types import BodyBounds, TooManyMessages


def source_of(body: bytes, bounds: BodyBounds, beginnings: Beginnings | None) -> tuple[RawObject, Beginning | None]:
    """The body's members, and the beginning that it was found to have. Raises `Unreadable`."""
    known = beginnings.find(body) if beginnings is not None else None
    start, marks = (known.stop, known.marks) if known is not None else (0, 0)
    # Before anything is decoded: each value takes many times its bytes.
    if holds_more_values(body, bounds.values, start, marks):
        raise TooManyValues(f"It holds more than {bounds.values} values. Send fewer, or raise limits.values.")
    return (RawObject(body) if known is None else known.read_rest(body)), known


def declared_in(source: RawObject, members: Iterable[str]) -> bytes:
    """The members, as received: what they cost is remembered by them."""
    return b"".join(b"%b:%b," % (name.encode(), raw) for name in members if (raw := source.raw(name)))


def model_of(source: RawObject) -> str:
    """The model that a body names. Raises `Unreadable` where it names none."""
    model = source.value("model")
    if not isinstance(model, str) or len(model) > LONGEST_MODEL:
        raise Unreadable("The request names no model.")
    return model


def check_number(messages: int, bounds: BodyBounds, named: str = "messages") -> None:
    """Raises `TooManyMessages` for more than the bounds allow."""
    if messages > bounds.messages:
        raise TooManyMessages(f"It has {messages} {named}. Send at most {bounds.messages}, or raise limits.messages.")


def output_in(asked: object) -> int | None:
    """The tokens asked for; None where that is no number of tokens."""
    return asked if isinstance(asked, int) and asked > 0 else None


def is_given(source: RawObject, name: str) -> bool:
    """Whether a member holds anything: it is there, and neither null nor an empty list."""
    return source.raw(name) not in (None, b"null", b"[]")


def has_known_tools(source: RawObject, is_known: Callable[[object], bool]) -> bool:
    """Whether all tools can be read, and cost what is known."""
    tools = source.value("tools")
    if tools is None:
        return source.raw("tools") in (None, b"null")
    return not isinstance(tools, list) or all(map(is_known, tools))


def is_function(tool: object) -> bool:
    """Whether a tool is one that the client runs, in OpenAI's formats; what is no object counts as such."""
    return not isinstance(tool, dict) or tool.get("type") in ("function", "custom")
