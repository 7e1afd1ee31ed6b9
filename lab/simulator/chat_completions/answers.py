"""Answers: what the model says, and OpenAI's JSON for it, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.tokens.estimate import Count
from lab.simulator.format import Accepted, Answer, Frame, Json
from lab.simulator.replies import EPOCH, pieces, spoken
from lab.simulator.script import Fault


def compose(sequence: int, accepted: Accepted, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's token limit."""
    calls = [
        {
            "id": call.id or f"call_{sequence:06d}{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(fault.tool_calls)
    ]
    said, cut = spoken(fault, text, accepted.max_tokens, count)
    reason = fault.finish_reason or ("tool_calls" if calls else "length" if cut else "stop")
    tokens = count(said or "") + sum(count(part) for call in fault.tool_calls for part in (call.name, call.arguments))
    choices = range(accepted.request.get("n") or 1)
    usage = {**_usage(accepted, tokens * len(choices)), **(fault.usage or {})}
    head = {
        "id": f"chatcmpl-{sequence:012d}",
        "object": "chat.completion",
        "created": EPOCH + sequence,
        "model": accepted.model,
        "service_tier": "default",
        "system_fingerprint": "fp_simulator",
    }
    message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None, "annotations": []}
    message |= {"tool_calls": calls} if calls else {}
    whole = [{"index": index, "message": message, "logprobs": None, "finish_reason": reason} for index in choices]
    options = accepted.request.get("stream_options") or {}
    deltas = _deltas(said, calls, reason)
    frames = _frames(head, deltas, choices, usage if options.get("include_usage") else None)
    return Answer(said, usage, {**head, "choices": whole, "usage": usage}, frames)


Delta = tuple[dict[str, Any], str | None]


def _frames(head: Json, deltas: Iterator[Delta], choices: range, usage: Json | None) -> Iterator[Frame]:
    """Chunks: role, content, finish, and usage if it was asked for."""
    head = {**head, "object": "chat.completion.chunk", **({} if usage is None else {"usage": None})}
    for delta, reason in deltas:
        for index in choices:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            yield Frame(None, {**head, "choices": [choice]})
    if usage is not None:
        yield Frame(None, {**head, "choices": [], "usage": usage})


def _deltas(said: str | None, calls: Sequence[Json], reason: str) -> Iterator[Delta]:
    yield {"role": "assistant", "content": None if said is None else "", "refusal": None}, None
    for piece in pieces(said or ""):
        yield {"content": piece}, None
    for index, call in enumerate(calls):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}, None
        for piece in pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
    yield {}, reason


def _usage(accepted: Accepted, spent: int) -> dict[str, Any]:
    read, written, _ = accepted.cached
    return {
        "prompt_tokens": accepted.prompt_tokens,
        "completion_tokens": spent,
        "total_tokens": accepted.prompt_tokens + spent,
        "prompt_tokens_details": {
            "cached_tokens": read,
            **({"cache_write_tokens": written} if written else {}),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
