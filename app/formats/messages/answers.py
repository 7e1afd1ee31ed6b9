"""The answer on its way to the client: our members go in, and what would be a second beginning comes out.

A stream passes frame by frame, nearly always as it came. Its `message_start` gets the status, its `message_delta`
everything; all other frames keep their bytes. Where a `message_start` of ours has begun the answer, the provider's is
taken out, and what it said of the prompt's size goes into the `message_delta`.

An answer in one piece gets everything at its end.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import StenoError
from app.formats.answers import LONGEST_NAME, AnswerEditor, object_in
from app.formats.messages.spec import SPEC
from app.formats.raw_json import RawObject, joined_members
from app.formats.refusals import provider_error
from app.formats.requests import Headers, WireRequest
from app.formats.sse import KEEP_ALIVE, EarlyFrames, EventShape, event
from app.formats.usage import Usage

_BEGINNINGS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
PROMPT_PARTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


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
        """Our code stands beside the type: types are fewer."""
        members: dict[str, Any] = {"type": type_of(error.status), "message": error.message, "code": error.code}
        return _envelope(members if error.param is None else {**members, "param": error.param})

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """The provider's words stay as they are: clients recover by them."""
        members = provider_error(status, headers, body, now)
        # What it left out was filled in as another format has it.
        given = b'"type"' in body
        left = {name: value for name, value in members.items() if value is not None}
        return _envelope(left if given else {**left, "type": type_of(status)})

    def failed_by(self, envelope: bytes) -> bytes:
        return event(envelope, "error")  # Without its name clients take it for no error.

    @property
    def usage(self) -> Usage | None:
        # What the beginning of a stream says of the answer's tokens stands for a number that is not known yet.
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
            message = object_in(given, "message")
            named = {name: message.raw(name) or b"" for name in ("id", "model")}
            self.provider = {name: raw for name, raw in named.items() if 0 < len(raw) <= LONGEST_NAME}
            return b""
        return given.with_status(self.context.status) if is_first and self.context.status else given.text

    def _delta(self, given: RawObject) -> bytes:
        edited = self._with_prompt(given) if self.continues else given.text
        if not self._take(given) or self.ended:
            return edited
        self.ended = True
        members = self._last_members()
        return RawObject(edited).with_status(members) if members else edited

    def _with_prompt(self, given: RawObject) -> bytes:
        """The frame with what the provider's beginning said of the prompt, where it does not say so itself."""
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
    """The frames of this format.

    All clients take a `ping` anywhere, with further members too; more of them show what stands in a `message_start`.
    """

    PREFIX = "context_"

    message_id: str
    model: str

    def keep_alive(self) -> bytes:
        """A comment where nothing else of ours is an event."""
        return PING if self.shape in ("chunk", "start") else KEEP_ALIVE

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if self.shape not in ("chunk", "start"):
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
"""Types by status; below 500 the others are faults of the request, and from there on of the server."""


def type_of(status: int) -> str:
    return TYPES.get(status) or ("invalid_request_error" if 400 <= status < 500 else "api_error")


def _envelope(details: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": "error", "error": details})
