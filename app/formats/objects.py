"""Objects of a history, in any format: decoded, changed in single members, and reduced to what they mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from app.conversation.authored_text import result_confidence
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind
from app.conversation.tool_results import ResultConfidence
from app.formats.members import RawObject, Unreadable, check_keys, holds_more_values
from app.formats.surrogates import decoded

_decode = msgspec.json.Decoder().decode
written_alike = msgspec.json.Encoder(order="deterministic").encode
"""Equal values as equal bytes."""
NOTHING: tuple[object, ...] = (None, "", [], {})
"""Values that say nothing."""
MOST_ARGUMENT_VALUES = 200_000
"""Most values of a call's arguments; what holds more counts as text."""
LONGEST_MEANT = 1 << 20
"""Characters of arguments; longer ones count as text, too: everybody waits while so much is read or written at once."""


def decoded_object(raw: bytes, what: str = "A message") -> dict[str, Any]:
    """Raises `Unreadable`, and so for a key that is too long."""
    try:
        value = decoded(raw, _decode)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is no object.")
    check_keys(raw, value)
    return value


def spliced(raw: bytes, replaced: Mapping[str, bytes], removed: Collection[str] = ()) -> bytes:
    """An object with some members replaced or removed."""
    try:
        return RawObject(raw).spliced(replaced, removed)
    except Unreadable:  # A key that stands twice, for one: as it was read, with the last of them.
        left = {name: value for name, value in decoded_object(raw).items() if name not in removed}
        return msgspec.json.encode(left | {name: msgspec.Raw(value) for name, value in replaced.items()})


def meant_by(arguments: str) -> msgspec.Raw | str:
    """JSON inside a string, as its values; written again at once: one call's values are held at a time."""
    if len(arguments) > LONGEST_MEANT:
        return arguments
    try:
        raw = arguments.encode()
        if holds_more_values(raw, MOST_ARGUMENT_VALUES):
            return arguments
        return msgspec.Raw(written_alike(_decode(raw)))
    except (ValueError, RecursionError):
        return arguments


def without(text: str, ignore: Sequence[re.Pattern[str]]) -> str:
    """A text less what the patterns find in it."""
    for pattern in ignore:
        text = pattern.sub("", text)
    return text


def meaning_of(members: Mapping[str, Any]) -> bytes:
    """The bytes that stand for an object: null, empty and missing are the same."""
    return written_alike({name: said for name, said in members.items() if said not in NOTHING})


def of_user(kind: Kind, texts: Sequence[str], *, plain: bool = True) -> tuple[Kind, ResultConfidence]:
    """The kind of a message, and how it reads, where a user's may be his program's. `plain`: it holds texts only."""
    if kind is not Kind.USER or not plain:
        return kind, ResultConfidence.NONE
    return (Kind.CLIENT, ResultConfidence.NONE) if is_client_text(texts) else (kind, result_confidence(texts))


def objects_in(value: object) -> list[dict[str, Any]]:
    """The objects of a list; none where it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def json_text(value: object) -> str:
    """A value as JSON."""
    return msgspec.json.encode(value).decode()


def as_text(value: object) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def object_of(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text_at(held: Mapping[str, Any], key: str) -> str:
    """The text of a member, empty if it is none."""
    return as_text(held.get(key))
