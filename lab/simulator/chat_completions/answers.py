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
    usage: Mapping[str, Any]

    def whole(self) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None, "annotations": []}
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        choices = [
            {"index": index, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
            for index in range(self.request.choices)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage}

    def frames(self) -> Iterator[Frame]:
        """Chunks: role, content, finish, and usage if it was asked for."""
        asked = self.request.include_usage
        head = {**self._head("chat.completion.chunk"), **({"usage": None} if asked else {})}
        for delta, reason in self._deltas():
            for index in range(self.request.choices):
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
                yield Frame(None, {**head, "choices": [choice]})
        if asked:
            yield Frame(None, {**head, "choices": [], "usage": self.usage})

    def _deltas(self) -> Iterator[tuple[dict[str, Any], str | None]]:
        yield {"role": "assistant", "content": None if self.text is None else "", "refusal": None}, None
        for piece in pieces(self.text or "", self.fault.chunk_size):
            yield {"content": piece}, None
        for index, call in enumerate(self.tool_calls):
            function = call["function"]
            yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}, None
            for piece in pieces(function["arguments"], self.fault.chunk_size):
                yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}, None
        yield {}, self.finish_reason

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.sequence:012d}",
            "object": kind,
            "created": EPOCH + self.sequence,
            "model": self.request.model,
            "service_tier": "default",
            "system_fingerprint": "fp_simulator",
        }


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
    tokens = count(said or "") + sum(count(part) for call in fault.tool_calls for part in (call.name, call.arguments))
    usage = {**_usage(request, tokens), **(fault.usage or {})}
    return Answer(sequence, request, fault, said, calls, fault.finish_reason or reason, usage)


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
