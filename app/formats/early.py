"""Early frames: what Steno says on a stream before the provider does, as far as all formats say it alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from app.formats.sse import KEEP_ALIVE, event

EventShape = Literal["chunk", "start", "named", "comment", "off"]
EVENT_SHAPES: tuple[EventShape, ...] = ("chunk", "start", "named", "comment", "off")
"""How a stream announces a compaction before the provider's first frame: in the format's own safest frame, in one that
begins the answer, where more clients see it, as an event with a name, as a comment, or not at all: then nothing is sent
before the provider's status is known."""


@dataclass(slots=True)
class EarlyFrames:
    """Frames that tell of one compaction. `compaction_started` is sent once, and closed once with the same id.

    The editor of the same stream is given them: where a frame of ours has begun the answer, it takes out of the
    provider's what would begin it a second time.
    """

    PREFIX: ClassVar[str] = ""
    """Beginning of the names of events beside the answer."""

    shape: EventShape
    compaction_id: str

    def started(self, details: Mapping[str, Any]) -> bytes:
        """The frame that opens the compaction."""
        return self._closing("compaction_started", details, b"")

    def keep_alive(self) -> bytes:
        """A frame that says nothing new, so that no client takes the silence for the end."""
        return KEEP_ALIVE

    def completed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        """The frame that closes a compaction that was made. `members` as in `ContextMembers.status`."""
        return self._closing("compaction_completed", details, members)

    def failed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        """The frame that closes a compaction that failed."""
        return self._closing("compaction_failed", details, members)

    def _closing(self, kind: str, details: Mapping[str, Any], members: bytes) -> bytes:  # noqa: ARG002 - only a frame of the answer has room for them
        return self._beside(kind, details)

    def _beside(self, kind: str, details: Mapping[str, Any]) -> bytes:
        """A frame that is no part of the answer: an event with a name, or a comment."""
        data = self._data(kind, details)
        return event(data, self.PREFIX + kind) if self.shape == "named" else b": %b %b\n\n" % (kind.encode(), data)

    def _data(self, kind: str, details: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
