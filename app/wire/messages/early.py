"""Compaction events on a stream of Messages, in the shapes that real clients were measured to accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.wire import sse
from app.wire.format import EventShape
from app.wire.members import RawObject

PING = sse.event(b'{"type": "ping"}', "ping")


class MessageEvents(Struct, frozen=True):
    """Frames that tell of one compaction. `compaction_started` is sent once, and closed once with the same id.

    All clients take a `ping` anywhere, with further members too; more of them show what stands in a `message_start`.
    """

    shape: EventShape
    compaction_id: str
    message_id: str
    model: str

    @property
    def begins_answer(self) -> bool:
        """Whether a `message_start` of ours was sent: a second one breaks clients."""
        return self.shape == "start"

    def started(self, details: Mapping[str, Any]) -> bytes:
        if not self.begins_answer:
            return self._frame("compaction_started", details)
        message = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model, "content": []}
        ends = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        start = {"type": "message_start", "message": message | ends}
        return sse.event(self._with("compaction_started", details, start), "message_start")

    def completed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._frame("compaction_completed", details, members)

    def failed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._frame("compaction_failed", details, members)

    def keep_alive(self) -> bytes:
        """A comment where nothing else of ours is an event."""
        return PING if self.shape in ("chunk", "start") else sse.KEEP_ALIVE

    def _frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        match self.shape:
            case "chunk" | "start":
                ping = RawObject(self._with(kind, details, {"type": "ping"})).spliced(add=members)
                return sse.event(ping, "ping")
            case "named":
                return sse.event(self._data(kind, details), f"context_{kind}")
            case _:
                return b": " + kind.encode() + b" " + self._data(kind, details) + b"\n\n"

    def _with(self, kind: str, details: Mapping[str, Any], frame: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({**frame, "compaction": msgspec.Raw(self._data(kind, details))})

    def _data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
