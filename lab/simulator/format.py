"""Base of the formats: how requests are judged and counted, and how answers are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from app.tokens.estimate import Count
from lab.simulator.counting import Cached, Counting
from lab.simulator.log import Record
from lab.simulator.rules import Model, Rules
from lab.simulator.script import Fault

Json = Mapping[str, Any]

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Content:
    """An answer in one piece."""

    body: bytes
    content_type: str = JSON
    status: int = 200


def json_content(value: Any, status: int = 200) -> Content:
    return Content(msgspec.json.encode(value), status=status)


class Frame(NamedTuple):
    event: str | None
    data: Json


@dataclass(frozen=True, slots=True)
class Accepted:
    request: Json
    conversation: Sequence[Any]
    """Messages with `role` and `content`, whatever they are in the format."""
    max_tokens: int | None
    prompt_tokens: int
    room: int
    """Tokens that the window leaves for the answer."""
    cached: Cached

    @property
    def model(self) -> str:
        return str(self.request["model"])

    @property
    def stream(self) -> bool:
        return bool(self.request.get("stream"))


class Answer(NamedTuple):
    text: str | None
    usage: Json
    whole: Json
    """The body in one piece."""
    frames: Iterable[Frame]


class Stream(NamedTuple):
    """The body of a streamed answer."""

    content_type: str
    frames: Iterable[bytes]
    closing: bytes = b""
    """Bytes after the last frame, unless the answer is cut."""


class Format(ABC):
    """One API. Not for several threads."""

    path: str
    """Path to which conversations are posted."""
    closing = b""
    """Last event of a whole stream, after the answer's own."""
    has_retry_header = True
    """Whether the pause that an error names stands in headers."""

    def __init__(self, count: Count) -> None:
        self.count = count
        self.counting = Counting(count)

    def read(self, record: Record, rules: Rules, counted: Callable[[int], None]) -> Accepted:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        request, model, parts, tokens = self._counted(record, rules)
        total = sum(tokens)
        counted(total)
        room = self.check_window(request, model, tokens, rules)
        return Accepted(
            request,
            self.conversation(request),
            self.max_tokens(request),
            total,
            room,
            self.cached(request, parts, tokens),
        )

    def _counted(self, record: Record, rules: Rules) -> tuple[Json, Model, Sequence[Any], Sequence[int]]:
        """A request, its model, its head and messages, and the tokens of each of these."""
        request, model = self.checked(record, rules)
        parts = self.parts(request)
        return request, model, parts, [self.counting.head(parts[0]), *map(self.counting.part, parts[1:])]

    def prompt_tokens(self, record: Record, rules: Rules) -> int:
        """Tokens of a prompt, whatever the window is."""
        return sum(self._counted(record, rules)[3])

    @abstractmethod
    def checked(self, record: Record, rules: Rules) -> tuple[Json, Model]:
        """The request and the model that it names. Raises `Refused` as the provider would, but for its size."""

    @abstractmethod
    def parts(self, request: Json) -> Sequence[Any]:
        """One list of everything before the messages, and then each message that the model reads."""

    @abstractmethod
    def conversation(self, request: Json) -> Sequence[Any]: ...

    @abstractmethod
    def max_tokens(self, request: Json) -> int | None: ...

    @abstractmethod
    def check_window(self, request: Json, model: Model, tokens: Sequence[int], rules: Rules) -> int:
        """Tokens that the window leaves for the answer. Raises `Refused` where it has no room."""

    @abstractmethod
    def cached(self, request: Json, parts: Sequence[Any], tokens: Sequence[int]) -> Cached: ...

    @abstractmethod
    def answer(self, sequence: int, request: Accepted, fault: Fault, text: str) -> Answer:
        """Answer to a request; `text` is what the model would say."""

    @abstractmethod
    def error(self, fault: Fault) -> Json:
        """The body of a scripted status from 400 on: the fault's error object, or the provider's own for it."""

    @abstractmethod
    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        """Headers that the provider always sends."""

    def is_posted(self, path: str) -> bool:
        """Whether conversations are posted to this path."""
        return path == self.path

    def owns(self, record: Record) -> bool:
        """Whether the request's path, or its headers, are those of the format."""
        return self.is_posted(record.path)

    def stream(self, record: Record, frames: Iterable[Frame]) -> Stream:  # noqa: ARG002 - Gemini's query decides
        """Frames as server-sent events."""
        closing = b"data: %b\n\n" % self.closing if self.closing else b""
        return Stream(EVENT_STREAM, map(_server_sent, frames), closing)

    def respond(self, record: Record, rules: Rules) -> Content | None:  # noqa: ARG002 - for formats that have some
        """The answer on another path of the format; None: the path is not its own."""
        return None

    def error_content(self, record: Record, error: Json, status: int) -> Content:  # noqa: ARG002 - others do
        """The answer that an error is."""
        return json_content(error, status)


def _server_sent(frame: Frame) -> bytes:
    named = b"" if frame.event is None else b"event: %b\n" % frame.event.encode()
    return b"%bdata: %b\n\n" % (named, msgspec.json.encode(frame.data))


def asked_of(model: Model, max_tokens: int | None, *, usual: bool) -> int:
    """Tokens of the answer that have to fit the window beside the prompt. `usual`: whether they have to at all where
    the model does not say."""
    counts = usual if model.counts_answer is None else model.counts_answer
    return (max_tokens or 0) if counts else 0
