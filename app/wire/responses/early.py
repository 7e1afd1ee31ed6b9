"""Compaction events on a stream, in the shapes that real clients were measured to accept.

Official helpers throw on every event before `response.created`, so that comments are the only frames of ours that no
client minds. What became of the compaction stands on the provider's own first frame then. A stream that we begin
ourselves (`start`) shows more, but the id that a client sees is of our making, and means nothing to the provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.wire import sse
from app.wire.format import EventShape
from app.wire.responses.frames import frame, new_id, response


@dataclass(slots=True)
class CompactionEvents:
    """Frames that tell of one compaction. `compaction_started` is sent once, and closed once with the same id."""

    shape: EventShape
    compaction_id: str
    model: str
    id: str = field(default_factory=new_id)
    """Of the response that we begin; all later frames are given it."""
    number: int = 0
    """Of the next frame."""
    outcome: bytes = b""
    """A member that says what became of the compaction, for the provider's first frame."""

    @property
    def begins(self) -> bool:
        """Whether the answer is begun by a frame of ours."""
        return self.shape == "start"

    def started(self, details: Mapping[str, Any]) -> bytes:
        return self._frame("compaction_started", details, "response.created")

    def completed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._closing("compaction_completed", details, members)

    def failed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._closing("compaction_failed", details, members)

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def _closing(self, kind: str, details: Mapping[str, Any], members: bytes) -> bytes:
        if self.shape == "comment":
            self.outcome = b'"compaction":' + self._data(kind, details)
        return self._frame(kind, details, "response.in_progress", members)

    def _frame(self, kind: str, details: Mapping[str, Any], type_: str, members: bytes = b"") -> bytes:
        match self.shape:
            case "start":
                parsed = msgspec.json.decode(b"{" + members + b"}")
                compaction = msgspec.Raw(self._data(kind, details))
                begun = response(self.id, self.model, "in_progress", store=False)
                self.number += 1
                return frame(type_, self.number - 1, {"response": begun, "compaction": compaction, **parsed})
            case "named":
                named = f"context.{kind}"
                return sse.event(self._data(named, details), named)
            case _:
                return b": " + kind.encode() + b" " + self._data(kind, details) + b"\n\n"

    def _data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
