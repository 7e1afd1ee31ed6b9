"""Threads: conversations that the provider keeps, so that a caller sends only what is new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.simulator.messages.refusals import Refusal
from lab.simulator.refusals import Refused

Json = Mapping[str, Any]

MOST_KEPT = 10_000
_INHERITED = ("system", "tools")


class Threads:
    """Messages up to each answer, by the answer's id; each goes on once. Not for several threads of execution."""

    def __init__(self) -> None:
        self._kept: dict[str, Json] = {}
        self._continued: set[str] = set()

    def whole(self, request: Json) -> Json:
        """The request with all that it goes on from."""
        thread = request.get("thread")
        if not isinstance(thread, dict) or thread.get("type") != "continue":
            return request
        before = self._before(str(thread.get("previous_message_id")))
        inherited = {name: before[name] for name in _INHERITED if name in before and name not in request}
        return {**inherited, **request, "messages": [*before["messages"], *(request.get("messages") or ())]}

    def _before(self, message_id: str) -> Json:
        before = self._kept.get(message_id)
        if before is None:
            text = f"thread.previous_message_id: no thread has a response with id {message_id}"
            raise Refused(Refusal(text, "not_found_error", 404, "thread_not_found"))
        if message_id in self._continued:
            text = f"thread.previous_message_id: the thread already goes on from {message_id}"
            raise Refused(Refusal(text, error_code="thread_already_continued"))
        return before

    def keep(self, request: Json, message_id: str, blocks: Sequence[Json]) -> None:
        """Keep what was said up to an answer; nothing of a request that asks for no thread."""
        thread = request.get("thread")
        if thread is None:
            return
        if thread["type"] == "continue":
            self._continued.add(thread["previous_message_id"])
        self._kept[message_id] = {
            **{name: request[name] for name in _INHERITED if name in request},
            "messages": [*request["messages"], {"role": "assistant", "content": list(blocks)}],
        }
        if len(self._kept) > MOST_KEPT:
            gone = next(iter(self._kept))
            del self._kept[gone]
            self._continued.discard(gone)
