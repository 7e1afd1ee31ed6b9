"""Compaction events on a chat stream, in the shapes that real clients were measured to accept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.wire import sse
from app.wire.format import EventShape


class ChunkHead(Struct, frozen=True):
    """What all chunks of one stream have in common."""

    id: str
    created: int
    """Unix seconds."""
    model: str

    @property
    def members(self) -> dict[str, bytes]:
        values = {"id": self.id, "created": self.created, "model": self.model}
        return {name: msgspec.json.encode(value) for name, value in values.items()}


class CompactionEvents(Struct, frozen=True):
    """Frames that tell of one compaction. `compaction_started` is sent once, and closed once with the same id.

    A member has one type in all of them and in `context`: LangChain.js merges the chunks of a stream, and throws where
    the types of two differ.
    """

    shape: EventShape
    compaction_id: str
    head: ChunkHead
    """Of our chunks; the provider's later chunks take it over."""

    def started(self, details: Mapping[str, Any]) -> bytes:
        # No text: an empty one would stay in a message that has tool calls and none of its own.
        return self._frame("compaction_started", details, {"role": "assistant", "content": None})

    def completed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._frame("compaction_completed", details, {}, members)

    def failed(self, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._frame("compaction_failed", details, {}, members)

    def keep_alive(self) -> bytes:
        """An empty delta where our chunks are chunks already, else a comment."""
        return sse.event(self._chunk({})) if self.shape == "chunk" else sse.KEEP_ALIVE

    @property
    def sent(self) -> ChunkHead | None:
        """What later chunks must begin with, None where no chunk of ours was sent."""
        return self.head if self.shape == "chunk" else None

    def _frame(
        self, kind: str, details: Mapping[str, Any], delta: Mapping[str, str | None], members: bytes = b""
    ) -> bytes:
        data = msgspec.json.encode({"type": kind, "id": self.compaction_id, **details})
        match self.shape:
            case "chunk":
                added = b',"compaction":' + data + (b"," + members if members else b"")
                return sse.event(self._chunk(delta)[:-1] + added + b"}")
            case "named":
                return sse.event(data, kind)
            case _:
                return b": " + kind.encode() + b" " + data + b"\n\n"

    def _chunk(self, delta: Mapping[str, str | None]) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.head.id,
                "object": "chat.completion.chunk",
                "created": self.head.created,
                "model": self.head.model,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        )
