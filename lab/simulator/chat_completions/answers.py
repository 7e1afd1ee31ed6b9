"""Answers: what the model says, and OpenAI's JSON for it, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.tokens.estimate import Count
from lab.simulator.chat_completions.requests import AcceptedRequest
from lab.simulator.format import Frame
from lab.simulator.replies import EPOCH, pieces, spoken
from lab.simulator.script import Fault


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion, before it is written."""

    sequence: int
    request: AcceptedRequest
    fault: Fault
    text: str | None
    tool_calls: Sequence[Mapping[str, Any]]
    finish_reason: str
    usage: Mapping[str, Any] | None

    def whole(self) -> Mapping[str, Any]:
        return completion(self)

    def frames(self) -> Iterator[Frame]:
        return (Frame(None, chunk) for chunk in chunks(self))


def compose(sequence: int, request: AcceptedRequest, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's token limit."""
    calls = [
        {
            "id": call.id or f"call_{sequence:06d}{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for index, call in enumerate(fault.tool_calls)
    ]
    said, cut = spoken(fault, text, request.max_tokens, count)
    reason = "tool_calls" if calls else "length" if cut else "stop"
    tokens = count("".join((said or "", fault.refusal or ""))) + sum(
        count(part) for call in fault.tool_calls for part in (call.name, call.arguments)
    )
    usage = None if fault.omit_usage else {**_usage(request, tokens), **(fault.usage or {})}
    return Answer(sequence, request, fault, said, calls, fault.finish_reason or reason, usage)


def completion(answer: Answer) -> dict[str, Any]:
    """The answer in one piece."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": answer.text,
        "refusal": answer.fault.refusal,
        "annotations": [],
    }
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    choices = [
        {"index": index, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
        for index in range(answer.request.choices)
    ]
    whole = {**_head(answer, "chat.completion"), "choices": choices}
    if answer.usage is not None:
        whole["usage"] = answer.usage
    return {**whole, **_tail(), **answer.fault.extra}


def chunks(answer: Answer) -> Iterator[dict[str, Any]]:
    """The answer as a stream's chunks: role, content, finish, and usage if it was asked for."""
    for delta, reason in _deltas(answer):
        for index in range(answer.request.choices):
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
            yield _chunk(answer, [choice], None)
    if answer.request.include_usage and answer.usage is not None:
        yield _chunk(answer, [], answer.usage)


def _deltas(answer: Answer) -> Iterator[tuple[dict[str, Any], str | None]]:
    role = {"role": "assistant"}
    first: dict[str, Any] = {"content": None if answer.text is None else "", "refusal": None}
    yield (first if answer.fault.role == "never" else {**role, **first}), None
    for delta in _content_deltas(answer):
        yield ({**role, **delta} if answer.fault.role == "every" else delta), None
    yield {}, answer.finish_reason


def _content_deltas(answer: Answer) -> Iterator[dict[str, Any]]:
    size = answer.fault.chunk_size
    for piece in pieces(answer.text or "", size):
        yield {"content": piece}
    for piece in pieces(answer.fault.refusal or "", size):
        yield {"refusal": piece}
    for index, call in enumerate(answer.tool_calls):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for piece in pieces(function["arguments"], size):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _chunk(answer: Answer, choices: list[Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
    chunk = {**_head(answer, "chat.completion.chunk"), **_tail(), "choices": choices}
    if answer.request.include_usage:
        chunk["usage"] = usage
    return {**chunk, **answer.fault.extra}


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.sequence:012d}",
        "object": kind,
        "created": EPOCH + answer.sequence,
        "model": answer.request.model,
    }


def _tail() -> dict[str, Any]:
    return {"service_tier": "default", "system_fingerprint": "fp_simulator"}


def _usage(request: AcceptedRequest, completion_tokens: int) -> dict[str, Any]:
    spent = completion_tokens * request.choices
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": spent,
        "total_tokens": request.prompt_tokens + spent,
        "prompt_tokens_details": {
            "cached_tokens": request.cached_tokens,
            **({"cache_write_tokens": request.written_tokens} if request.written_tokens else {}),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
