"""Answers of the scripted provider: from the notation of a case to bytes, in each format, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.e2e.scripted import Step, answer, chunked
from tests.exchanges.histories import Format, Json

CREATED = 1_234_567_890
ERROR_TYPE = "invalid_request_error"
FINISHES: Mapping[str, Mapping[str, str]] = {
    "messages": {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"},
    "gemini": {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"},
}
PHRASES: Mapping[int, str] = {
    200: "OK", 204: "No Content", 301: "Moved Permanently", 304: "Not Modified", 307: "Temporary Redirect",
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict",
    413: "Request Entity Too Large", 422: "Unprocessable Entity", 429: "Too Many Requests",
    500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 529: "Overloaded",
}  # fmt: skip
LAST_CHUNK = b"0\r\n\r\n"


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def steps_of(spec: Mapping[str, Any], format_: Format, asked: Json, prompt: int) -> list[Step]:
    """Steps on the connection for one answer of a case. `asked`: the request's body; `prompt`: tokens to report."""
    stream = asked.get("stream") is True
    before: list[Step] = [float(spec["pause"])] if "pause" in spec else []
    if "raw" in spec:
        sent: list[Step] = [*before, _bytes(spec["raw"])]
        return [*sent, "close"] if spec.get("close", True) else sent
    if spec.get("close") is True:
        return [*before, "close"]
    if "frames" in spec:
        return [*before, *_streamed([_bytes(frame) for frame in spec["frames"]], spec)]
    if "body" in spec or "error" in spec or int(spec.get("status", 200)) >= 300:
        return [*before, *_whole(spec, _body(spec, format_))]
    if spec.get("stream", stream):
        return [*before, *_streamed(_FRAMES[format_](spec, asked, prompt), spec)]
    return [*before, *_whole(spec, compact(_WHOLE[format_](spec, asked, prompt)))]


def body_in(steps: Sequence[Step]) -> bytes:
    """Body of the answer that these steps send, without the borders of chunks."""
    data = b"".join(step for step in steps if isinstance(step, bytes))
    head, _, body = data.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    joined = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        joined, body = joined + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return joined


