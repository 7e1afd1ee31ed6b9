"""Server-sent events, byte for byte: split chunks into frames, and write Steno's own frames.

The provider's bytes stay unchanged. A frame is held back until it is complete, because Steno may edit frames and
insert its own between them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")
"""Two line ends in a row, each `\\r\\n`, `\\n` or `\\r`."""
_MARKS = (b"\n\r", b"\r\r", b"\n\n")
"""First two bytes of a boundary; a line feed may follow a `\\r`."""
LONGEST_FRAME = 8 << 20
"""Most bytes of an incomplete frame that Steno holds back."""
MOST_VALUES = 200_000
"""Most JSON values of a frame that Steno decodes, which bounds its memory."""


class FrameSplitter:
    """Splitter of chunks into complete frames, each with its final blank line.

    A boundary may end with `\\r` at a chunk's end: the frame is not held back, and a following line feed is sent alone.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self.overran = False
        """Whether part of the current frame was forwarded because it was too long."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return frames_in(self.together(chunk))

    def together(self, chunk: bytes) -> bytes:
        """Return all frames that are now complete, joined."""
        if not self._held:
            stop = last_end(chunk)
            if not stop and not self.overran and chunk.startswith(b"\n"):
                stop = 1  # An empty line, or the line feed after a forwarded `\r`.
            complete = chunk[:stop]
            self._held += memoryview(chunk)[stop:]
        else:
            searched = len(self._held) - 1
            self._held += chunk
            stop = last_end(bytes(memoryview(self._held)[searched:]))
            stop = searched + stop if stop else 0
            complete = bytes(memoryview(self._held)[:stop])
            del self._held[:stop]
        if stop:
            self.overran = False
        if len(self._held) > LONGEST_FRAME:
            complete += self.flush()
            self.overran = True
        return complete

    def flush(self) -> bytes:
        """Return and forget the incomplete frame; empty if there is none."""
        held = bytes(self._held)
        self._held.clear()
        return held


def frames_in(together: bytes) -> list[bytes]:
    frames, start = [], 0
    for boundary in _BOUNDARY.finditer(together):
        frames.append(together[start : boundary.end()])
        start = boundary.end()
    return [*frames, together[start:]] if start < len(together) else frames


def first_end(frames: bytes, start: int) -> int:
    if frames.find(b"\r", start, frames.find(b"\n", start)) == -1:  # Few providers use `\r`.
        place = frames.find(b"\n\n", start)
        stop = len(frames) if place == -1 else place + 2
        if frames.find(b"\r", start, stop) == -1:
            return stop
    found = _BOUNDARY.search(frames, start)
    return found.end() if found else len(frames)


def last_end(frames: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return the end of the last complete frame before `stop`; `start` if there is none."""
    if frames.find(b"\r", start, stop) == -1:
        place = frames.rfind(b"\n\n", start, stop)
        return start if place == -1 else place + 2
    place = -1
    for mark in _MARKS:
        place = max(place, frames.rfind(mark, max(start, place), stop))
    found = _BOUNDARY.match(frames, place) if place != -1 else None
    return found.end() if found else start


def event(data: bytes, name: str | None = None) -> bytes:
    """Return a frame. By default it has no `event:` line, because old SDKs crash on named events."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def data_of(frame: bytes) -> tuple[int, int] | None:
    """Return start and stop of a frame's data; None unless it has exactly one data line."""
    if b"\r" in frame:
        frame = frame.replace(b"\r", b"\n")
    start = len(b"data:")
    if not frame.startswith(b"data:"):
        place = frame.find(b"\ndata:")
        if place == -1:
            return None
        start = place + len(b"\ndata:")
    if frame.startswith(b" ", start):
        start += 1
    stop = frame.find(b"\n", start)
    if stop == -1:
        return start, len(frame)
    return None if frame.find(b"\ndata:", stop) != -1 else (start, stop)


EventShape = Literal["chunk", "start", "comment", "off"]
EVENT_SHAPES: tuple[EventShape, ...] = ("chunk", "start", "comment", "off")
"""Ways to announce a compaction before the provider's first frame: `chunk` is the format's safest frame; `start` begins
the answer, so that more clients show it. With `off` Steno sends nothing before it knows the provider's status."""


@dataclass(slots=True)
class EarlyFrames:
    """Writer of a compaction's frames: `compaction_started`, then `compaction_completed` or `compaction_failed`.

    If one of these frames began the answer, the `AnswerEditor` removes the beginning from the provider's frames.
    """

    BEGINNING: ClassVar[EventShape] = "start"
    """Shape whose first frame begins the answer."""

    shape: EventShape
    compaction_id: str

    @property
    def begins_answer(self) -> bool:
        return self.shape == self.BEGINNING

    def keep_alive(self) -> bytes:
        """Return a frame without content, which keeps clients from timing out."""
        return KEEP_ALIVE

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:  # noqa: ARG002 - only a frame of the answer can hold them
        """Return a comment. A format may override this with a frame that clients show. `members`: see
        `ContextMembers.status`."""
        return b": %b %b\n\n" % (kind.encode(), self.data(kind, details))

    def data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
