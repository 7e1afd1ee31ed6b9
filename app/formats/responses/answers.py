"""Answers in Responses: add Steno's members on the way to the client.

The first frame of a stream gets `context_status`, and the frame that ends the response gets all members. Other frames
keep their bytes. A provider opens its stream before it checks the prompt. So an answer begins with its first item, and
an error before the first item is a refusal.

Sequence numbers must ascend, and a stream has one response id. If Steno began the stream, every later frame gets the
next number and Steno's id. If Steno ends a provider's stream with an error, the error continues its numbers and its id.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec

from app.formats.answers import AnswerEditor, object_in
from app.formats.raw_json import RawObject, object_of, objects_in
from app.formats.requests import WireRequest
from app.formats.spec import RESPONSES as SPEC
from app.formats.sse import EarlyFrames, EventShape, event

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
"""Members that client SDKs require in every response."""
FAILED = "server_error"
"""Code for an error without a code."""


def new_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def response(id_: str, model: str, status: str, **members: Any) -> dict[str, Any]:
    """Return a response without output, with all required members."""
    head = {"id": id_, "object": "response", "created_at": int(time()), "status": status, "model": model}
    return {**head, **UNSAID, **members}


def frame(type_: str, number: int, members: Mapping[str, Any]) -> bytes:
    return event(msgspec.json.encode({"type": type_, "sequence_number": number, **members}), type_)


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    model: str
    id: str = field(default_factory=new_id)
    """Id of the response that Steno begins. The editor writes this id into all later frames."""
    number: int = 0
    outcome: bytes = b""
    """JSON member with the compaction's result, for the provider's first frame."""

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        opens = kind == "compaction_started"
        if self.shape == "comment":
            if not opens:
                self.outcome = b'"compaction":' + self.data(kind, details)
            return super(CompactionEvents, self).frame(kind, details)
        parsed = msgspec.json.decode(b"{" + members + b"}")
        compaction = msgspec.Raw(self.data(kind, details))
        begun = response(self.id, self.model, "in_progress", store=False)
        self.number += 1
        type_ = "response.created" if opens else "response.in_progress"
        return frame(type_, self.number - 1, {"response": begun, "compaction": compaction, **parsed})


BEGINNINGS = frozenset({"response.created", "response.in_progress", "response.queued"})
COUNTLESS = frozenset({*BEGINNINGS, "keepalive", "ping"})
"""Types of frames that are not part of an answer."""
ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_NUMBER = re.compile(rb'"sequence_number"\s*+:\s*+([0-9]{1,9})')
_LAST_NUMBER = b'"sequence_number"'
LONGEST_ID = 1_000


@dataclass(slots=True)
class ResponsesEditor(AnswerEditor):
    SPEC = SPEC
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

    def __post_init__(self) -> None:
        if self.continues and isinstance(self.early, CompactionEvents):
            self._told, self._id, self._next = True, self.early.id, self.early.number

    @classmethod
    def begin_early(cls, request: WireRequest, shape: EventShape, compaction_id: str) -> CompactionEvents:
        """Return a writer. It writes comments for `chunk`, and for `start` if the provider stores the answer."""
        quiet = shape == "chunk" or (shape == "start" and request.source.value("store") is not False)
        return CompactionEvents("comment" if quiet else shape, compaction_id, request.model)

    def failed_by(self, envelope: bytes) -> bytes:
        """Return an `error` frame and a `response.failed` frame. Some clients show only the second. The `error` frame
        has flat and nested members, because clients read either."""
        error: dict[str, Any] = msgspec.json.decode(envelope)["error"]
        flat = {name: error.get(name) for name in ("code", "message", "param")}
        cause = {"code": error.get("code") or FAILED, "message": flat["message"]}
        failed = response(self._id or new_id(), "", "failed", error=cause)
        members = msgspec.json.decode(b"{%b}" % (self.context.report or self._first_members()))
        begun = frame("error", self._next, {**flat, "error": error})
        return begun + frame("response.failed", self._next + 1, {"response": failed, **members})

    def quiet(self, frames: bytes, start: int) -> int:
        if self.continues:
            return start
        stop = super(ResponsesEditor, self).quiet(frames, start)
        if (place := frames.rfind(_LAST_NUMBER, start, stop)) != -1 and (found := _NUMBER.match(frames, place)):
            self._next = int(found[1]) + 1
        return stop

    def _passes(self, text: bytes) -> bool:
        if self.continues or not super(ResponsesEditor, self)._passes(text):
            return False
        if found := _NUMBER.search(text):
            self._next = int(found[1]) + 1
        return True

    def _edited(self, said: RawObject) -> bytes:
        type_ = said.value("type")
        if type_ in BEGINNINGS and self.continues:
            return b""
        replaced = self._in_place(said)
        if type_ == "error" or (type_ not in COUNTLESS | ENDS and said.value("error")):
            self._fail(said.text)
            return said.spliced(replaced)
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
        return RawObject(said.spliced(replaced)).with_status(members) if members else said.spliced(replaced)

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

    def _in_place(self, said: RawObject) -> dict[str, bytes]:
        """Track number and id of a frame. Return the members to replace, so that the frame continues Steno's stream."""
        replaced: dict[str, bytes] = {}
        if isinstance(number := said.value("sequence_number"), int):
            if self.continues and number != self._next:
                replaced["sequence_number"] = b"%d" % self._next
            self._next = (self._next if self.continues else number) + 1
        known = object_in(said, "response")
        if isinstance(id_ := known.value("id"), str) and len(id_) <= LONGEST_ID:
            if self.continues and id_ != self._id:
                replaced["response"] = known.spliced({"id": msgspec.json.encode(self._id)})
            self._id = self._id or id_
        return replaced