def headers_in(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Names, in lower case, and values of the headers that these steps send."""
    head = b"".join(step for step in steps if isinstance(step, bytes)).partition(b"\r\n\r\n")[0].decode("latin-1")
    lines = (line.partition(":") for line in head.split("\r\n")[1:])
    return [(name.lower(), value.strip()) for name, _, value in lines]


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else compact(value)


def _body(spec: Mapping[str, Any], format_: Format) -> bytes:
    if "body" in spec:
        return _bytes(spec["body"])
    error = spec.get("error") or {}
    if isinstance(error, str):
        error = {"message": error}
    kind = error.get("type", ERROR_TYPE)
    message = error.get("message", "The provider refused.")
    if format_ == "messages":
        return compact({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_provider"})
    if format_ == "gemini":
        status = int(spec.get("status", 400))
        return compact({"error": {"code": status, "message": message, "status": error.get("code", kind)}})
    return compact({"error": {"message": message, "type": kind, "param": None, "code": error.get("code")}})


def _whole(spec: Mapping[str, Any], body: bytes) -> list[Step]:
    default = 400 if "error" in spec else 200
    data = answer(body, *_headers(spec), status=_status(spec, default), kind=_kind(spec, "application/json"))
    if "cut" not in spec:
        return [data]
    # The connection ends after so many bytes of the body.
    return [data[: len(data) - len(body) + int(spec["cut"])], "close"]


def _streamed(frames: Sequence[bytes], spec: Mapping[str, Any]) -> list[Step]:
    """`cut`: the connection ends after so many frames; `pauses`: seconds between two frames; `pieces`: bytes sent at a
    time, whatever the frames."""
    head = b"\r\n".join(
        (
            b"HTTP/1.1 " + _status(spec, 200),
            b"content-type: " + _kind(spec, "text/event-stream; charset=utf-8"),
            b"transfer-encoding: chunked",
            *_headers(spec),
        )
    )
    kept = list(frames if "cut" not in spec else frames[: int(spec["cut"])])
    if "pieces" in spec:
        joined, size = b"".join(kept), int(spec["pieces"])
        kept = [joined[at : at + size] for at in range(0, len(joined), size)]
    steps: list[Step] = [head + b"\r\n\r\n"]
    for frame in kept:
        steps += [chunked(frame)] if frame else []
        steps += [float(spec["pauses"])] if "pauses" in spec else []
    return [*steps, "close"] if "cut" in spec else [*steps, LAST_CHUNK]


def _headers(spec: Mapping[str, Any]) -> list[bytes]:
    given = {"x-request-id": "req-provider", **(spec.get("headers") or {})}
    return [f"{name}: {value}".encode("latin-1") for name, value in given.items()]


def _status(spec: Mapping[str, Any], default: int) -> bytes:
    status = int(spec.get("status", default))
    return f"{status} {PHRASES.get(status, 'Unknown')}".encode()


def _kind(spec: Mapping[str, Any], default: str) -> bytes:
    return str(spec.get("type", default)).encode()


def _text(spec: Mapping[str, Any]) -> str | None:
    text = spec.get("text", None if spec.get("calls") else "Yes.")
    return None if text is None else str(text) * int(spec.get("times", 1))


def _usage(spec: Mapping[str, Any], prompt: int) -> tuple[int, int, int] | None:
    """Prompt, completion and cached tokens; None where the answer has no usage."""
    given = spec.get("usage", {})
    if given is None:
        return None
    prompt = int(given.get("prompt", prompt))
    return prompt, int(given.get("completion", 7)), int(given.get("cached", prompt // 2))


def _arguments(call: Mapping[str, Any]) -> str:
    given = call.get("arguments", "{}")
    return given if isinstance(given, str) else json.dumps(given)


# Chat Completions


def _chat_usage(spec: Mapping[str, Any], prompt: int) -> Json | None:
    if (usage := _usage(spec, prompt)) is None:
        return None
    return {
        "prompt_tokens": usage[0],
        "completion_tokens": usage[1],
        "total_tokens": usage[0] + usage[1],
        "prompt_tokens_details": {"cached_tokens": usage[2]},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def _chat_calls(spec: Mapping[str, Any]) -> list[Json]:
    return [
        {
            "id": call.get("id", f"call_provider_{at}"),
            "type": "function",
            "function": {"name": call.get("name", "find_parcel"), "arguments": _arguments(call)},
        }
        for at, call in enumerate(spec.get("calls") or ())
    ]


def _chat(spec: Mapping[str, Any], asked: Json, prompt: int) -> Json:
    calls = _chat_calls(spec)
    message = {"role": "assistant", "content": _text(spec), "refusal": None, **({"tool_calls": calls} if calls else {})}
    finish = spec.get("finish", "tool_calls" if calls else "stop")
    choice = {"index": 0, "message": {**message, **spec.get("message", {})}, "logprobs": None, "finish_reason": finish}
    answered = {
        "id": "chatcmpl-provider",
        "object": "chat.completion",
        "created": CREATED,
        "model": asked.get("model"),
        "choices": [choice],
        "system_fingerprint": "fp_exchanges",
    }
    usage = _chat_usage(spec, prompt)
    return answered if usage is None else {**answered, "usage": usage}


def _chat_frames(spec: Mapping[str, Any], asked: Json, prompt: int) -> list[bytes]:
    usual = {
        "id": "chatcmpl-provider",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": asked.get("model"),
    }

    def frame(delta: Json, finish: str | None = None, **members: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return b"data: %b\n\n" % compact({**usual, "choices": [choice], **members})

    calls = _chat_calls(spec)
    frames = [frame({"role": "assistant", "content": "" if _text(spec) is not None else None})]
    frames += [frame({"content": piece}) for piece in _pieces(_text(spec))]
    frames += [frame({"tool_calls": [{"index": at, **call}]}) for at, call in enumerate(calls)]
    frames.append(frame({}, spec.get("finish", "tool_calls" if calls else "stop")))
    options = asked.get("stream_options")
    wanted = isinstance(options, dict) and options.get("include_usage") is True
    if wanted and (usage := _chat_usage(spec, prompt)) is not None:
        frames.append(frame({}, choices=[], usage=usage))
    return [*frames, b"data: [DONE]\n\n"]


def _pieces(text: str | None) -> list[str]:
    """A text, six words at a time."""
    words = (text or "").split(" ")
    ends = range(0, len(words), 6)
    pieces = [" ".join(words[at : at + 6]) + (" " if at + 6 < len(words) else "") for at in ends]
    return [piece for piece in pieces if piece]


# Messages


def _event(name: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), compact({"type": name, **members}))


def _finish(spec: Mapping[str, Any]) -> str:
    finish = str(spec.get("finish", "tool_calls" if spec.get("calls") else "stop"))
    return FINISHES["messages"].get(finish, finish)


def _message_usage(spec: Mapping[str, Any], prompt: int) -> Json:
    usage = _usage(spec, prompt) or (0, 0, 0)
    read = min(usage[2], usage[0])
    return {"input_tokens": usage[0] - read, "cache_read_input_tokens": read, "output_tokens": usage[1]}


def _message(spec: Mapping[str, Any], asked: Json, prompt: int) -> Json:
    text = _text(spec)
    blocks: list[Json] = [] if not text else [{"type": "text", "text": text}]
    for call in _chat_calls(spec):
        function = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": json.loads(function["arguments"])}
        )
    return {
        "id": "msg_provider",
        "type": "message",
        "role": "assistant",
        "model": asked.get("model"),
        "content": spec.get("content", blocks),
        "stop_reason": _finish(spec),
        "stop_sequence": None,
        "usage": _message_usage(spec, prompt),
    }


def _message_frames(spec: Mapping[str, Any], asked: Json, prompt: int) -> list[bytes]:
    whole = _message(spec, asked, prompt)
    usage = whole["usage"]
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    frames = [_event("message_start", message=begun)]
    for index, block in enumerate(whole["content"]):
        empty, deltas = _opened(block)
        frames.append(_event("content_block_start", index=index, content_block=empty))
        frames += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        frames.append(_event("content_block_stop", index=index))
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    frames.append(_event("message_delta", delta=ended, usage={"output_tokens": usage["output_tokens"]}))
    return [*frames, _event("message_stop")]


def _opened(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and the deltas that fill it."""
    match block:
        case {"type": "text", "text": text}:
            return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(text)]
        case {"type": "tool_use", "input": given}:
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": json.dumps(given)}]
        case {"type": "thinking", "thinking": text, "signature": signature}:
            said = {"type": "thinking_delta", "thinking": text}
            return {**block, "thinking": "", "signature": ""}, [
                said,
                {"type": "signature_delta", "signature": signature},
            ]
    return block, []


