"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came. Its `message_start` gets the status, its `message_delta`
everything; all other frames keep their bytes. Where a `message_start` of ours has begun the answer, the provider's is
taken out, and what it said of the prompt's size goes into the `message_delta`.

An answer in one piece gets everything at its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.wire.answers import LONGEST_NAME, AnswerEditor, joined, usage_in
from app.wire.members import RawObject, Unreadable
from app.wire.usage import Usage, says_window_full, text_of, usage_of

_BEGINNINGS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class MessageEditor(AnswerEditor):
    """One answer, streamed or whole."""

    NOTABLE = re.compile(rb'"(?:message_(?:start|delta|stop)|error)"')
    TEXT = re.compile(rb'"(?:text|thinking|partial_json)"\s*+:\s*+"((?:[^"\\]++|\\.)*+)"', re.DOTALL)

    begins_answer: bool = False
    """Whether a `message_start` of ours was sent before the provider's."""
    usage_said: dict[str, Any] = field(default_factory=dict, init=False)
    """Usage that the answer gave: a stream says it twice, and the second time counts."""

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model)

    def _read_whole(self, answer: RawObject) -> None:
        self._take_usage(answer)
        self.window_full = says_window_full(answer.value("stop_reason"))

    def _edited(self, said: RawObject) -> bytes:
        kind = said.value("type")
        if kind == "error" or said.value("error"):
            self.failed = True
            self.refusal = b"" if self.begun else said.text
            return said.text
        is_first = not self.begun
        self.begun = self.begun or kind in _BEGINNINGS
        if kind == "message_start":
            return self._start(said, is_first=is_first)
        if kind == "message_delta":
            return self._delta(said)
        self.ended = self.ended or kind == "message_stop"
        return said.text

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
        missing = joined({name: msgspec.json.encode(self.usage_said[name]) for name in known})
        if not missing:
            return given.text
        added = usage.spliced(add=missing)
        return given.spliced({"usage": added}) if "usage" in given else given.spliced(add=b'"usage":' + added)

    def _take_usage(self, given: RawObject) -> None:
        self.model = text_of(given, "model") or self.model
        if isinstance(usage := usage_in(given), dict):
            self.usage_said.update((name, said) for name, said in usage.items() if said is not None)


def _object(raw: bytes | None) -> RawObject:
    """An empty one for what is none."""
    try:
        return RawObject(raw or b"{}")
    except Unreadable:
        return RawObject(b"{}")
