"""Answers: what the model says, as Anthropic writes it, whole or in events."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.tokens.estimate import Count
from lab.simulator.format import Accepted, Answer, Frame, Json
from lab.simulator.messages.binding import is_bound, seal, whole_prefix
from lab.simulator.replies import THOUGHT, pieces, spoken
from lab.simulator.script import Fault

_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def compose(sequence: int, accepted: Accepted, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's limit and the window."""
    request, room, most = accepted.request, accepted.room, accepted.max_tokens or 0
    said, cut = spoken(fault, text, min(most or room, room), count)
    blocks = _thinking(accepted, fault)
    blocks += [{"type": "text", "text": said}] if said else []
    blocks += _calls(sequence, fault)
    reason = fault.finish_reason or (
        "tool_use" if fault.tool_calls
        else "model_context_window_exceeded" if cut and room < most
        else "max_tokens" if cut
        else "end_turn"
    )  # fmt: skip
    usage = {**_usage(accepted, blocks, count), **(fault.usage or {})}
    # The report on edits of the context: none was due.
    managed: Json = (
        {"context_management": {"applied_edits": []}} if request.get("context_management") is not None else {}
    )
    head = {"id": f"msg_{sequence:024d}", "type": "message", "role": "assistant", "model": accepted.model}
    stopped = {"stop_reason": reason, "stop_sequence": None}
    begun: Json = {
        **head,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    ends = {"type": "message_delta", "delta": stopped, "usage": usage, **managed}
    events = _events(begun, blocks, ends)
    whole = {**head, "content": blocks, **stopped, **managed, "usage": usage}
    return Answer(said, usage, whole, (Frame(event["type"], event) for event in events))


def _events(begun: Json, blocks: Sequence[Json], ends: Json) -> Iterator[Json]:
    yield {"type": "message_start", "message": begun}
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": _begun(block)}
        if not index:
            yield {"type": "ping"}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield ends
    yield {"type": "message_stop"}


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


def _thinking(accepted: Accepted, fault: Fault) -> list[Json]:
    asked = accepted.request.get("thinking") or {}
    thinks = "-think" in accepted.model or is_bound(accepted.model)
    if fault.thinking is None and not (thinks and asked.get("type") in ("enabled", "adaptive")):
        return []
    text = fault.thinking or THOUGHT
    return [{"type": "thinking", "thinking": text, "signature": seal(whole_prefix(accepted.request), text)}]


def _usage(accepted: Accepted, blocks: Sequence[Json], count: Count) -> Json:
    read, written, hour = accepted.cached
    thought = sum(count(block["thinking"]) for block in blocks if block["type"] == "thinking")
    return {
        "input_tokens": accepted.prompt_tokens - read - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": read,
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


def _deltas(block: Json) -> Iterator[Json]:
    kind, member = _DELTAS[block["type"]]
    if block["type"] == "tool_use":
        yield {"type": kind, member: ""}
        written = msgspec.json.encode(block["input"]).decode()
    else:
        written = block[member]
    for piece in pieces(written):
        yield {"type": kind, member: piece}
    if block["type"] == "thinking":
        yield {"type": "signature_delta", "signature": block["signature"]}
