"""Answers in Messages: add Steno's members on the way to the client.

In a stream `message_start` gets `context_status`, and `message_delta` gets all members. Other frames keep their bytes.
If Steno's own `message_start` began the answer, Steno removes the provider's, and moves its usage to `message_delta`.

An unstreamed answer gets all members at its end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import StenoError
from app.formats.answers import AnswerEditor, object_in
from app.formats.raw_json import RawObject, joined_members
from app.formats.refusals import provider_error
from app.formats.requests import Headers, WireRequest
from app.formats.spec import MESSAGES as SPEC
from app.formats.sse import KEEP_ALIVE, EarlyFrames, EventShape, event
from app.formats.usage import PROMPT_PARTS, Usage

_BEGINNINGS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")


@dataclass(slots=True)
class MessageEditor(AnswerEditor):
    SPEC = SPEC
    NOTABLE = re.compile(rb'"(?:message_(?:start|delta|stop)|error)"')
    CONTENT = re.compile(
        rb'"(?:text|thinking|partial_json)"\s*+:\s*+"[^"]'
        rb'|"type"\s*+:\s*+"[a-z_]*(?:tool_use|tool_result|redacted_thinking|fallback|compaction|listing|upload)"'
    )

    @classmethod
    def begin_early(cls, request: WireRequest, shape: EventShape, compaction_id: str) -> MessageEvents:
        return MessageEvents(shape, compaction_id, f"msg_{secrets.token_hex(12)}", request.model)

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Return the body with Steno's error code as `code`, which is more precise than the type."""
        members: dict[str, Any] = {"type": type_of(error.status), "message": error.message, "code": error.code}
        return _envelope(members if error.param is None else {**members, "param": error.param})

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Return the body with the provider's message unchanged, because clients react to its words."""
        members = provider_error(status, headers, body, now)
        # `provider_error` fills in a missing type with one of OpenAI's types.
        given = b'"type"' in body
        left = {name: value for name, value in members.items() if value is not None}
        return _envelope(left if given else {**left, "type": type_of(status)})

    def failed_by(self, envelope: bytes) -> bytes:
        return event(envelope, "error")  # Clients recognise an error by the event's name.

    @property
    def usage(self) -> Usage | None:
        # The output tokens in `message_start` are only a placeholder.
        return super(MessageEditor, self).usage if self.ended else None

    def _edited(self, said: RawObject) -> bytes:
        kind = said.value("type")
        if kind == "error" or said.value("error"):
            self._fail(said.text)
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
        self._take(given)
        if self.continues:
            return b""
        return given.with_status(self.context.status) if is_first and self.context.status else given.text

    def _delta(self, given: RawObject) -> bytes:
        edited = self._with_prompt(given) if self.continues else given.text
        if not self._take(given) or self.ended:
            return edited
        self.ended = True
        return RawObject(edited).with_status(self.context.report) if self.context.report else edited

    def _with_prompt(self, given: RawObject) -> bytes:
        """Add the prompt tokens of the provider's `message_start` to the frame's usage, if missing there."""
        usage = object_in(given, "usage")
        known = (name for name in PROMPT_PARTS if name in self.usage_said and name not in usage)
        missing = joined_members({name: msgspec.json.encode(self.usage_said[name]) for name in known})
        if not missing:
            return given.text
        added = usage.spliced(add=missing)
        return given.spliced({"usage": added}) if "usage" in given else given.spliced(add=b'"usage":' + added)


PING = event(b'{"type": "ping"}', "ping")


@dataclass(slots=True)
class MessageEvents(EarlyFrames):
    """Frames of Messages.

    All clients accept a `ping` anywhere, even with additional members. More clients show members of a `message_start`.
    """

    message_id: str
    model: str

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE if self.shape == "comment" else PING

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if self.shape == "comment":
            return super(MessageEvents, self).frame(kind, details)
        name, frame = "ping", dict[str, Any]()
        if self.begins_answer and kind == "compaction_started":
            message = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model}
            ends = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
            name, frame = "message_start", {"message": {**message, "content": [], **ends}}
        told = msgspec.json.encode({"type": name, **frame, "compaction": msgspec.Raw(self.data(kind, details))})
        return event(RawObject(told).spliced(add=members), name)


TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Error types by status; see `type_of` for other statuses."""


def type_of(status: int) -> str:
    return TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")


def _envelope(details: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": "error", "error": details})
