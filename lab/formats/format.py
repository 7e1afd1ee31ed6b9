"""Reading of a format: what an element of a history says, and how a history stands in a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from lab.formats.sent import SentMessage

Element = dict[str, Any]
"""A message of a history, or an item."""


class Called(NamedTuple):
    id: str
    name: str
    arguments: str
    """Arguments as text: JSON, or what a custom tool takes."""


class Reading(NamedTuple):
    """Texts, calls and results of an element."""

    role: str
    """Speaker: `tool` for what only answers calls, whatever the format calls it."""
    texts: tuple[str, ...] = ()
    calls: tuple[Called, ...] = ()
    answers: tuple[str, ...] = ()
    """Ids of the calls that it answers."""

    @property
    def text(self) -> str:
        return "\n".join(filter(None, self.texts))

    @property
    def pieces(self) -> tuple[str, ...]:
        """Texts, then name and arguments of each call: what a reader has to be shown."""
        return (*self.texts, *(piece for call in self.calls for piece in (call.name, call.arguments)))


class ReplayFormat(ABC):
    name: str
    path: str
    """Path to which requests are posted."""
    history = "messages"
    """Name of the member that holds the conversation."""
    instructions = ""
    """Name of the member with the instructions; empty where they stand among the messages."""
    instructing_role = "system"
    beside: Sequence[str] = ()
    """Members of a recording that are sent with every request: what is said once for all of it."""
    begins_with_user = False
    """True where a history may not begin with what the assistant said."""
    ids: Sequence[str]
    """Names of the members that hold ids of calls."""

    def is_posted(self, path: str) -> bool:
        """Whether requests are posted to this path."""
        return path == self.path

    def posted(self, model: str, stream: bool) -> tuple[str, dict[str, Any]]:
        """Path of a request, and the members that it needs beside the history."""
        return self.path, {"model": model, **({"stream": True} if stream else {})}

    def key_headers(self, api_key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {api_key}"}

    def said(self, role: str, text: str) -> Element:
        """A message of the user's or the assistant's."""
        return {"role": role, "content": text}

    def raw_messages(self, body: bytes) -> list[bytes]:
        """Elements of the history in a request's body, each with its own bytes; what stands beside it is the first."""
        given = member_of(body, self.history)
        told = member_of(body, self.instructions) if self.instructions else b""
        first = [_said(self.instructing_role, told)] if told not in (b"", b"null") else []
        return [*first, *([_said("user", given)] if given.startswith(b'"') else elements_of(given))]

    def prompt_of(self, body: bytes) -> bytes:
        """Bytes of the prompt as they stand in the body, the history last."""
        return b"".join(member_of(body, name) for name in (self.instructions, self.history) if name)

    def message(self, raw: bytes) -> SentMessage:
        """One of `raw_messages`, with what the judge asks of it beside its reading."""
        value = object_of(raw)
        read = self.reading(value)
        return SentMessage(
            raw=raw,
            role=read.role,
            pieces=read.pieces,
            texts=len(read.texts),
            calls=tuple(call.id for call in read.calls),
            answers=read.answers,
            **self.traits(value, read),
        )

    @abstractmethod
    def reading(self, element: Element) -> Reading:
        """Reading of an element."""

    @abstractmethod
    def traits(self, element: Element, read: Reading) -> dict[str, Any]:
        """The other fields of a `SentMessage`."""

    @abstractmethod
    def answered(self, body: bytes) -> str | None:
        """Text of a model's answer, streamed or whole; None where the body is none, or was cut."""

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        """True where the model's answer to a request begins."""
        return place > 0 and elements[place].get("role") == "assistant"

    def is_instruction(self, element: Element) -> bool:
        """True for what is said once, at the beginning."""
        return not self.instructions and element.get("role") == "system"

    def renamed(self, element: Element, number: int) -> Element:
        """An element with ids of its own, for the recording of that number in a chain."""
        made: Element = {}
        for key, value in element.items():
            if key in self.ids and value:
                made[key] = f"{value}_{number}"
            elif isinstance(value, list):
                made[key] = [self.renamed(each, number) if isinstance(each, dict) else each for each in value]
            else:
                made[key] = value
        return made


def _said(role: str, text: bytes) -> bytes:
    return b'{"role":"%b","content":%b}' % (role.encode(), text)


def member_of(body: bytes, name: str) -> bytes:
    """Bytes of a member; empty where the body has none of that name."""
    try:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get(name, b""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""


def elements_of(raw: bytes) -> list[bytes]:
    """Elements of a list, each with its own bytes; none where it is no list."""
    try:
        return [bytes(element) for element in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def object_of(raw: bytes) -> Element:
    """Element in these bytes; an empty one where they are no object."""
    value = msgspec.json.decode(raw)
    return value if isinstance(value, dict) else {}


def written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def dicts(value: Any) -> list[Element]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def events_of(body: bytes) -> list[Element]:
    """Data of the server-sent events in a body; none where it is no stream."""
    lines = (line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:"))
    return [object_of(line) for line in lines if line and line != b"[DONE]"]


def whole_of(body: bytes) -> Element:
    """Object that an answer in one piece is; an empty one where it is none."""
    try:
        return object_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
