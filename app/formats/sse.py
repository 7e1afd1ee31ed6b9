"""Server-sent events, byte for byte: frames out of chunks, frames of ours, and a stream out of a whole answer.

The provider's bytes pass as they came. A frame is held back until it is complete, because what is spliced in, and
what we send between frames, may only stand at a frame's boundary.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from app.errors import UpstreamUnreadable
from app.formats.raw_json import RawObject, TooManyValues, Unreadable, holds_more_values

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
    """The frames one by one."""
    frames, start = [], 0
    for boundary in _BOUNDARY.finditer(together):
        frames.append(together[start : boundary.end()])
        start = boundary.end()
    return [*frames, together[start:]] if start < len(together) else frames


def first_end(frames: bytes, start: int) -> int:
    """End of the frame that begins at `start`."""
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
"""How a stream announces a compaction before the provider's first frame: in the format's own safest frame, in one that
begins the answer, where more clients see it, as an event with a name, as a comment, or not at all: then nothing is sent
before the provider's status is known."""


@dataclass(slots=True)
class EarlyFrames:
    """Frames that tell of one compaction. `compaction_started` is sent once, and closed once with the same id.

    The editor of the same stream is given them: where a frame of ours has begun the answer, it takes out of the
    provider's what would begin it a second time.
    """

    PREFIX: ClassVar[str] = ""
    """Beginning of the names of events beside the answer."""

    shape: EventShape
    compaction_id: str

    def started(self, details: Mapping[str, Any]) -> bytes:
        """The frame that opens the compaction."""
        return self.frame("compaction_started", details)

    def keep_alive(self) -> bytes:
        """A frame that says nothing new, so that no client takes the silence for the end."""
        return KEEP_ALIVE

    def closed(self, details: Mapping[str, Any], members: bytes = b"", *, failed: bool = False) -> bytes:
        """The frame that closes the compaction. `members` as in `ContextMembers.status`."""
        return self.frame("compaction_failed" if failed else "compaction_completed", details, members)

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:  # noqa: ARG002 - only a frame of the answer has room for them
        """A frame that is no part of the answer: an event with a name, or a comment. A format may have a safer one."""
        data = self.data(kind, details)
        return event(data, self.PREFIX + kind) if self.shape == "named" else b": %b %b\n\n" % (kind.encode(), data)

    def data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        """The data of a frame, as JSON."""
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})


LARGEST_WHOLE = 16 << 20
"""Bytes of an answer in one piece that are held, to tell something in it or to make it a stream.

The longest texts of today's models take 1 MB, an answer with a picture a few.
"""
MOST_RAW = 1_000_000
"""Values of an answer that is taken apart but not decoded; the likelihoods of 10,000 tokens are as many."""
IN_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""JSON has line ends between its members only; the data of a frame has none."""
_SPACE = b" \t\r\n"
_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")
_LONGEST_FIELD = len(b"\xef\xbb\xbfevent:")


async def streamed(
    chunks: AsyncIterator[bytes], frames_of: Callable[[bytes], Iterable[bytes]], named: str, *, is_stream: bool
) -> AsyncIterator[bytes]:
    """The frames of an answer with status 200, as they come; those of one in one piece are `frames_of` its body.

    `is_stream`: its content type says so. `named`: what it should be. Raises `UpstreamUnreadable` for an answer that is
    neither.
    """
    start = bytearray()
    first: int | None = None  # Where the first character stands.
    begun = False
    async for chunk in chunks:
        if begun:
            yield chunk
            continue
        if first is None and (said := chunk.lstrip(_SPACE)):
            first = len(start) + len(chunk) - len(said)
        start += chunk
        if first is None or start[first] in b"{[":
            if len(start) > LARGEST_WHOLE:
                raise UpstreamUnreadable(f"The provider's answer is no stream, and larger than {LARGEST_WHOLE} bytes.")
        elif is_stream or _FIELD.match(start, first):
            begun = True
            yield bytes(start)
        elif len(start) - first >= _LONGEST_FIELD or b"\n" in start[first:]:
            raise UpstreamUnreadable(f"The provider's answer is neither a stream nor a {named}.")
    if not begun and (start or not is_stream):
        yield b"".join(frames_of(bytes(start)))


@contextmanager
def taken_apart(named: str) -> Iterator[None]:
    """Raises `UpstreamUnreadable` where an answer in one piece is found not to be what it should be, `named`."""
    try:
        yield
    except TooManyValues as error:
        raise UpstreamUnreadable(f"The provider's answer is no {named}: {error}.") from error
    except Unreadable as error:
        raise UpstreamUnreadable(f"The provider's answer is no {named}.") from error


def read_whole(body: bytes) -> RawObject:
    """An answer in one piece, without line ends. Raises `Unreadable`."""
    if holds_more_values(body, MOST_RAW):
        raise TooManyValues(f"it has over {MOST_RAW} values")
    return RawObject(body.translate(IN_ONE_LINE))
