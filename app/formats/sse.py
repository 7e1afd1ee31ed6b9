"""Server-sent events, byte for byte: split received bytes into frames, and write Steno's own frames.

The provider's bytes stay unchanged. Steno holds a frame back until it is complete, because Steno may edit the frame or
insert its own frames between two frames.
"""

from __future__ import annotations

import re

KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\n\r?\n")
"""Pattern of an empty line. Steno does not support lines that end in `\\r` alone, because no provider writes them."""
LONGEST_FRAME = 8 << 20
"""Maximum bytes of an incomplete frame that Steno holds back."""
MOST_VALUES = 200_000
"""Maximum number of JSON values in a frame that Steno decodes, because each value takes memory."""


class FrameSplitter:
    """Splitter of received bytes into complete frames, each with its final blank line."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.overran = False
        """Whether part of the current frame was forwarded because the frame was too long."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return frames_in(self.together(chunk))

    def together(self, chunk: bytes) -> bytes:
        """Return all frames that are now complete, joined in one bytes object."""
        if not self._held:
            stop = last_end(chunk)
            complete = chunk[:stop]
            self._held += memoryview(chunk)[stop:]
        else:
            searched = max(0, len(self._held) - 2)
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
        """Return the incomplete frame and forget it; empty if there is none."""
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
    found = _BOUNDARY.search(frames, start)
    return found.end() if found else len(frames)


def last_end(frames: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return the end of the last complete frame before `stop`, or `start` if there is none."""
    place, spaced = frames.rfind(b"\n\n", start, stop), frames.rfind(b"\n\r\n", start, stop)
    return start if place == spaced == -1 else max(place + 2, spaced + 3)


def event(data: bytes, name: str | None = None) -> bytes:
    """Return a frame. By default, the frame has no `event:` line, because old SDKs crash on named events."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def data_of(frame: bytes) -> tuple[int, int] | None:
    """Return start and stop of a frame's data; None for a frame without data or with several data lines."""
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
    return None if frame.find(b"\ndata:", stop) != -1 else (start, stop - frame.startswith(b"\r", stop - 1))