# Responses


def _response(spec: Mapping[str, Any], asked: Json, prompt: int) -> Json:
    text = _text(spec)
    items: list[Json] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        said = {"type": "message", "id": "msg_provider", "status": "completed", "role": "assistant", "content": [part]}
        items.append(said)
    for call in _chat_calls(spec):
        made = {"type": "function_call", "id": f"fc_{call['id']}", "status": "completed", "call_id": call["id"]}
        items.append({**made, **call["function"]})
    finish = str(spec.get("finish", "stop"))
    others = ("content_filter", "model_context_window_exceeded")
    reasons = {"length": "max_output_tokens", **{reason: reason for reason in others}}
    whole: Json = {
        "id": "resp_provider",
        "object": "response",
        "created_at": CREATED,
        "model": asked.get("model"),
        "status": "incomplete" if finish in reasons else "completed",
        "incomplete_details": {"reason": reasons[finish]} if finish in reasons else None,
        "output": spec.get("output", items),
    }
    if (usage := _usage(spec, prompt)) is not None:
        whole["usage"] = {
            "input_tokens": usage[0],
            "input_tokens_details": {"cached_tokens": usage[2]},
            "output_tokens": usage[1],
            "total_tokens": usage[0] + usage[1],
        }
    return whole


def _response_frames(spec: Mapping[str, Any], asked: Json, prompt: int) -> list[bytes]:
    whole = _response(spec, asked, prompt)
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": []}
    begun.pop("usage", None)
    events: list[tuple[str, Json]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
    ]
    for index, item in enumerate(whole["output"]):
        events += _item_events(item, index)
    last = "response.completed" if whole["status"] == "completed" else "response.incomplete"
    events.append((last, {"response": whole}))
    return [_event(name, sequence_number=number, **members) for number, (name, members) in enumerate(events)]


