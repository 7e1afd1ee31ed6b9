"""Answers: what the model says, as Anthropic writes it, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.tokens.estimate import Count
from lab.simulator.format import Frame
from lab.simulator.messages.binding import seal, sign_compaction, whole_prefix
from lab.simulator.messages.requests import AcceptedRequest, conversation_of
from lab.simulator.replies import pieces, spoken, summary_of
from lab.simulator.script import Fault

Json = Mapping[str, Any]

THOUGHT = "Let me think about what is asked here."
SUMMARY_WORDS = 200
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
    usage: Json | None
    before: Json | None
    """The usage that a stream begins with, where a compaction makes it another one."""

    @property
    def message_id(self) -> str:
        return f"msg_{self.sequence:024d}"

    def whole(self) -> Json:
        usage = {} if self.usage is None else {"usage": self.usage}
        head = self._head(self.blocks, self.stop_reason, self.stop_sequence)
        return {**head, **usage, **self.fault.extra}

    def frames(self) -> Iterator[Frame]:
        for event in self._events():
            yield Frame(event["type"], {**event, **self.fault.extra})

    def _events(self) -> Iterator[dict[str, Any]]:
        usage = {} if self.usage is None else {"usage": {**(self.before or self.usage), "output_tokens": 1}}
        message = {**self._head((), None, None), **usage}
        yield {"type": "message_start", "message": message}
        for index, block in enumerate(self.blocks):
            yield {"type": "content_block_start", "index": index, "content_block": _begun(block)}
            if not index:
                yield {"type": "ping"}
            for delta in _deltas(block, self.fault.chunk_size):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ended = {} if self.usage is None else {"usage": self.usage}
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
        yield {"type": "message_delta", "delta": delta, **ended, **_managed(self.request)}
        yield {"type": "message_stop"}

    def _head(self, blocks: Sequence[Json], reason: str | None, sequence: str | None) -> dict[str, Any]:
        managed = _managed(self.request) if reason is not None else {}
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.request.model,
            "content": list(blocks),
            "stop_reason": reason,
            "stop_sequence": sequence,
            **managed,
        }


def compose(sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's limit and the window."""
    compacted = _compacted(request, count)
    alone = compacted is not None and _ends_with_compaction(request)
    limit = min(request.max_tokens or request.room, request.room)
    said, cut = spoken(fault, text, limit, count)
    stop = next((each for each in request.request.get("stop_sequences") or () if said and each in said), None)
    if said and stop is not None:
        said = said[: said.index(stop)]
    blocks: list[Json] = [compacted] if compacted is not None else []
    if alone:
        said = None
    else:
        blocks += _thinking(request, fault, blocks)
        spoken_text = said if fault.refusal is None else fault.refusal
        blocks += [{"type": "text", "text": spoken_text}] if spoken_text else []
        blocks += _calls(sequence, fault)
    at_window = cut and request.room < (request.max_tokens or 0)
    reason = (
        "compaction" if alone
        else "refusal" if fault.refusal is not None
        else "tool_use" if fault.tool_calls
        else "stop_sequence" if stop is not None
        else "model_context_window_exceeded" if at_window
        else "max_tokens" if cut
        else "end_turn"
    )  # fmt: skip
    usage, before = _usage(request, blocks, compacted, alone, count)
    told = None if fault.omit_usage else {**usage, **(fault.usage or {})}
    return Answer(sequence, request, fault, said, blocks, fault.finish_reason or reason, stop, told, before)


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


def _thinking(request: AcceptedRequest, fault: Fault, before: Sequence[Json]) -> list[Json]:
    if fault.thinking is None and not request.thinks:
        return []
    prefix = whole_prefix(request.request)
    for block in before:
        prefix = prefix.then("assistant", block)
    omitted = (request.request.get("thinking") or {}).get("display") == "omitted"
    text = "" if omitted else fault.thinking or THOUGHT
    return [{"type": "thinking", "thinking": text, "signature": seal(prefix, text)}]


def _ends_with_compaction(request: AcceptedRequest) -> bool:
    asked = request.compaction or {}
    return asked.get("type") == "summarize" or bool(asked.get("pause_after_compaction"))


def _compacted(request: AcceptedRequest, count: Count) -> Json | None:
    """The provider's own summary of all that came."""
    if request.compaction is None:
        return None
    said = [*conversation_of(request.request), {"role": "user", "content": ""}]
    summary = f"<summary>{summary_of(said, SUMMARY_WORDS, None, count)}</summary>"
    if request.compaction["type"] != "summarize":
        return {"type": "compaction", "content": summary, "encrypted_content": None}
    signature = sign_compaction(whole_prefix(request.request), summary)
    return {
        "type": "compaction",
        "content": summary,
        "encrypted_content": None,
        "signature": signature,
        "tool_changes": [],
    }


def _usage(
    request: AcceptedRequest, blocks: Sequence[Json], compacted: Json | None, alone: bool, count: Count
) -> tuple[Json, Json | None]:
    """Usage of the answer, and where it was compacted first the one that a stream begins with."""
    spent = sum(map(count, (part for block in blocks if block is not compacted for part in _written(block))))
    thought = sum(count(block["thinking"]) for block in blocks if block["type"] == "thinking")
    cached = request.cache_read, request.cache_written, request.cache_written_hour
    whole = _tokens(request.prompt_tokens, *cached, spent)
    details = {"output_tokens_details": {"thinking_tokens": thought}} if thought else {}
    if compacted is None:
        return {**whole, **details, "service_tier": "standard"}, None
    summary = count(compacted["content"])
    first = {"type": "compaction", **whole, "output_tokens": summary}
    if alone:
        return {**_tokens(0, 0, 0, 0, 0), "iterations": [first], "service_tier": "standard"}, whole
    rest = _tokens(summary, 0, 0, 0, spent)
    return {**rest, **details, "iterations": [first, {"type": "message", **rest}], "service_tier": "standard"}, whole


def _tokens(prompt: int, read: int, written: int, hour: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": written - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": output,
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
        case "tool_use":
            return {**block, "input": {}}
        case _:
            # A compaction comes in one delta; its signature stands on the block from the start.
            return {**block, "content": None}


def _deltas(block: Json, size: int) -> Iterator[Json]:
    if block["type"] == "compaction":
        yield {"type": "compaction_delta", "content": block["content"], "encrypted_content": block["encrypted_content"]}
        return
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


def _managed(request: AcceptedRequest) -> Json:
    if request.request.get("context_management") is None:
        return {}
    return {"context_management": {"applied_edits": []}}
