"""What a replay asks of a format. The judge has its own reading of each: what Steno reads is what is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from lab.replay.sent import SentMessage

Element = dict[str, Any]
"""One of a history: a message, or an item."""


class ReplayFormat(Protocol):
    name: str
    path: str
    """Where its requests are posted."""
    history: str
    """The member that holds the conversation."""
    beside: Sequence[str]
    """Members of a recording that are sent with every request: what is said once for all of it."""

    begins_with_user: bool
    """A history may not begin with what the assistant said."""

    def raw_messages(self, body: bytes) -> list[bytes]:
        """The history in a request's body, each element with its own bytes; what stands beside it as its first."""

    def prompt_of(self, body: bytes) -> bytes:
        """All of that as it stands in the body, the history last."""

    def message(self, raw: bytes) -> SentMessage:
        """Reads one of `raw_messages`."""

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        """Whether the model's answer to a request begins there."""

    def is_instruction(self, element: Element) -> bool:
        """Whether it is said once, at the beginning."""

    def renamed(self, elements: Sequence[Element], number: int) -> list[Element]:
        """With ids of their own, for the recording of that number in a chain."""


def member_of(body: bytes, name: str) -> bytes:
    """The bytes of a member; empty where the body has none of that name."""
    try:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(name, b""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""


def elements_of(raw: bytes) -> list[bytes]:
    """Each element of a list, with its own bytes; none where it is no list."""
    try:
        return [bytes(element) for element in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def object_of(raw: bytes) -> Element:
    """An element; an empty one where it is no object."""
    value = msgspec.json.decode(raw)
    return value if isinstance(value, dict) else {}


def written(value: Any) -> str:
    """What a call is called with, as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def dicts(value: Any) -> list[Element]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
