"""Server-sent events, byte for byte: frames out of chunks, and frames of ours.

The provider's bytes pass as they came. A frame is held back until it is complete, because what is spliced in, and
what we send between frames, may only stand at a frame's boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\n(?:\n|\r\n?)|\r\r\n?")
"""Ends of a line, and of the empty one behind it: `\\r\\n`, `\\n` or `\\r`, and they may be mixed."""
_MARKS = (b"\n\r", b"\r\r", b"\n\n")
"""Beginnings of these ends; a line feed may follow the `\\r`."""
LONGEST_FRAME = 8 << 20
"""Past this an incomplete frame is passed on as it is."""
MOST_VALUES = 200_000
"""Most values of a frame that is decoded; a few bytes of JSON can become many objects."""


class FrameSplitter:
    """Chunks in, complete frames out, each with the blank line that ends it.

    A `\\r` at a chunk's end is not held back: the line feed that may follow it says nothing by itself.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self.overran = False
        """The frame that is under way was too long to be held: a part of it was passed on."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return frames_in(self.together(chunk))

    def together(self, chunk: bytes) -> bytes:
        """All frames that are complete now, in one piece."""
        if not self._held:
            stop = last_end(chunk)
            if not stop and not self.overran and chunk.startswith(b"\n"):
                stop = 1  # An empty line for itself, or what belongs to the `\r` that was passed on.
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
        """The rest: an incomplete frame, or nothing."""
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
    if frames.find(b"\r", start, frames.find(b"\n", start)) == -1:  # Hardly any provider ends its lines so.
        place = frames.find(b"\n\n", start)
        stop = len(frames) if place == -1 else place + 2
        if frames.find(b"\r", start, stop) == -1:
            return stop
    found = _BOUNDARY.search(frames, start)
    return found.end() if found else len(frames)


def last_end(frames: bytes, start: int = 0, stop: int | None = None) -> int:
    """End of the last frame that is complete before `stop`; `start` where none is."""
    if frames.find(b"\r", start, stop) == -1:
        place = frames.rfind(b"\n\n", start, stop)
        return start if place == -1 else place + 2
    place = -1
    for mark in _MARKS:
        place = max(place, frames.rfind(mark, max(start, place), stop))
    found = _BOUNDARY.match(frames, place) if place != -1 else None
    return found.end() if found else start


def event(data: bytes, name: str | None = None) -> bytes:
    """A frame of ours. The default shape has no `event:` line: old SDKs crash on named events."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def data_of(frame: bytes) -> tuple[int, int] | None:
    """Start and stop of the data of a frame, if it has exactly one data line."""
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


EventShape = Literal["chunk", "start", "named", "comment", "off"]
EVENT_SHAPES: tuple[EventShape, ...] = ("chunk", "start", "named", "comment", "off")
"""Ways to announce a compaction before the provider's first frame: in the format's safest frame; in a frame that begins
the answer, which more clients see; as a named event; as a comment. With `off` nothing is sent before the provider's
status is known."""


@dataclass(slots=True)
class EarlyFrames:
    """Frames about one compaction: `compaction_started`, then `compaction_completed` or `compaction_failed` with the
    same id.

    The stream's editor receives them. If a frame of Steno began the answer, the editor removes the second beginning
    from the provider's frames.
    """

    PREFIX: ClassVar[str] = ""
    """Beginning of the names of events beside the answer."""
    BEGINNING: ClassVar[EventShape] = "start"
    """Shape whose first frame begins the answer."""

    shape: EventShape
    compaction_id: str

    @property
    def begins_answer(self) -> bool:
        return self.shape == self.BEGINNING

    def keep_alive(self) -> bytes:
        """A frame without news, so that no client takes silence for the end."""
        return KEEP_ALIVE

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:  # noqa: ARG002 - only a frame of the answer has room for them
        """A frame outside the answer: a named event, or a comment. A format may override it with a safer frame.
        `members`: see `ContextMembers.status`."""
        data = self.data(kind, details)
        return event(data, self.PREFIX + kind) if self.shape == "named" else b": %b %b\n\n" % (kind.encode(), data)

    def data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
