"""Chat completions: add Steno's members to an answer on the way to the client.

Steno parses and edits only a few frames of a stream. All other frames keep their bytes.
1. The first chunk gets `context_status`.
2. The first chunk that finishes a choice gets all members, because many clients stop reading there.
3. If Steno began the stream, every later chunk gets the id, time and model that Steno sent, and loses the provider's
   role. Clients fail on a second role, time or model, and drop chunks with another id.

An unstreamed answer gets all members at its end. Unreadable answers pass unchanged.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec

from app.formats.answers import AnswerEditor
from app.formats.raw_json import RawObject, Unreadable, joined_members, objects_in, split_array
from app.formats.spec import CHAT_COMPLETIONS as SPEC
from app.formats.sse import KEEP_ALIVE, EarlyFrames, event, last_end

_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_USAGE = re.compile(rb'"usage"\s*:\s*[^n\s]')
_SEARCHES = re.compile(r"-search-(?:preview|api)")
"""Pattern of the names of models that search the web once per answer and charge for this."""


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """Steno's frames in Chat Completions.

    Each member has one type in all frames and in `context`, because LangChain.js merges a stream's chunks and fails if
    a member changes its type.
    """

    head: dict[str, object] = field(init=False)
    """Id, time in Unix seconds and model of Steno's chunks. The editor writes them into the provider's chunks."""

    def __post_init__(self) -> None:
        self.head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time()), "model": self.model}

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE if self.shape == "comment" else event(self._chunk({}))

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if self.shape == "comment":
            return super(CompactionEvents, self).frame(kind, details)
        # `None`, because an empty text would remain in a message with tool calls only.
        delta = {"role": "assistant", "content": None} if kind == "compaction_started" else {}
        return event(b"%b,%b}" % (self._chunk(delta)[:-1], self.told(kind, details, members)))

    def _chunk(self, delta: Mapping[str, str | None]) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.head["id"],
                "object": "chat.completion.chunk",
                **self.head,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        )


@dataclass(slots=True)
class CompletionEditor(AnswerEditor):
    SPEC = SPEC
    EARLY = CompactionEvents
    NOTABLE = re.compile(rb'"(?:finish_reason|usage)"\s*+:\s*+[^n\s]|"error"|\[DONE\]')
    CONTENT = re.compile(
        rb'"(?:content|reasoning_content|reasoning|refusal|text|arguments)"\s*+:\s*+(?:"[^"]|[\[{]\s*+[^\]}\s])'
        rb'|"(?:tool_calls|function_call|audio)"\s*+:\s*+[\[{]\s*+[^\]}\s]'
    )

    finished: set[int] = field(default_factory=set, init=False)
    """Indexes of the choices that have a finish reason."""

    @property
    def choices(self) -> int:
        return self.request.answer.choices if self.request else 1

    @property
    def complete(self) -> bool:
        """Whether the answer has ended: with finish reasons, `[DONE]` or an error."""
        return len(self.finished) >= self.choices or self.ended or self.failed

    @property
    def continues(self) -> bool:
        """Whether a chunk that Steno wrote began the answer."""
        return self.early is not None and self.early.shape == "chunk"

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
        # The first chunk gets the status. The first chunk that finishes a choice gets all members.
        members = self.context.report if finishes and not self.finished else b"" if self.begun else self.context.status
        self.begun = True
        if len(self.finished) < self.choices:  # The set is limited: a provider may send any number of choices.
            self.finished |= finishes
        if replaced or added or hides:
            said = RawObject(said.spliced(replaced, ("usage",) if hides else (), added))
        return said.with_status(members) if members else said.text

    def _take(self, said: RawObject) -> list[object]:
        reasons = super(CompletionEditor, self)._take(said)
        self.searches = int(_SEARCHES.search(self.model) is not None)
        return reasons

    def _headed(self, chunk: RawObject) -> tuple[dict[str, bytes], bytes]:
        """Return changes that give a chunk Steno's id, time and model: values to replace, and members to add."""
        if not self.continues or not isinstance(self.early, CompactionEvents):
            return {}, b""
        head = {name: msgspec.json.encode(value) for name, value in self.early.head.items()}
        replaced = {name: value for name, value in head.items() if name in chunk}
        missing = {name: value for name, value in head.items() if name not in chunk and "choices" in chunk}
        if (choices := chunk.raw("choices")) is not None and b'"role"' in choices:
            replaced["choices"] = _without_role(choices)
        return replaced, joined_members(missing)


def _may_be_notable(frames: bytes, start: int) -> bool:
    """Return whether `NOTABLE` may match. Counting is five times as fast as the pattern search."""
    if frames.find(b'"error"', start) != -1 or frames.find(b"[DONE]", start) != -1:
        return True
    for name in (b"finish_reason", b"usage"):
        count = frames.count(name, start)
        if count and count not in (frames.count(name + b'":null', start), frames.count(name + b'": null', start)):
            return True
    return False


def _without_role(choices: bytes) -> bytes:
    """Remove the role from the delta of choice 0; other bytes stay the same."""
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
