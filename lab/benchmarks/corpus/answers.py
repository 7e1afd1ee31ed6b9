"""Answers of Messages and of Responses, whole and streamed: as plain as those of Chat Completions."""

from __future__ import annotations

from typing import Any

from lab.benchmarks.corpus.replies import CREATED, Reply, compact_json, plain, streamed

Json = dict[str, Any]


def answered(path: bytes, text: str, asked: Json, prompt: int) -> Reply | None:
    """Answer to a path; None if it is neither of the two."""
    model, stream = str(asked.get("model")), asked.get("stream") is True
    if path.endswith(b"/messages"):
        return _message(text, model, prompt, stream=stream)
    if path.endswith(b"/responses"):
        return _response(text, model, prompt, stream=stream)
    return None


def _event(name: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), compact_json({"type": name, **members}))


def _message(text: str, model: str, prompt: int, *, stream: bool) -> Reply:
    message: Json = {"id": "msg_provider", "type": "message", "role": "assistant", "model": model}
    usage = {"input_tokens": prompt, "output_tokens": 1}
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    if not stream:
        return plain({**message, "content": [{"type": "text", "text": text}], **ended, "usage": usage})
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return streamed(
        _event("message_start", message=begun),
        _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text}),
        _event("content_block_stop", index=0),
        _event("message_delta", delta=ended, usage={"output_tokens": 7}),
        _event("message_stop"),
        done=False,
    )


def _response(text: str, model: str, prompt: int, *, stream: bool) -> Reply:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item: Json = {
        "type": "message",
        "id": "msg_provider",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    begun = {"id": "resp_provider", "object": "response", "created_at": CREATED, "model": model, "output": []}
    usage = {"input_tokens": prompt, "output_tokens": 7, "total_tokens": prompt + 7}
    whole = {**begun, "status": "completed", "output": [item], "usage": usage}
    if not stream:
        return plain(whole)
    begun["status"] = "in_progress"
    at: Json = {"item_id": "msg_provider", "output_index": 0, "content_index": 0}
    events: list[tuple[str, Json]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**at, "part": {**part, "text": ""}}),
        ("response.output_text.delta", {**at, "delta": text, "logprobs": []}),
        ("response.output_text.done", {**at, "text": text, "logprobs": []}),
        ("response.content_part.done", {**at, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    frames = (_event(name, sequence_number=number, **members) for number, (name, members) in enumerate(events))
    return streamed(*frames, done=False)
