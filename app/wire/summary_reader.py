"""What a summary call was answered, out of a stream or of one piece of JSON; what its parts mean is the format's.

Some gateways answer in one piece what was asked for as a stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from app.core.summary.gate import SummaryAnswer
from app.wire.members import holds_more_values
from app.wire.refusals import decoded
from app.wire.sse import MOST_VALUES, FrameSplitter

Json = Mapping[str, Any]

DONE = b"[DONE]"
STRING_BYTES = 50
"""What Python needs for a text beside its characters."""
WORD = re.compile(r"[A-Za-z0-9_-]{1,60}")
"""A reason to finish. It goes into a header where there is no summary because of it."""
_SPACE = b" \t\r\n"


class Collected(Protocol):
    """What an answer has said so far."""

    @property
    def begun(self) -> bool: ...

    @property
    def ended(self) -> bool:
        """Whether it has come to an end of its own."""

    @property
    def size(self) -> int:
        """Bytes that are kept of it, roughly."""

    @property
    def length(self) -> int:
        """Characters of its text."""

    def take(self, said: Json) -> None:
        """What a frame says."""

    def take_whole(self, said: Json) -> bool:
        """What an answer in one piece says. Whether it is one."""

    def close(self) -> None:
        """`[DONE]` came."""

    def answer(self) -> SummaryAnswer: ...


class SummaryReader:
    """Chunks in, the answer out: see `AnswerReader`."""

    def __init__(self, collected: Collected) -> None:
        self.error: object = None
        """The body that says what went wrong, where the provider sent an error with status 200."""
        self.error_is_first = False
        """Nothing came before the error: in truth the request was refused."""
        self.unreadable = False
        """What came is no answer."""
        self.done = False
        """There is nothing more to come."""
        self._collected = collected
        self._start: bytes | None = b""
        """What came before the shape was known."""
        self._json: bytearray | None = None
        self._splitter = FrameSplitter()
        self._incomplete = 0
        self._failed = False

    @property
    def answer(self) -> SummaryAnswer | None:
        return self._collected.answer() if self._collected.ended and not self._failed else None

    @property
    def held(self) -> int:
        """What is kept, in bytes, roughly: reasoning, which can be long, is not."""
        return self._incomplete + self._collected.size + len(self._json or b"")

    @property
    def length(self) -> int:
        return self._collected.length

    def feed(self, chunk: bytes) -> None:
        if self._start is not None:
            chunk = (self._start + chunk).lstrip(_SPACE)
            self._start = None if chunk else b""
            if chunk[:1] in (b"{", b"["):
                self._json = bytearray()
        if self._json is not None:
            self._json += chunk
            return
        self._incomplete += len(chunk)
        for frame in self._splitter.feed(chunk):
            self._incomplete -= len(frame)
            if not self.done:
                self._read_frame(frame)

    def end(self) -> None:
        if self._json is not None:
            self._read_whole(bytes(self._json))
        elif not self.done:
            self._read_frame(self._splitter.flush(), whole=False)

    def _read_frame(self, frame: bytes, *, whole: bool = True) -> None:
        data = _data_of(frame)
        if data.startswith(DONE):
            self.done = True
            self._collected.close()
            return
        if not data:
            return
        said = None if holds_more_values(data, MOST_VALUES) else decoded(data)
        if isinstance(said, dict) and not is_error(said):
            self._collected.take(said)
        elif isinstance(said, dict):
            self._fail(said)
        elif whole:  # Half a frame at the end spoils nothing: what came before it may be a whole answer.
            self._fail(None)

    def _fail(self, error: object) -> None:
        self._failed = self.done = True
        self.error, self.unreadable = error, error is None
        self.error_is_first = not self._collected.begun

    def _read_whole(self, body: bytes) -> None:
        said = None if holds_more_values(body, MOST_VALUES) else decoded(body)
        if not isinstance(said, dict):
            self._fail(None)
        elif is_error(said):
            self._fail(said)
        elif self._collected.take_whole(said):
            self.done = True
        else:
            self._fail(None)


def is_error(said: Json) -> bool:
    """Also one that stands in what failed."""
    held = said.get("response")
    inside = isinstance(held, dict) and held.get("error")
    return bool(said.get("error") or inside) or said.get("type") == "error"


def member_named(members: Iterable[str], refusal: bytes) -> str | None:
    """The first of these members that a refusal names."""
    return next((name for name in members if re.search(rf"(?<!\w){re.escape(name)}(?!\w)".encode(), refusal)), None)


def _data_of(frame: bytes) -> bytes:
    """A frame's data: its data lines, joined as the standard says."""
    lines = (line.removeprefix(b"data:") for line in frame.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line.removeprefix(b" ") for line in lines)
