"""Events about a compaction in a client's stream, before the provider answers.

Each format writes these events in frames of its own, with a subclass of `EarlyFrames` next to its `AnswerEditor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from app.formats.sse import KEEP_ALIVE

EventShape = Literal["chunk", "comment", "off"]
EVENT_SHAPES: tuple[EventShape, ...] = ("chunk", "comment", "off")
"""Ways to announce a compaction before the provider's first frame. `chunk`: the frames that the format's clients accept
best. `comment`: SSE comments; Gemini's format has none and uses the frames of `chunk`. `off`: no frame."""


@dataclass(slots=True)
class EarlyFrames:
    """Writer of a compaction's frames: `compaction_started`, then `compaction_completed` or `compaction_failed`."""

    shape: EventShape
    """Shape of Steno's frames; never `off`."""
    compaction_id: str
    model: str
    """Model in the client's request."""

    def keep_alive(self) -> bytes:
        """Return a frame without content, so that the client does not time out."""
        return KEEP_ALIVE

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:  # noqa: ARG002 - only a frame of the answer can hold them
        """Return a frame about a compaction. In most formats it is a comment, in some it has data. `members`: see
        `ContextMembers.status`."""
        return b": %b %b\n\n" % (kind.encode(), self.data(kind, details))

    def told(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        """Return the JSON members of a frame: `compaction` with the event, and `members`."""
        return b",".join(filter(None, (b'"compaction":' + self.data(kind, details), members)))

    def data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
