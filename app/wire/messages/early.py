"""Compaction events on a stream of Messages, in the shapes that real clients were measured to accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from app.wire.early import EarlyFrames
from app.wire.members import RawObject
from app.wire.sse import KEEP_ALIVE, event

PING = event(b'{"type": "ping"}', "ping")


@dataclass(slots=True)
class MessageEvents(EarlyFrames):
    """The frames of this format.

    All clients take a `ping` anywhere, with further members too; more of them show what stands in a `message_start`.
    """

    message_id: str
    model: str

    @property
    def begins_answer(self) -> bool:
        """Whether a `message_start` of ours was sent: a second one breaks clients."""
        return self.shape == "start"

    def started(self, details: Mapping[str, Any]) -> bytes:
        if not self.begins_answer:
            return self._closing("compaction_started", details, b"")
        message = {"id": self.message_id, "type": "message", "role": "assistant", "model": self.model, "content": []}
        ends = {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        start = {"type": "message_start", "message": message | ends}
        return event(self._with("compaction_started", details, start), "message_start")

    def keep_alive(self) -> bytes:
        """A comment where nothing else of ours is an event."""
        return PING if self.shape in ("chunk", "start") else KEEP_ALIVE

    def _closing(self, kind: str, details: Mapping[str, Any], members: bytes) -> bytes:
        if self.shape not in ("chunk", "start"):
            return self._beside(kind, self._data(kind, details), f"context_{kind}")
        return event(RawObject(self._with(kind, details, {"type": "ping"})).spliced(add=members), "ping")

    def _with(self, kind: str, details: Mapping[str, Any], frame: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({**frame, "compaction": msgspec.Raw(self._data(kind, details))})
