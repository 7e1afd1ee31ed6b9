"""Interface of a format to the simulator: how requests are judged, and how answers are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from app.core.tokens.estimate import Count
from lab.simulator.log import Record
from lab.simulator.rules import RequestRules
from lab.simulator.script import Fault

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Content:
    """An answer in one piece."""

    body: bytes
    content_type: str = JSON
    status: int = 200


def json_content(value: Any, status: int = 200) -> Content:
    return Content(msgspec.json.encode(value), status=status)


class Frame(NamedTuple):
    """One server-sent event."""

    event: str | None
    data: Mapping[str, Any]


class Accepted(Protocol):
    """An acceptable request."""

    @property
    def stream(self) -> bool: ...

    @property
    def conversation(self) -> Sequence[Any]:
        """Messages with `role` and `content`, whatever they are in the format."""
        ...

    @property
    def max_tokens(self) -> int | None: ...


class Answer(Protocol):
    """One answer, before it is written."""

    @property
    def text(self) -> str | None: ...

    @property
    def usage(self) -> Mapping[str, Any]: ...

    def whole(self) -> Mapping[str, Any]:
        """The body in one piece."""
        ...

    def frames(self) -> Iterator[Frame]: ...


AcceptedT = TypeVar("AcceptedT", bound=Accepted)


class Format(Protocol[AcceptedT]):
    """One API."""

    path: str
    """Path to which conversations are posted."""
    closing: bytes
    """Bytes that follow the last frame of a whole stream."""

    def read(self, record: Record, rules: RequestRules, counted: Callable[[int], None]) -> AcceptedT:
        """Raise `Refused` as the provider would; `counted` is given the prompt tokens before the window is checked."""
        ...

    def answer(self, sequence: int, request: AcceptedT, fault: Fault, text: str, count: Count) -> Answer:
        """Answer to a request; `text` is what the model would say."""
        ...

    def owns(self, record: Record) -> bool:
        """Whether the request's path, or its headers, are those of the format."""
        return record.path == self.path

    def respond(self, record: Record, rules: RequestRules) -> Content | None:  # noqa: ARG002 - for formats that have some
        """The answer on another path of the format; None: the path is not its own."""
        return None

    def error(self, fault: Fault) -> Mapping[str, Any]:
        """The body of a scripted status from 400 on: the fault's error object, or the provider's own for it."""
        ...

    def identified(self, error: Mapping[str, Any], request_id: str) -> Mapping[str, Any]:  # noqa: ARG002 - Anthropic does
        """The body of an error, with the request's id where the provider names it there."""
        return error

    def headers(self, request_id: str, status: int) -> Mapping[str, str]:
        """Headers that the provider always sends."""
        ...
