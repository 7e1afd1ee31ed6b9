"""Server-sent events, byte for byte: frames out of chunks, and frames of ours.

The provider's bytes pass as they came. A frame is held back until it is complete, because what is spliced in, and
what we send between frames, may only stand at a frame's boundary.
"""

from __future__ import annotations

import re

KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
LONGEST_FRAME = 8 << 20
"""Past this an incomplete frame is passed on as it is."""
MOST_VALUES = 200_000
"""In a frame that is decoded; a few bytes of JSON can become many objects."""


class FrameSplitter:
    """Chunks in, complete frames out, each with the blank line that ends it."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.overran = False
        """The frame that is under way was too long to be held: a part of it was passed on."""

    def feed(self, chunk: bytes) -> list[bytes]:
        searched = max(0, len(self._held) - 3)
        self._held += chunk
        frames, start = [], 0
        for boundary in _BOUNDARY.finditer(bytes(memoryview(self._held)[searched:])):
            stop = searched + boundary.end()
            frames.append(bytes(self._held[start:stop]))
            start, self.overran = stop, False
        del self._held[:start]
        if len(self._held) > LONGEST_FRAME:
            frames.append(self.flush())
            self.overran = True
        return frames

    def flush(self) -> bytes:
        """What is left of an incomplete frame."""
        held = bytes(self._held)
        self._held.clear()
        return held


def event(data: bytes, name: str | None = None) -> bytes:
    """A frame of ours. The default shape has no `event:` line: old SDKs crash on named events."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def data_of(frame: bytes) -> tuple[int, int] | None:
    """Where the data of a frame stands, if it has exactly one data line."""
    start = 0 if frame.startswith(b"data:") else frame.find(b"\ndata:") + 1
    if start == 0 and not frame.startswith(b"data:"):
        return None
    start += len(b"data:")
    if frame[start : start + 1] == b" ":
        start += 1
    stop = min((end for end in (frame.find(b"\n", start), frame.find(b"\r", start)) if end != -1), default=len(frame))
    return None if b"\ndata:" in frame[stop - 1 :] else (start, stop)
