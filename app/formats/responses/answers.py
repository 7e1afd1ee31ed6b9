"""Answers in Responses: add Steno's members on the way to the client.

The first frame of a stream gets `context_status`. The frame that ends the response gets `context_status` and `context`.
Other frames keep their bytes. A provider opens its stream before it checks the prompt. So Steno treats an error before
the first item of the answer as a refusal.

Sequence numbers must ascend, and a stream has one response id. If Steno ends a provider's stream with an error, the
error gets the next number and the id of this stream.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec

from app.formats.answers import AnswerEditor
from app.formats.compaction_events import EarlyFrames
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in
from app.formats.responses.items import SPEC
from app.formats.sse import event

UNSAID: dict[str, Any] = {
    **dict.fromkeys(
        ("error", "incomplete_details", "instructions", "max_output_tokens", "temperature", "top_p", "usage")
    ),
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}
"""Members that client SDKs require in every response, with their default values."""
FAILED = "server_error"
"""Error code for an error that has no code."""


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """Steno's frames in Responses: comments, because SDKs fail on other frames before `response.created`."""

    outcome: bytes = b""
    """JSON member with the compaction's result, for the provider's first frame."""

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:  # noqa: ARG002 - the provider's frame holds them
        if kind != "compaction_started":
            self.outcome = self.told(kind, details)
        return super(CompactionEvents, self).frame(kind, details)


COUNTLESS = frozenset({"response.created", "response.in_progress", "response.queued", "keepalive", "ping"})
"""Types of frames that are not part of an answer."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_NUMBER = re.compile(rb'"sequence_number"\s*+:\s*+([0-9]{1,9})')
_LAST_NUMBER = b'"sequence_number"'
LONGEST_ID = 1_000


@dataclass(slots=True)
class ResponsesEditor(AnswerEditor):
    SPEC = SPEC
    EARLY = CompactionEvents
    NOTABLE = re.compile(
        rb'"type"\s*+:\s*+"(?:response\.(?:completed|incomplete|failed|created)|error)"|"error"\s*+:\s*+\{'
    )
    CONTENT = re.compile(
        rb'"(?:delta|text|refusal)"\s*+:\s*+"[^"]|"type"\s*+:\s*+"[a-z_]*(?:_call|_approval_request|compaction|program)"'
    )

    _told: bool = field(default=False, init=False)
    """Whether a frame with `context_status` was sent."""
    _id: str = field(default="", init=False)
    _next: int = field(default=0, init=False)

    def failed_by(self, envelope: bytes) -> bytes:
        """Return an `error` frame and a `response.failed` frame. Some clients show only the second. The `error` frame
        has the members twice, flat and nested, because some clients read the flat ones and others the nested ones."""
        error: dict[str, Any] = msgspec.json.decode(envelope)["error"]
        flat = {name: error.get(name) for name in ("code", "message", "param")}
        cause = {"code": error.get("code") or FAILED, "message": flat["message"]}
        id_ = self._id or f"resp_{secrets.token_hex(24)}"
        head = {"id": id_, "object": "response", "created_at": int(time()), "status": "failed", "model": ""}
        members = msgspec.json.decode(b"{%b}" % (self.context.report or self._first_members()))
        frames = {
            "error": {**flat, "error": error},
            "response.failed": {"response": {**head, **UNSAID, "error": cause}, **members},
        }
        return b"".join(
            event(msgspec.json.encode({"type": type_, "sequence_number": number, **held}), type_)
            for number, (type_, held) in enumerate(frames.items(), self._next)
        )

    def quiet(self, frames: bytes, start: int) -> int:
        stop = super(ResponsesEditor, self).quiet(frames, start)
        if (place := frames.rfind(_LAST_NUMBER, start, stop)) != -1 and (found := _NUMBER.match(frames, place)):
            self._next = int(found[1]) + 1
        return stop

    def _passes(self, text: bytes) -> bool:
        if not super(ResponsesEditor, self)._passes(text):
            return False
        if found := _NUMBER.search(text):
            self._next = int(found[1]) + 1
        return True

    def _edited(self, said: RawObject) -> bytes:
        type_ = said.value("type")
        if isinstance(number := said.value("sequence_number"), int):
            self._next = number + 1
        if not self._id and isinstance(id_ := object_in(said, "response").value("id"), str) and len(id_) <= LONGEST_ID:
            self._id = id_
        if type_ == "error" or (type_ not in COUNTLESS | ENDS and said.value("error")):
            self._fail(said.text)
            return said.text
        members, self._told = self._first_members(), True
        if type_ in ENDS:
            self.ended = True
            self._take(said)
            if type_ == "response.failed":
                self._fail(b'{"error":%b}' % (object_in(said, "response").raw("error") or b"null"))
            else:
                self.begun = self.begun or "response" in said
            members = self.context.report or members
        else:
            self.begun = self.begun or type_ not in COUNTLESS
        return said.with_status(members) if members else said.text

    def _first_members(self) -> bytes:
        outcome = self.early.outcome if isinstance(self.early, CompactionEvents) else b""
        return b"" if self._told else b",".join(filter(None, (outcome, self.context.status)))

    def _take(self, said: RawObject) -> list[object]:
        response = object_in(said, "response") if "response" in said else said
        if b"web_search_call" in (response.raw("output") or b""):
            calls = (item for item in objects_in(response.value("output")) if item.get("type") == "web_search_call")
            # Opening a page is free.
            self.searches = sum(object_of(call.get("action")).get("type", "search") == "search" for call in calls)
        return super(ResponsesEditor, self)._take(said)


def object_in(said: RawObject, name: str) -> RawObject:
    """Return a member that is an object, or else an empty object."""
    try:
        return RawObject(said.raw(name) or b"{}")
    except Unreadable:
        return RawObject(b"{}")
