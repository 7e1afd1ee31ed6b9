"""Answers in Messages: add Steno's members on the way to the client.

In a stream, `message_start` gets `context_status`, and `message_delta` gets `context_status` and `context`. All other
frames keep their bytes. An unstreamed answer gets both members at its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import StenoError
from app.formats.answers import AnswerEditor
from app.formats.compaction_events import EarlyFrames
from app.formats.messages.messages import SPEC
from app.formats.raw_json import RawObject
from app.formats.refusals import provider_error
from app.formats.requests import Headers
from app.formats.sse import KEEP_ALIVE, event
from app.formats.usage import Usage

_BEGINNINGS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")


PING = event(b'{"type": "ping"}', "ping")


@dataclass(slots=True)
class MessageEvents(EarlyFrames):
    """Steno's frames in Messages: `ping` events. All clients accept `ping` anywhere, even with additional members."""

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE if self.shape == "comment" else PING

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if self.shape == "comment":
            return super(MessageEvents, self).frame(kind, details)
        return event(b'{"type":"ping",%b}' % self.told(kind, details, members), "ping")


@dataclass(slots=True)
class MessageEditor(AnswerEditor):
    SPEC = SPEC
    EARLY = MessageEvents
    NOTABLE = re.compile(rb'"(?:message_(?:start|delta|stop)|error)"')
    CONTENT = re.compile(
        rb'"(?:text|thinking|partial_json)"\s*+:\s*+"[^"]'
        rb'|"type"\s*+:\s*+"[a-z_]*(?:tool_use|tool_result|redacted_thinking|fallback|compaction|listing|upload)"'
    )

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Return the body of one of Steno's errors. Its `code` is more precise than Anthropic's types."""
        members: dict[str, Any] = {"type": type_of(error.status), "message": error.message, "code": error.code}
        return _envelope(members if error.param is None else {**members, "param": error.param})

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Return the body of a refusal. The provider's message stays unchanged, because clients react to its words."""
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
        members = b""
        if kind == "message_start":
            self._take(said)
            members = b"" if self.begun else self.context.status
        elif kind == "message_delta" and self._take(said) and not self.ended:
            self.ended, members = True, self.context.report
        self.begun = self.begun or kind in _BEGINNINGS
        self.ended = self.ended or kind == "message_stop"
        return said.with_status(members) if members else said.text


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
