"""Answers: what the model says, as Anthropic writes it, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.tokens.estimate import Count
from lab.simulator.format import Frame
from lab.simulator.messages.binding import seal, whole_prefix
from lab.simulator.messages.requests import AcceptedRequest
from lab.simulator.replies import pieces, spoken
from lab.simulator.script import Fault

Json = Mapping[str, Any]

THOUGHT = "Let me think about what is asked here."
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One message, before it is written."""

    sequence: int
    request: AcceptedRequest
    fault: Fault
    text: str | None
    blocks: Sequence[Json]
    stop_reason: str
    stop_sequence: str | None
    usage: Json

    @property
    def message_id(self) -> str:
        return f"msg_{self.sequence:024d}"

    def whole(self) -> Json:
        return {**self._head(self.blocks, self.stop_reason, self.stop_sequence), "usage": self.usage}

    def frames(self) -> Iterator[Frame]:
        for event in self._events():
            yield Frame(event["type"], {**event})

    def _events(self) -> Iterator[dict[str, Any]]:
        message = {**self._head((), None, None), "usage": {**self.usage, "output_tokens": 1}}
        yield {"type": "message_start", "message": message}
        for index, block in enumerate(self.blocks):
            yield {"type": "content_block_start", "index": index, "content_block": _begun(block)}
            if not index:
                yield {"type": "ping"}
            for delta in _deltas(block, self.fault.chunk_size):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": self.usage, **self._managed()}
        yield {"type": "message_stop"}

    def _head(self, blocks: Sequence[Json], reason: str | None, sequence: str | None) -> dict[str, Any]:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": list(blocks),
            "stop_reason": reason,
            "stop_sequence": sequence,
            **(self._managed() if reason is not None else {}),
        }

    def _managed(self) -> Json:
        """The report on edits of the context: none was due."""
        managed = self.request.request.get("context_management")
        return {} if managed is None else {"context_management": {"applied_edits": []}}


def compose(sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's limit and the window."""
    limit = min(request.max_tokens or request.room, request.room)
    said, cut = spoken(fault, text, limit, count)
    stop = next((each for each in request.request.get("stop_sequences") or () if said and each in said), None)
    if said and stop is not None:
        said = said[: said.index(stop)]
    blocks = _thinking(request, fault)
    blocks += [{"type": "text", "text": said}] if said else []
    blocks += _calls(sequence, fault)
    at_window = cut and request.room < (request.max_tokens or 0)
    reason = (
        "tool_use" if fault.tool_calls
        else "stop_sequence" if stop is not None
        else "model_context_window_exceeded" if at_window
        else "max_tokens" if cut
        else "end_turn"
    )  # fmt: skip
    told = {**_usage(request, blocks, count), **(fault.usage or {})}
    return Answer(sequence, request, fault, said, blocks, fault.finish_reason or reason, stop, told)


def _calls(sequence: int, fault: Fault) -> list[Json]:
    return [
        {
            "type": "tool_use",
            "id": call.id or f"toolu_{sequence:06d}{index}",
            "name": call.name,
            "input": msgspec.json.decode(call.arguments),
        }
        for index, call in enumerate(fault.tool_calls)
    ]


def _thinking(request: AcceptedRequest, fault: Fault) -> list[Json]:
    if fault.thinking is None and not request.thinks:
        return []
    omitted = (request.request.get("thinking") or {}).get("display") == "omitted"
    text = "" if omitted else fault.thinking or THOUGHT
    return [{"type": "thinking", "thinking": text, "signature": seal(whole_prefix(request.request), text)}]


def _usage(request: AcceptedRequest, blocks: Sequence[Json], count: Count) -> Json:
    written, hour = request.cache_written, request.cache_written_hour
    thought = sum(count(block["thinking"]) for block in blocks if block["type"] == "thinking")
    return {
        "input_tokens": request.prompt_tokens - request.cache_read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": request.cache_read,
        "cache_creation": {"ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": sum(count(part) for block in blocks for part in _written(block)),
        **({"output_tokens_details": {"thinking_tokens": thought}} if thought else {}),
        "service_tier": "standard",
    }


def _written(block: Json) -> Iterator[str]:
    if block["type"] == "tool_use":
        yield block["name"]
        yield msgspec.json.encode(block["input"]).decode()
    else:
        yield block.get("text") or block.get("thinking") or ""


def _begun(block: Json) -> Json:
    match block["type"]:
        case "text":
            return {**block, "text": ""}
        case "thinking":
            return {**block, "thinking": "", "signature": ""}
        case _:
            return {**block, "input": {}}


def _deltas(block: Json, size: int) -> Iterator[Json]:
    kind, member = _DELTAS[block["type"]]
    if block["type"] == "tool_use":
        yield {"type": kind, member: ""}
        written = msgspec.json.encode(block["input"]).decode()
    else:
        written = block[member]
    for piece in pieces(written, size):
        yield {"type": kind, member: piece}
    if block["type"] == "thinking":
        yield {"type": "signature_delta", "signature": block["signature"]}
