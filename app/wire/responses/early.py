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

from app.wire.early import EarlyFrames
from app.wire.responses.frames import frame, new_id, response


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """The frames of this format."""

    model: str
    id: str = field(default_factory=new_id)
    """Id of the response that we begin; all later frames are given it."""
    number: int = 0
    """Number of the next frame."""
    outcome: bytes = b""
    """A member that says what became of the compaction, for the provider's first frame."""

    @property
    def begins(self) -> bool:
        """Whether the answer is begun by a frame of ours."""
        return self.shape == "start"

    def started(self, details: Mapping[str, Any]) -> bytes:
        return self._frame("compaction_started", details, "response.created")

    def _closing(self, kind: str, details: Mapping[str, Any], members: bytes) -> bytes:
        if self.shape == "comment":
            self.outcome = b'"compaction":' + self._data(kind, details)
        return self._frame(kind, details, "response.in_progress", members)

    def _frame(self, kind: str, details: Mapping[str, Any], type_: str, members: bytes = b"") -> bytes:
        if not self.begins:
            named = f"context.{kind}"
            return self._beside(kind, self._data(named if self.shape == "named" else kind, details), named)
        parsed = msgspec.json.decode(b"{" + members + b"}")
        compaction = msgspec.Raw(self._data(kind, details))
        begun = response(self.id, self.model, "in_progress", store=False)
        self.number += 1
        return frame(type_, self.number - 1, {"response": begun, "compaction": compaction, **parsed})
