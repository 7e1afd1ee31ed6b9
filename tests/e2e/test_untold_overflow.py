"""Overflows that come with status 200, 500 or 503: learnt from, and asked once more before the client gets anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.histories import used
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

MODEL, TRUE_WINDOW = "local-model", 12_000
CONFIGURED: Any = [{"match": "*", "context_window": 32_000}]
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def history() -> list[Any]:
    """Tool results that can be shortened without a summary: about 16,000 tokens."""
    talk: list[Any] = [{"role": "user", "content": "Read the reports."}]
    for number in range(6):
        talk += used(f"c{number}", "the report says that all is well " * 400)
    return [*talk, {"role": "assistant", "content": "All is well."}, {"role": "user", "content": "Sure?"}]


def said_to(format_: str) -> list[Any]:
    if format_ == "chat_completions":
        return history()
    role = "user"
    text = "the report says that all is well " * 400
    talk: list[Any] = []
    for _ in range(6):
        talk += [{"role": role, "content": text}, {"role": "assistant", "content": "All is well."}]
    return [*talk, {"role": role, "content": "Sure?"}]


PATHS = {
    "chat_completions": ("/v1/chat/completions", "messages", {}),
    "messages": ("/v1/messages", "messages", {"max_tokens": 2_000}),
    "responses": ("/v1/responses", "input", {}),
}


def whole(format_: str, text: str, reason: str, completion: int, prompt: int = TRUE_WINDOW) -> dict[str, Any]:
    if format_ == "chat_completions":
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        return {"id": "x", "object": "chat.completion", "created": 1, "choices": [choice], "usage": usage}
    usage = {"input_tokens": prompt, "output_tokens": completion}
    if format_ == "messages":
        content = [{"type": "text", "text": text}] if text else []
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
        return {**head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    is_cut = reason != "stop"
    begun: dict[str, Any] = {"id": "resp_1", "object": "response", "created_at": 1, "model": MODEL, "error": None}
    return {
        **begun,
        "usage": usage,
        "status": "incomplete" if is_cut else "completed",
        "output": [item] if text else [],
        "incomplete_details": {"reason": reason} if is_cut else None,
    }


def streamed(format_: str, text: str, reason: str, completion: int) -> list[dict[str, Any]]:
    full = whole(format_, text, reason, completion)
    if format_ == "chat_completions":
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1}
        deltas = [{"role": "assistant", "content": ""}, *([{"content": text}] if text else [])]
        chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
        return [*chunks, end, {**head, "choices": [], "usage": full["usage"]}]
    if format_ == "messages":
        start = {"type": "message_start", "message": {**full, "content": [], "stop_reason": None}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        blocks = [block, delta, {"type": "content_block_stop", "index": 0}] if text else []
        end = {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": completion}}
        return [start, {"type": "ping"}, *blocks, end, {"type": "message_stop"}]
    begun = {**full, "status": "in_progress", "output": [], "usage": None}
    delta = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text}
    end = {"type": f"response.{full['status']}", "response": full}
    return [{"type": "response.created", "response": begun}, *([delta] if text else []), end]


def reply(format_: str, stream: bool, text: str, reason: str, completion: int) -> tuple[Any, ...]:
    if not stream:
        return (answer(json.dumps(whole(format_, text, reason, completion)).encode()),)
    frames = [json.dumps(frame).encode() for frame in streamed(format_, text, reason, completion)]
    names = (b"event: %b\n" % json.loads(frame).get("type", "").encode() for frame in frames)
    named = (name if format_ != "chat_completions" else b"" for name in names)
    pieces = [chunked(b"%bdata: %b\n\n" % pair) for pair in zip(named, frames, strict=True)]
    done = chunked(b"data: [DONE]\n\n") if format_ == "chat_completions" else b""
    return (stream_head(), *pieces, done + LAST_CHUNK)


def ask(steno: Steno, format_: str, *, stream: bool, **more: Any) -> Answer:
    path, member, usual = PATHS[format_]
    body = {"model": MODEL, member: said_to(format_), "stream": stream, **usual, **more}
    head = b"content-type: application/json", b"authorization: Bearer sk-test", b"anthropic-version: 2023-06-01"
    return send(steno.url, request_bytes(json.dumps(body).encode(), *head, target=path, usual=False), timeout=30.0)


@pytest.fixture
def running(before_scripted: StartSteno) -> Steno:
    return before_scripted(models=CONFIGURED, compaction={"strategy": "none"}, upstream={"formats": [*PATHS]})


LENGTH = {"chat_completions": "length", "messages": "max_tokens", "responses": "max_output_tokens"}
FINISHED = {"chat_completions": "stop", "messages": "end_turn", "responses": "stop"}


@STREAM
@pytest.mark.parametrize("format_", PATHS)
@pytest.mark.parametrize("by_window", [False, True], ids=["length", "window"])
def test_an_empty_answer_at_the_window_is_asked_for_once_more_and_smaller(
    scripted: ScriptedProvider, running: Steno, format_: str, stream: bool, by_window: bool
) -> None:
    reason = "model_context_window_exceeded" if by_window else LENGTH[format_]
    scripted.then(*reply(format_, stream, "", reason, 0))
    scripted.default = reply(format_, stream, "All is well.", FINISHED[format_], 4)
    answered = ask(running, format_, stream=stream)
    assert answered.status == 200
    assert b"All is well." in answered.body
    assert answered.body.count(reason.encode()) == 0
    assert len(scripted.requests) == 2
    assert len(scripted.requests[1].body) < 0.75 * len(scripted.requests[0].body)
    again = ask(running, format_, stream=stream)
    assert again.header("x-context-window") == str(TRUE_WINDOW)
    assert len(scripted.requests) == 3, "the window is known"


@STREAM
@pytest.mark.parametrize("format_", PATHS)
def test_an_answer_that_its_cap_ended_is_the_answer(
    scripted: ScriptedProvider, running: Steno, format_: str, stream: bool
) -> None:
    """All of it thinking that is not shown."""
    cap = {"chat_completions": "max_tokens", "messages": "max_tokens", "responses": "max_output_tokens"}[format_]
    scripted.default = reply(format_, stream, "", LENGTH[format_], 500)
    answered = ask(running, format_, stream=stream, **{cap: 500})
    assert answered.status == 200
    assert LENGTH[format_].encode() in answered.body
    assert len(scripted.requests) == 1
    assert ask(running, format_, stream=stream).header("x-context-window") == "32000"


@STREAM
def test_a_second_answer_that_is_empty_too_brings_the_first(
    scripted: ScriptedProvider, running: Steno, stream: bool
) -> None:
    scripted.default = reply("chat_completions", stream, "", "length", 0)
    answered = ask(running, "chat_completions", stream=stream)
    assert answered.status == 200
    assert b'"length"' in answered.body
    assert len(scripted.requests) == 2
    assert answered.header("x-context-actions") is None


def test_a_whole_answer_that_the_window_cut_short_is_asked_for_once_more(
    scripted: ScriptedProvider, running: Steno
) -> None:
    scripted.then(*reply("messages", False, "All is", "model_context_window_exceeded", 60))
    scripted.default = reply("messages", False, "All is well.", "end_turn", 4)
    assert ask(running, "messages", stream=False).json["content"][0]["text"] == "All is well."


EXCEEDED = {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}
TYPED = {
    "code": 500,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 16_011,
    "n_ctx": 12_032,
}
WRAPPED = {
    "message": "litellm.ServiceUnavailableError: OpenAIException - Context size has been exceeded.. Received Model"
    " Group=local\nAvailable Model Group Fallbacks=None",
    "type": None,
    "code": "503",
}
TOLD = {
    "500": (b"500 Internal Server Error", EXCEEDED),
    "200": (b"200 OK", EXCEEDED),
    "typed": (b"500 Internal Server Error", {"error": TYPED}),
    "503": (b"503 Service Unavailable", {"error": WRAPPED}),
    "413": (b"413 Payload Too Large", {"error": {"message": "Payload size exceeds the limit: 60000 bytes"}}),
    "nginx": (b"413 Request Entity Too Large", "<html><title>413 Request Entity Too Large</title></html>"),
}


@STREAM
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("format_", PATHS)
def test_an_overflow_is_recovered_from_whatever_its_status(
    scripted: ScriptedProvider, running: Steno, format_: str, stream: bool, told: str
) -> None:
    status, body = TOLD[told]
    refusal = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    scripted.then(answer(refusal, status=status))
    scripted.default = reply(format_, stream, "All is well.", FINISHED[format_], 4)
    answered = ask(running, format_, stream=stream)
    assert answered.status == 200, answered.body
    assert b"All is well." in answered.body
    assert (answered.header("x-context-actions") or "").endswith("recovered")
    assert len(scripted.requests) == 2


@pytest.mark.parametrize("status", [b"500 Internal Server Error", b"503 Service Unavailable"])
def test_a_server_that_fails_for_another_reason_is_not_asked_again(
    scripted: ScriptedProvider, running: Steno, status: bytes
) -> None:
    body = json.dumps({"error": {"message": "context deadline exceeded"}}, indent=1).encode()
    scripted.default = (answer(body, status=status),)
    answered = ask(running, "chat_completions", stream=False)
    assert (answered.status, answered.body) == (int(status[:3]), body)
    assert len(scripted.requests) == 1
