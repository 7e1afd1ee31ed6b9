"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came: only a frame that may hold something of ours is looked into,
and even that keeps all its other bytes. There are three such frames. The first chunk gets the status, so that a
client knows it soon. The first chunk that finishes a choice gets everything: many clients stop reading there. And
where we began the stream ourselves, every chunk is given the head that was sent, and the one with the role loses it:
clients break on a second role, drop chunks of another id, and cannot merge two times or models.

An answer in one piece gets everything at its end. What is not what it should be passes as it came: the client's own
parser is the judge of it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec
from msgspec import Struct

from app.formats.answers import LONGEST_NAME, AnswerEditor
from app.formats.chat_completions.spec import SPEC
from app.formats.raw_json import RawObject, Unreadable, joined_members, objects_in, split_array
from app.formats.requests import WireRequest
from app.formats.sse import KEEP_ALIVE, EarlyFrames, EventShape, event, last_end

_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_USAGE = re.compile(rb'"usage"\s*:\s*[^n\s]')
MOST_CHOICES = 128
"""Most choices of an answer: as many as OpenAI gives."""
_SEARCHES = re.compile(r"-search-(?:preview|api)")
"""Models that search the web once for each answer, and charge for it."""


@dataclass(slots=True)
class CompletionEditor(AnswerEditor):
    """One answer, streamed or whole. What the provider's chunks had for a head stands in `context.provider`."""

    SPEC = SPEC
    NOTABLE = re.compile(rb'"(?:finish_reason|usage)"\s*+:\s*+[^n\s]|"error"|\[DONE\]')
    CONTENT = re.compile(
        rb'"(?:content|reasoning_content|reasoning|refusal|text|arguments)"\s*+:\s*+(?:"[^"]|[\[{]\s*+[^\]}\s])'
        rb'|"(?:tool_calls|function_call|audio)"\s*+:\s*+[\[{]\s*+[^\]}\s]'
    )

    finished: set[int] = field(default_factory=set, init=False)
    """Choices with a reason to finish. After the last one what follows is bookkeeping."""

    @property
    def choices(self) -> int:
        """Number of answers in the stream, each with an end of its own."""
        return self.request.answer.choices if self.request else 1

    @property
    def complete(self) -> bool:
        """Whether the answer had an end of its own: reasons to finish, `[DONE]`, or an error."""
        return len(self.finished) >= self.choices or self.ended or self.failed

    @classmethod
    def begin_early(cls, request: WireRequest, shape: EventShape, compaction_id: str) -> CompactionEvents:
        head = ChunkHead(f"chatcmpl-{secrets.token_hex(12)}", int(time()), request.model)
        # Its chunks begin the answer anyway.
        return CompactionEvents("chunk" if shape == "start" else shape, compaction_id, head)

    def frames_of(self, whole: RawObject) -> Iterator[bytes]:
        """A chunk with what all choices say, one with how they end, and the usage: in a chunk of its own, which has no
        choices and breaks clients that did not ask for it, or in the last one."""
        elements = split_array(whole.raw("choices") or b"[]")
        if not 0 < len(elements) <= MOST_CHOICES:
            raise Unreadable(f"It has {len(elements)} choices.")
        said, ends = list[Mapping[str, bytes]](), list[Mapping[str, bytes]]()
        for number, choice in enumerate(map(RawObject, elements)):
            message = RawObject(choice.raw("message") or choice.raw("delta") or b"{}")
            raw_calls = message.raw("tool_calls") or b""
            calls = split_array(raw_calls) if raw_calls.startswith(b"[") else ()
            numbered = b",".join([_numbered(place, raw) for place, raw in enumerate(calls)])
            delta = message.spliced({"tool_calls": b"[%b]" % numbered} if calls else {})
            at = {"index": choice.raw("index") or b"%d" % number}
            beside = _members(choice, {"index", "message", "delta", "finish_reason"})
            said.append({**at, "delta": delta, "finish_reason": b"null", **beside})
            reason = choice.raw("finish_reason") or b"null"
            ends.append({**at, "delta": b"{}", "finish_reason": b'"stop"' if reason == b"null" else reason})
        whole_head = {**_members(whole, {"choices"}), "object": b'"chat.completion.chunk"'}
        usage = {"usage": whole_head.pop("usage")} if "usage" in whole_head else {}
        wants_usage = self.request is not None and self.request.answer.wants_usage
        head = {name: raw for name, raw in whole_head.items() if name in ("id", "object", "created", "model")}
        yield _chunk(whole_head, said)
        yield _chunk(head, ends, {} if wants_usage else usage)
        if usage and wants_usage:
            yield _chunk(head, (), usage)
        yield event(b"[DONE]")

    def quiet(self, frames: bytes, start: int) -> int:
        if not self.begun or self.continues or self.hides_usage:
            return start
        stop = len(frames)
        if _may_be_notable(frames, start) and (notable := self.NOTABLE.search(frames, start)):
            stop = last_end(frames, start, notable.start())
        self._look_for_content(frames, start, stop)
        return stop

    def _passes(self, text: bytes) -> bool:
        if text.startswith(b"[DONE]"):
            self.ended = True
            return True
        tells_usage = (b'"usage"' in text) if self.hides_usage else _USAGE.search(text)
        told = self.begun and not self.continues
        return told and not tells_usage and b'"error"' not in text and _FINISH.search(text) is None

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said and said.value("error"):
            self._fail(said.text)
            return said.text
        self._take(said)
        hides = self.hides_usage and "usage" in said
        if hides and not said.value("choices"):
            return b""
        replaced, added = self._headed(said)
        finished = (choice for choice in objects_in(said.value("choices")) if choice.get("finish_reason"))
        finishes = {index for choice in finished if isinstance(index := choice.get("index", 0), int)}
        # All members in the first chunk that finishes a choice, else the status in the first chunk.
        members = self._last_members() if finishes and not self.finished else b"" if self.begun else self.context.status
        self.begun = True
        if len(self.finished) < self.choices:  # A provider may number them without an end.
            self.finished |= finishes
        if replaced or added or hides:
            said = RawObject(said.spliced(replaced, ("usage",) if hides else (), added))
        return said.with_status(members) if members else said.text

    def _take(self, said: RawObject) -> list[object]:
        reasons = super(CompletionEditor, self)._take(said)
        self.searches = int(_SEARCHES.search(self.model) is not None)
        return reasons

    def _headed(self, chunk: RawObject) -> tuple[dict[str, bytes], bytes]:
        """Members of the head that was sent: those to replace in the chunk, and those to add."""
        if not self.continues or not isinstance(self.early, CompactionEvents):
            return {}, b""
        head = self.early.head.members
        for name in head:
            raw = chunk.raw(name) or b""
            if name not in self.provider and len(raw) <= LONGEST_NAME and chunk.value(name):
                self.provider[name] = raw
        replaced = {name: value for name, value in head.items() if name in chunk}
        missing = {name: value for name, value in head.items() if name not in chunk and "choices" in chunk}
        if (choices := chunk.raw("choices")) is not None and b'"role"' in choices:
            replaced["choices"] = _without_role(choices)
        return replaced, joined_members(missing)


