"""Answers: what the model says, and OpenAI's JSON for it, whole or in chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.tokens.estimate import Count
from app.simulator.extract import summarise
from app.simulator.messages import texts_of
from app.simulator.requests import AcceptedRequest
from app.simulator.script import Fault

EPOCH = 1_767_225_600
_NUMBERED = re.compile(r"Answer (\d+):")
_WORD_END = re.compile(r"\s|$")


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


def default_reply(messages: Sequence[Any]) -> str:
    """Names the turn, also where a summary stands for earlier turns, and the end of the last user message."""
    texts = ["\n".join(texts_of(message)) for message in messages if message["role"] == "assistant"]
    numbered = next((match for text in reversed(texts) if (match := _NUMBERED.match(text))), None)
    users = [message for message in messages if message["role"] == "user"]
    turn = int(numbered[1]) + 1 if numbered else max(1, len(users))
    words = " ".join(texts_of(users[-1])).split()[-3:] if users else []
    return f"Answer {turn}: about {' '.join(words) or 'nothing in particular'}."


def summary_of(messages: Sequence[Any], max_words: int, max_tokens: int | None, count: Count) -> str:
    """Notes, as many as end within the caller's limit: a model stops by itself.

    On the text of the last user message, or, where that follows a whole conversation, on the conversation.
    """
    before = messages[:-1] if any(message["role"] == "assistant" for message in messages) else messages
    read = [message for message in before if before is not messages or message["role"] == "user"]
    source = "\n".join("\n".join(texts_of(message)) for message in read)
    allowed = max_words if max_tokens is None else min(max_words, int(0.5 * max_tokens))
    notes = summarise(source, allowed) if source else ""
    while max_tokens is not None and (tokens := count(notes)) > max_tokens:
        allowed = min(allowed - 1, allowed * max_tokens // tokens)
        notes = summarise(source, allowed) if allowed else ""
    return notes


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
    said: str | None = None if fault.refusal is not None or (calls and fault.text is None) else text
    if said is not None and fault.words is not None:
        said = _of_length(said, fault.words)
    whole = said
    if said is not None and request.max_tokens is not None:
        said = cut_to_tokens(said, request.max_tokens, count)
    reason = "tool_calls" if calls else "length" if said != whole else "stop"
    tokens = count("".join((said or "", fault.refusal or ""))) + sum(
        count(part) for call in fault.tool_calls for part in (call.name, call.arguments)
    )
    usage = None if fault.omit_usage else {**_usage(request, tokens), **(fault.usage or {})}
    return Answer(sequence, request, fault, said, calls, fault.finish_reason or reason, usage)


def cut_to_tokens(text: str, max_tokens: int, count: Count) -> str:
    """The longest beginning, in whole words, of at most so many tokens."""
    if count(text) <= max_tokens:
        return text
    ends = [0, *(match.start() for match in _WORD_END.finditer(text))]
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[: ends[middle]]) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low]]


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
    for piece in _pieces(answer.text or "", size):
        yield {"content": piece}
    for piece in _pieces(answer.fault.refusal or "", size):
        yield {"refusal": piece}
    for index, call in enumerate(answer.tool_calls):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for piece in _pieces(function["arguments"], size):
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
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _of_length(text: str, words: int) -> str:
    given = text.split(" ")
    return " ".join([*given[:words], *(f"word{number}" for number in range(len(given) + 1, words + 1))])


def _pieces(text: str, size: int) -> Iterator[str]:
    return (text[start : start + size] for start in range(0, len(text), size))