def _item_events(item: Json, index: int) -> list[tuple[str, Json]]:
    at: Json = {"item_id": item.get("id"), "output_index": index}
    added, done = "response.output_item.added", ("response.output_item.done", {"output_index": index, "item": item})
    match item:
        case {"type": "message", "content": [{"type": "output_text", "text": text} as part]}:
            inside = {**at, "content_index": 0}
            opened = {**item, "status": "in_progress", "content": []}
            return [
                (added, {"output_index": index, "item": opened}),
                ("response.content_part.added", {**inside, "part": {**part, "text": ""}}),
                *(("response.output_text.delta", {**inside, "delta": one, "logprobs": []}) for one in _pieces(text)),
                ("response.output_text.done", {**inside, "text": text, "logprobs": []}),
                ("response.content_part.done", {**inside, "part": part}),
                done,
            ]
        case {"type": "function_call", "arguments": arguments}:
            return [
                (added, {"output_index": index, "item": {**item, "status": "in_progress", "arguments": ""}}),
                ("response.function_call_arguments.delta", {**at, "delta": arguments}),
                ("response.function_call_arguments.done", {**at, "arguments": arguments}),
                done,
            ]
    return [(added, {"output_index": index, "item": item}), done]


# Gemini


def _gemini(
    spec: Mapping[str, Any], asked: Json, prompt: int, parts: Sequence[Json] | None = None, *, ends: bool = True
) -> Json:
    if parts is None:
        parts = _gemini_parts(spec, [_text(spec)])
    finish = str(spec.get("finish", "stop"))
    reason = {"finishReason": FINISHES["gemini"].get(finish, finish)} if ends else {}
    content = {"role": "model", **({"parts": parts} if parts else {})}
    whole: Json = {"candidates": [{"content": content, **reason, "index": 0}]}
    if (usage := _usage(spec, prompt)) is not None:
        counts = {"promptTokenCount": usage[0], "cachedContentTokenCount": usage[2], "candidatesTokenCount": usage[1]}
        whole["usageMetadata"] = {**counts, "totalTokenCount": usage[0] + usage[1]}
    return {**whole, "modelVersion": asked.get("model"), "responseId": "provider"}


def _gemini_parts(spec: Mapping[str, Any], texts: Sequence[str | None]) -> list[Json]:
    calls = [{"name": call.get("name", "find_parcel"), "args": json.loads(_arguments(call)), "id": call.get("id")}
             for call in spec.get("calls") or ()]  # fmt: skip
    called = [{name: value for name, value in call.items() if value is not None} for call in calls]
    return [*({"text": text} for text in texts if text), *({"functionCall": call} for call in called)]


def _gemini_frames(spec: Mapping[str, Any], asked: Json, prompt: int) -> list[bytes]:
    parts = _gemini_parts(spec, _pieces(_text(spec)))
    chunks = [[part] for part in parts] or [[]]
    last = len(chunks) - 1
    answers = (_gemini(spec, asked, prompt, chunk, ends=at == last) for at, chunk in enumerate(chunks))
    return [b"data: %b\r\n\r\n" % compact(answered) for answered in answers]


_WHOLE = {"chat": _chat, "messages": _message, "responses": _response, "gemini": _gemini}
_FRAMES = {"chat": _chat_frames, "messages": _message_frames, "responses": _response_frames, "gemini": _gemini_frames}
