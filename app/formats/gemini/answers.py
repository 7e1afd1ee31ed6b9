"""Gemini's answers: add Steno's members on the way to the client.

Each event of a stream is a whole answer with the usage so far. The last event has a finish reason and the final usage.
Steno adds `context_status` to the first event, and all members to the last. Clients parse every line as data, so Steno
sends no comments or named events. Clients drop a turn if one of its events has no part, so Steno's events have an empty
text. Without `alt=sse` a stream is one array of answers. Steno then edits the first and the last answer of the array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.errors import StenoError
from app.formats.answers import AnswerEditor
from app.formats.raw_json import RawObject, Unreadable, holds_more_values, split_array
from app.formats.refusals import provider_error
from app.formats.requests import Headers
from app.formats.spec import GEMINI as SPEC
from app.formats.sse import MOST_VALUES, EarlyFrames, event


@dataclass(slots=True)
class GeminiEvents(EarlyFrames):
    """Steno's frames in Gemini's format: answers with an empty text. All clients accept such frames."""

    def keep_alive(self) -> bytes:
        return self._with(b"")

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._with(b"," + self.told(kind, details, members))

    @staticmethod
    def _with(members: bytes) -> bytes:
        return event(b'{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"index":0}]%b}' % members)


@dataclass(slots=True)
class GeminiEditor(AnswerEditor):
    SPEC = SPEC
    EARLY = GeminiEvents
    NOTABLE = re.compile(rb'"(?:finish_?[rR]eason|prompt_?[fF]eedback|error)"')
    CONTENT = re.compile(
        rb'"text"\s*+:\s*+"[^"]|"(?:function_?[cC]all|inline_?[dD]ata|executable_?[cC]ode|tool_?[cC]all)"'
    )

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Return the body of one of Steno's errors, with the error code in `details`."""
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code, "domain": "steno"}
        return _envelope(error.status, {"message": error.message, "details": [info]})

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Return the body with the provider's code, or else a code of at least 400, which clients treat as an error."""
        said = provider_error(status, headers, body, now)
        names = ("message", "status", "details")
        given = {name: said[name] for name in names if isinstance(said.get(name), str | list)}
        return _envelope(said["code"] if isinstance(said["code"], int) else max(status, 400), given)

    def whole(self, body: bytes) -> bytes:
        if not body.lstrip().startswith(b"["):
            return super(GeminiEditor, self).whole(body)
        try:
            elements = [] if holds_more_values(body, MOST_VALUES) else split_array(body)
            pieces, place = [], 0
            for element in elements:
                start = body.index(element, place)
                pieces += [body[place:start], self._edited(RawObject(element))]
                place = start + len(element)
        except Unreadable:
            return body
        self._look_for_content(body)
        return b"".join((*pieces, body[place:]))

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said:
            self._fail(said.text)
            return said.text
        ends = bool(self._take(said)) and not self.ended
        members = self.context.report if ends else b"" if self.begun else self.context.status
        self.begun, self.ended = True, self.ended or ends
        return said.with_status(members) if members else said.text


STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Error names by status; see `_envelope` for other statuses."""


def _envelope(status: int, members: Mapping[str, Any]) -> bytes:
    word = STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return msgspec.json.encode({"error": {"code": status, "status": word, **members}})
