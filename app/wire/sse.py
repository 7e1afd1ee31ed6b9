"""Server-sent events, byte for byte: frames out of chunks, and our members in single frames.

The provider's bytes pass as they came. A frame is held back until it is complete, because what is spliced in, and
what we send between frames, may only stand at a frame's boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from app.wire.members import RawObject, Unreadable, holds_more_values, split_array
from app.wire.usage import window_was_full

KEEP_ALIVE = b": keep-alive\n\n"
_BOUNDARY = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_USAGE = re.compile(rb'"usage"\s*:\s*[^n\s]')
_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
"""Possessive, because what it would go back to takes 500 MB for a frame of escapes."""
LONGEST_FRAME = 8 << 20
"""Past this an incomplete frame is passed on as it is."""
MOST_VALUES = 200_000
"""In a frame that is decoded; a few bytes of JSON can become many objects."""
LONGEST_TEXT = 1 << 20
"""Bytes of a frame whose text is counted; a longer one holds a picture."""
LONGEST_NAME = 1_000
"""Bytes of what a provider calls its answer, that we tell."""


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


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """What all chunks of one stream have in common."""

    id: str
    created: int
    """Unix seconds."""
    model: str

    @property
    def members(self) -> dict[str, bytes]:
        values = {"id": self.id, "created": self.created, "model": self.model}
        return {name: msgspec.json.encode(value) for name, value in values.items()}


@dataclass(slots=True)
class StreamEditor:
    """What a chat stream needs on its way: our members in the first chunk and in the one that ends it.

    After a `compaction_started` chunk was sent, later chunks also lose the role of choice 0 (it was sent) and take
    the head that was sent: clients break on a second role, drop chunks of another id, and cannot merge two times or
    models. What the provider said instead stands in `context.provider`.
    """

    first_members: bytes
    finish_members: bytes
    sent: ChunkHead | None = None
    """The head of the chunks that were sent before the provider's."""
    choices: int = 1
    """How many answers the stream holds, each with an end of its own."""
    hides_usage: bool = False
    """The client did not ask for the usage, we did: it is taken out again, because many clients break on it."""
    usage: object = None
    """What the stream said of the tokens it cost, as received."""
    window_full: bool = False
    """It ended because the model's window was full."""
    text_bytes: int = 0
    """Of what the model wrote."""
    seen_first: bool = False
    finished: set[int] = field(default_factory=set)
    """Choices with a reason to finish. After the last one what follows is bookkeeping."""
    done: bool = False
    """`[DONE]` was seen."""
    failed: bool = False
    """The provider ended the stream with an error frame."""
    refusal: bytes = b""
    """That error, where nothing else had come: in truth the request was refused."""
    provider: dict[str, bytes] = field(default_factory=dict)
    """What the provider's own chunks have in common, where they were given another head."""

    @property
    def complete(self) -> bool:
        """Whether the answer had an end of its own: reasons to finish, `[DONE]`, or an error."""
        return len(self.finished) >= self.choices or self.done or self.failed

    def edit(self, frame: bytes) -> bytes:
        data = _data_of(frame)
        if data is None:
            return frame
        start, stop = data
        text = frame[start:stop]
        if text.startswith(b"[DONE]"):
            self.done = True
            return frame
        if len(text) <= LONGEST_TEXT:
            self.text_bytes += sum(len(written[1]) for written in _TEXT.finditer(text))
        told = self.seen_first and self.sent is None
        tells_usage = (b'"usage"' in text) if self.hides_usage else _USAGE.search(text)
        if told and not tells_usage and b'"error"' not in text and _FINISH.search(text) is None:
            return frame
        if holds_more_values(text, MOST_VALUES):
            return frame
        try:
            chunk = RawObject(text)
        except Unreadable:
            return frame
        if "error" in chunk and chunk.value("error"):
            self.failed = True
            self.refusal = b"" if self.seen_first else text
            return frame
        self.usage = chunk.value("usage") or self.usage
        self.window_full = self.window_full or window_was_full(chunk.raw("choices"))
        hides = self.hides_usage and "usage" in chunk
        if hides and not chunk.value("choices"):
            return b""
        replaced, added = self._headed(chunk)
        edited = chunk.spliced(replaced, ("usage",) if hides else (), added)
        if members := self._members(_finished_choices(chunk)):
            edited = RawObject(edited).with_status(members)
        return frame if edited == text else frame[:start] + edited + frame[stop:]

    def _members(self, finishes: set[int]) -> bytes:
        """What the chunk is told: all in the first one that finishes a choice, else the status in the first one."""
        is_first, is_finish = not self.seen_first, bool(finishes) and not self.finished
        self.seen_first = True
        if len(self.finished) < self.choices:  # A provider may number them without an end.
            self.finished |= finishes
        return self._last_members() if is_finish else self.first_members if is_first else b""

    def _last_members(self) -> bytes:
        """With what the provider said of itself, where its chunks were given another head."""
        if not self.provider or not self.finish_members:
            return self.finish_members
        told = RawObject(b"{" + self.finish_members + b"}")
        provider = b'"provider":{' + _joined(self.provider) + b"}"
        context = RawObject(told.raw("context") or b"{}").spliced(add=provider)
        return told.spliced({"context": context})[1:-1]

    def _headed(self, chunk: RawObject) -> tuple[dict[str, bytes], bytes]:
        """How the chunk is given the head that was sent: the members to replace, and those to add."""
        if self.sent is None:
            return {}, b""
        head = self.sent.members
        for name in head:
            raw = chunk.raw(name) or b""
            if name not in self.provider and len(raw) <= LONGEST_NAME and chunk.value(name):
                self.provider[name] = raw
        replaced = {name: value for name, value in head.items() if name in chunk}
        missing = {name: value for name, value in head.items() if name not in chunk and "choices" in chunk}
        if (choices := chunk.raw("choices")) is not None and b'"role"' in choices:
            replaced["choices"] = _without_role(choices)
        return replaced, _joined(missing)


