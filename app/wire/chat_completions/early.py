"""Compaction events on a chat stream, in the shapes that real clients were measured to accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from app.wire.early import EarlyFrames
from app.wire.sse import KEEP_ALIVE, event


class ChunkHead(Struct, frozen=True):
    """Members that all chunks of one stream have in common."""

    id: str
    created: int
    """Unix seconds."""
    model: str

    @property
    def members(self) -> dict[str, bytes]:
        values = {"id": self.id, "created": self.created, "model": self.model}
        return {name: msgspec.json.encode(value) for name, value in values.items()}


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """The frames of this format.

    A member has one type in all of them and in `context`: LangChain.js merges the chunks of a stream, and throws where
    the types of two differ.
    """

    head: ChunkHead
    """The head of our chunks; the provider's later chunks take it over."""

    def started(self, details: Mapping[str, Any]) -> bytes:
        # No text: an empty one would stay in a message that has tool calls and none of its own.
        return self._frame("compaction_started", details, {"role": "assistant", "content": None})

    def keep_alive(self) -> bytes:
        """An empty delta where our chunks are chunks already, else a comment."""
        return event(self._chunk({})) if self.shape == "chunk" else KEEP_ALIVE

    @property
    def sent(self) -> ChunkHead | None:
        """The head that later chunks must have; None where no chunk of ours was sent."""
        return self.head if self.shape == "chunk" else None

    def _closing(self, kind: str, details: Mapping[str, Any], members: bytes) -> bytes:
        return self._frame(kind, details, {}, members)

    def _frame(
        self, kind: str, details: Mapping[str, Any], delta: Mapping[str, str | None], members: bytes = b""
    ) -> bytes:
        data = self._data(kind, details)
        if self.shape != "chunk":
            return self._beside(kind, data, kind)
        added = b',"compaction":' + data + (b"," + members if members else b"")
        return event(self._chunk(delta)[:-1] + added + b"}")

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
