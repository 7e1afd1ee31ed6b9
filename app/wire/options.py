"""Options: what a client asks of Steno in a request's body, in any format: the `context` object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.errors import InvalidRequest
from app.wire.members import RawObject, Unreadable
from app.wire.objects import spliced
from app.wire.types import Named

OPTIONS = ("compaction", "instructions", "pin", "preset", "recall", "trigger")
SWITCHES = ("compaction", "recall")
"""Members of the `context` object; those of `SWITCHES` are true or false."""
LONGEST_FOCUS = 4_000
LONGEST_OPTIONS = 131_072
"""Bytes of the `context` object: ten thousand pins and the longest focus have room."""


def read_options(source: RawObject) -> Mapping[str, Any]:
    """A body's `context` object. Raises `InvalidRequest` for a member that would be ignored, such as a mistyped one."""
    known = f"known: {', '.join(OPTIONS)}"
    given = source.raw("context")
    if given is None or given == b"null":
        return {}
    if len(given) > LONGEST_OPTIONS:
        raise InvalidRequest(f"context has {len(given)} bytes; at most {LONGEST_OPTIONS} are read.", "context")
    options = source.value("context")
    if not isinstance(options, dict):
        raise InvalidRequest(f"context must be an object with options; {known}.", "context")
    for name in options:
        if name not in OPTIONS:
            raise InvalidRequest(f"context has no option {name!r:.100}; {known}.", f"context.{name:.100}")
    for name in SWITCHES:
        if not isinstance(options.get(name, True), bool | None):
            raise InvalidRequest(f"context.{name} must be true or false.", f"context.{name}")
    return options


def read_focus(instructions: object, param: str = "context.instructions") -> str:
    """Raises `InvalidRequest`, which names the member as `param`."""
    if instructions is None:
        return ""
    if not isinstance(instructions, str) or len(instructions) > LONGEST_FOCUS:
        raise InvalidRequest(f"{param} must be a text of at most {LONGEST_FOCUS} characters.", param)
    return instructions.strip()


def read_pins(pin: object, messages: int) -> tuple[int, ...]:
    """Indexes into the request's messages, of which there are so many. Raises `InvalidRequest`."""
    indexes = [] if pin is None else pin
    if not isinstance(indexes, list):
        raise InvalidRequest("context.pin must be a list of indexes into messages.", "context.pin")
    for index in indexes:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < messages:
            raise InvalidRequest(
                f"context.pin holds {index!r:.100}; the request has {messages} messages, whose indexes are whole"
                " numbers from 0.",
                "context.pin",
            )
    return tuple(sorted(set(indexes)))


def repinned(source: RawObject, before: Sequence[bytes], after: Sequence[bytes]) -> dict[str, bytes]:
    """`context` as it pins the same messages among others, where it pins any: those that are gone it does not.

    What is in both is the same object in both: two messages may say the same.
    """
    if not (pins := read_options(source).get("pin")):
        return {}
    places = {id(raw): place for place, raw in enumerate(after)}
    left = [places[id(before[pin])] for pin in read_pins(pins, len(before)) if id(before[pin]) in places]
    return {"context": spliced(source.raw("context") or b"{}", {"pin": msgspec.json.encode(left)})}


def read_names(source: RawObject) -> Iterator[Named]:
    """The members that may name the conversation, the first choice first, with their JSON as received."""
    if (raw := source.raw("conversation_id")) is not None:
        yield "conversation_id", raw
    if "metadata" not in source:
        return
    try:
        metadata = RawObject(source.raw("metadata") or b"{}")
    except Unreadable:  # It is the provider's.
        return
    for name in ("conversation_id", "session_id"):
        if (raw := metadata.raw(name)) is not None:
            yield f"metadata.{name}", raw