def event(data: bytes, name: str | None = None) -> bytes:
    """A frame of ours. The default shape has no `event:` line: old SDKs crash on named events."""
    return (b"event: " + name.encode() + b"\n" if name else b"") + b"data: " + data + b"\n\n"


def _data_of(frame: bytes) -> tuple[int, int] | None:
    """Where the data of a frame stands, if it has exactly one data line."""
    start = 0 if frame.startswith(b"data:") else frame.find(b"\ndata:") + 1
    if start == 0 and not frame.startswith(b"data:"):
        return None
    start += len(b"data:")
    if frame[start : start + 1] == b" ":
        start += 1
    stop = min((end for end in (frame.find(b"\n", start), frame.find(b"\r", start)) if end != -1), default=len(frame))
    return None if b"\ndata:" in frame[stop - 1 :] else (start, stop)


def _joined(members: Mapping[str, bytes]) -> bytes:
    return b",".join(b'"%b":%b' % (name.encode(), value) for name, value in members.items())


def _finished_choices(chunk: RawObject) -> set[int]:
    choices = chunk.value("choices")
    if not isinstance(choices, list):
        return set()
    finished = (choice for choice in choices if isinstance(choice, dict) and choice.get("finish_reason"))
    return {index for choice in finished if isinstance(index := choice.get("index", 0), int)}


def _without_role(choices: bytes) -> bytes:
    """The choices with the role taken out of choice 0's delta; all else keeps its bytes, and so does what is none."""
    try:
        elements = split_array(choices)
    except Unreadable:
        return choices
    return b"[" + b",".join(map(_choice_without_role, elements)) + b"]"


def _choice_without_role(raw: bytes) -> bytes:
    try:
        choice = RawObject(raw)
        delta = choice.raw("delta")
        if choice.value("index") != 0 or delta is None:
            return raw
        return choice.spliced({"delta": RawObject(delta).spliced(remove=("role",))})
    except Unreadable:
        return raw