def _may_be_notable(frames: bytes, start: int) -> bool:
    """Whether frames may say something of themselves: to search by pattern takes five times as long as to count."""
    if frames.find(b'"error"', start) != -1 or frames.find(b"[DONE]", start) != -1:
        return True
    for name in (b"finish_reason", b"usage"):
        count = frames.count(name, start)
        if count and count not in (frames.count(name + b'":null', start), frames.count(name + b'": null', start)):
            return True
    return False


def _without_role(choices: bytes) -> bytes:
    """The choices with the role taken out of choice 0's delta; all else keeps its bytes, and so does what is none."""
    try:
        elements = split_array(choices)
    except Unreadable:
        return choices
    for place, raw in enumerate(elements):
        with suppress(Unreadable):
            choice = RawObject(raw)
            if choice.value("index") == 0 and (delta := choice.raw("delta")) is not None:
                elements[place] = choice.spliced({"delta": RawObject(delta).spliced(remove=("role",))})
    return b"[" + b",".join(elements) + b"]"


class ChunkHead(Struct, frozen=True):
    id: str
    created: int
    """Unix seconds."""
    model: str

    @property
    def members(self) -> dict[str, bytes]:
        values = {"id": self.id, "created": self.created, "model": self.model}
        return {name: msgspec.json.encode(value) for name, value in values.items()}


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """The frames of this format.

    A member has the same type in every frame and in `context`: LangChain.js merges a stream's chunks, and throws if
    types differ.
    """

    BEGINNING = "chunk"

    head: ChunkHead
    """The head of our chunks; the provider's later chunks take it over."""

    def keep_alive(self) -> bytes:
        """An empty delta where our chunks are chunks already, else a comment."""
        return event(self._chunk({})) if self.begins_answer else KEEP_ALIVE

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if not self.begins_answer:
            return super(CompactionEvents, self).frame(kind, details)
        # No text: an empty one would stay in a message that has tool calls and none of its own.
        delta = {"role": "assistant", "content": None} if kind == "compaction_started" else {}
        added = b',"compaction":' + self.data(kind, details) + (b"," + members if members else b"")
        return event(self._chunk(delta)[:-1] + added + b"}")

    def _chunk(self, delta: Mapping[str, str | None]) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.head.id,
                "object": "chat.completion.chunk",
                "created": self.head.created,
                "model": self.head.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        )


def _chunk(
    head: Mapping[str, bytes], choices: Iterable[Mapping[str, bytes]], more: Mapping[str, bytes] | None = None
) -> bytes:
    held = b",".join([b"{%b}" % joined_members(choice) for choice in choices])
    return event(b"{%b}" % joined_members({**head, "choices": b"[%b]" % held, **(more or {})}))


def _numbered(number: int, call: bytes) -> bytes:
    """Add to a tool call its `index` among the calls of a stream."""
    known = RawObject(call)
    return call if "index" in known else known.spliced(add=b'"index":%d' % number)


def _members(value: RawObject, without: Container[str]) -> dict[str, bytes]:
    return {name: value.raw(name) or b"" for name in value.members if name not in without}
