"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came. Its `message_start` gets the status, its `message_delta`
everything; all other frames keep their bytes. Where a `message_start` of ours has begun the answer, the provider's is
taken out, and what it said of the prompt's size goes into the `message_delta`.

An answer in one piece gets everything at its end. What is not what it should be passes as it came: the client's own
parser is the judge of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.wire.members import RawObject, Unreadable, holds_more_values
from app.wire.sse import MOST_VALUES, data_of, last_end
from app.wire.streamed import MOST_RAW
from app.wire.usage import LONGEST_USAGE, Usage, says_window_full, text_of, usage_of

_NOTABLE = re.compile(rb'"(?:message_(?:start|delta|stop)|error)"')
"""A frame without any of these says nothing new of itself."""
_TEXT = re.compile(rb'"(?:text|thinking|partial_json)"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
"""Possessive, because what it would go back to takes 500 MB for a frame of escapes."""
_BEGINNINGS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
LONGEST_TEXT = 1 << 20
"""Bytes of a frame whose text is counted."""
LONGEST_NAME = 1_000
"""Bytes of what a provider calls its answer, that we tell."""
PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class MessageEditor:
    """One answer, streamed or whole."""

    first_members: bytes
    finish_members: bytes
    begins_answer: bool = False
    """A `message_start` of ours was sent before the provider's."""
    usage_said: dict[str, Any] = field(default_factory=dict)
    """What the answer said of the tokens it cost: a stream says it twice, and the second time counts."""
    model: str = ""
    """What it called the model."""
    window_full: bool = False
    """It ended because the model's window was full."""
    text_bytes: int = 0
    """Of what the model wrote."""
    begun: bool = False
    """A frame of an answer came."""
    ended: bool = False
    """A reason to stop, or the end behind it, came; or a whole answer was read."""
    failed: bool = False
    """The provider ended the stream with an error frame."""
    refusal: bytes = b""
    """That error, where nothing else had come: in truth the request was refused."""
    provider: dict[str, bytes] = field(default_factory=dict)
    """What the provider's own beginning had for a head, where ours stood in its place."""

    @property
    def complete(self) -> bool:
        return self.ended or self.failed

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model)

    def whole(self, body: bytes) -> bytes:
        if holds_more_values(body, MOST_RAW):
            return body
        try:
            message = RawObject(body)
        except Unreadable:
            return body
        self.ended, self.text_bytes = True, len(body)
        self._take_usage(message)
        self.window_full = says_window_full(message.value("stop_reason"))
        return message.with_status(self.finish_members)

    def quiet(self, frames: bytes, start: int) -> int:
        if not self.begun:
            return start
        notable = _NOTABLE.search(frames, start)
        stop = len(frames) if notable is None else last_end(frames, start, notable.start())
        if stop - start <= LONGEST_TEXT:
            self.text_bytes += sum(map(len, _TEXT.findall(frames, start, stop)))
        return stop

    def edit(self, frame: bytes) -> bytes:
        data = data_of(frame)
        if data is None:
            return frame
        start, stop = data
        text = frame[start:stop]
        if len(text) <= LONGEST_TEXT:
            self.text_bytes += sum(len(written[1]) for written in _TEXT.finditer(text))
        if (self.begun and _NOTABLE.search(text) is None) or holds_more_values(text, MOST_VALUES):
            return frame
        try:
            given = RawObject(text)
        except Unreadable:
            return frame
        edited = self._edited(given, given.value("type"))
        if edited == text:
            return frame
        return frame[:start] + edited + frame[stop:] if edited else b""

    def _edited(self, given: RawObject, kind: object) -> bytes:
        """What is left of a frame's data; nothing of a second beginning."""
        if kind == "error" or given.value("error"):
            self.failed = True
            self.refusal = b"" if self.begun else given.text
            return given.text
        is_first = not self.begun
        self.begun = self.begun or kind in _BEGINNINGS
        if kind == "message_start":
            return self._start(given, is_first=is_first)
        if kind == "message_delta":
            return self._delta(given)
        self.ended = self.ended or kind == "message_stop"
        return given.text

    def _start(self, given: RawObject, *, is_first: bool) -> bytes:
        message = _object(given.raw("message"))
        self._take_usage(message)
        if self.begins_answer:
            named = {name: message.raw(name) or b"" for name in ("id", "model")}
            self.provider = {name: raw for name, raw in named.items() if 0 < len(raw) <= LONGEST_NAME}
            return b""
        return given.with_status(self.first_members) if is_first and self.first_members else given.text

    def _delta(self, given: RawObject) -> bytes:
        edited = self._with_prompt(given) if self.begins_answer else given.text
        self._take_usage(given)
        reason = _object(given.raw("delta")).value("stop_reason")
        if not reason or self.ended:
            return edited
        self.ended, self.window_full = True, says_window_full(reason)
        members = self._last_members()
        return RawObject(edited).with_status(members) if members else edited

    def _with_prompt(self, given: RawObject) -> bytes:
        """The frame with what the provider's beginning said of the prompt, where it does not say so itself."""
        usage = _object(given.raw("usage"))
        known = (name for name in PROMPT_PARTS if name in self.usage_said and name not in usage)
        missing = b",".join(b'"%b":%b' % (name.encode(), msgspec.json.encode(self.usage_said[name])) for name in known)
        if not missing:
            return given.text
        added = usage.spliced(add=missing)
        return given.spliced({"usage": added}) if "usage" in given else given.spliced(add=b'"usage":' + added)

    def _last_members(self) -> bytes:
        """With what the provider said of itself, where its beginning was taken out."""
        if not self.provider or not self.finish_members:
            return self.finish_members
        given = _object(b"{" + self.finish_members + b"}")
        named = b",".join(b'"%b":%b' % (name.encode(), raw) for name, raw in self.provider.items())
        context = _object(given.raw("context")).spliced(add=b'"provider":{' + named + b"}")
        return given.spliced({"context": context})[1:-1]

    def _take_usage(self, given: RawObject) -> None:
        self.model = text_of(given, "model") or self.model
        usage = given.value("usage") if len(given.raw("usage") or b"") <= LONGEST_USAGE else None
        if isinstance(usage, dict):
            self.usage_said.update((name, said) for name, said in usage.items() if said is not None)


def _object(raw: bytes | None) -> RawObject:
    """An empty one for what is none."""
    try:
        return RawObject(raw or b"{}")
    except Unreadable:
        return RawObject(b"{}")
