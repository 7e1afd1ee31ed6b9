"""Chats that pass as they came: whatever their bytes look like, and whatever the answer's do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

from lab.benchmarks.corpus.case import MODEL, Case, Group, Step, body, case, chat, raw, stored
from lab.benchmarks.corpus.cases.histories import FUNCTIONS, HELLO, PIXEL, SYSTEM, TOOLS, conversation
from lab.benchmarks.corpus.framing import CHAT, chunks_of, request
from lab.benchmarks.corpus.provider import chunk, completion, text_frames
from lab.benchmarks.corpus.replies import plain, streamed

_ASK = '"messages":[{"role":"user","content":"Hi"}]'
_MODEL = f'"model":"{MODEL}"'

BODIES: Mapping[str, str] = {
    "compact": f"{{{_MODEL},{_ASK}}}",
    "messages-first": f"{{{_ASK},{_MODEL}}}",
    "spaced": f'  {{ "model" :\t"{MODEL}" ,\r\n  "messages" : [ {{ "role" : "user" , "content" : "Hi" }} ]  }}\n\n',
    "indented": json.dumps({"model": MODEL, "messages": HELLO, "temperature": 0.2}, indent=4),
    "escaped-keys": f'{{"\\u006dodel":"{MODEL}","me\\u0073\\u0073ages":[{{"role":"user","content":"Hi"}}]}}',
    "escaped-values": f'{{{_MODEL},"messages":[{{"role":"user","content":"\\u00e9\\/\\t\\ud83d\\udce6 \\"x\\\\"}}]}}',
    "lone-surrogate": f'{{{_MODEL},"messages":[{{"role":"user","content":"\\ud83d half"}}]}}',
    "unicode": f'{{{_MODEL},"messages":[{{"role":"user","content":"caf\u00e9 \u8377 \U0001f4e6 \u2028"}}],"\u00fc":1}}',
    "byte-order-mark": f"\ufeff{{{_MODEL},{_ASK}}}",
    "key-twice": f'{{{_MODEL},{_ASK},"temperature":0,"temperature":1}}',
    "model-twice": f'{{{_MODEL},"model":"gpt-4o-mini",{_ASK}}}',
    "messages-twice": f'{{{_MODEL},{_ASK},"messages":[]}}',
    "key-twice-in-a-message": f'{{{_MODEL},"messages":[{{"role":"user","content":"a","content":"b"}}]}}',
    "nested-context": f'{{{_MODEL},{_ASK},"extra":{{"context":{{"preset":"off"}},"conversation_id":"x"}}}}',
    "unknown-members": f'{{{_MODEL},{_ASK},"x_new":{{"a":[1,{{"b":null}}]}},"":"empty key","\\u0000":0}}',
    "big-numbers": f'{{{_MODEL},{_ASK},"seed":123456789012345678901234567890,"temperature":1e-7,"top_p":1.0E+0}}',
    "huge-exponent": f'{{{_MODEL},{_ASK},"temperature":1e999}}',
    "negative-zero": f'{{{_MODEL},{_ASK},"presence_penalty":-0.0,"logit_bias":{{"50256":-100}}}}',
    "nulls": f'{{{_MODEL},{_ASK},"stream":null,"tools":null,"metadata":null,"max_tokens":null,"context":null}}',
    "empty-messages": f'{{{_MODEL},"messages":[]}}',
    "only-system": f'{{{_MODEL},"messages":[{{"role":"system","content":"Be kind."}}]}}',
    "only-assistant": f'{{{_MODEL},"messages":[{{"role":"assistant","content":"Well?"}}]}}',
    "content-null": f'{{{_MODEL},"messages":[{{"role":"user","content":null}}]}}',
    "content-empty": f'{{{_MODEL},"messages":[{{"role":"user","content":""}}]}}',
    "content-missing": f'{{{_MODEL},"messages":[{{"role":"user"}}]}}',
    "content-empty-parts": f'{{{_MODEL},"messages":[{{"role":"user","content":[]}}]}}',
    "content-number": f'{{{_MODEL},"messages":[{{"role":"user","content":12}}]}}',
    "content-unknown-part": f'{{{_MODEL},"messages":[{{"role":"user","content":[{{"type":"smell","smell":"hay"}}]}}]}}',
    "message-text": f'{{{_MODEL},"messages":["Hi"]}}',
    "message-null": f'{{{_MODEL},"messages":[null,{{"role":"user","content":"Hi"}}]}}',
    "role-unknown": f'{{{_MODEL},"messages":[{{"role":"narrator","content":"Hi"}}]}}',
    "role-missing": f'{{{_MODEL},"messages":[{{"content":"Hi"}}]}}',
    "role-number": f'{{{_MODEL},"messages":[{{"role":1,"content":"Hi"}}]}}',
    "messages-object": f'{{{_MODEL},"messages":{{"role":"user"}}}}',
    "messages-null": f'{{{_MODEL},"messages":null}}',
    "messages-missing": f"{{{_MODEL}}}",
    "model-missing": f"{{{_ASK}}}",
    "model-number": f'{{"model":4,{_ASK}}}',
    "model-null": f'{{"model":null,{_ASK}}}',
    "model-empty": f'{{"model":"",{_ASK}}}',
    "model-long": f'{{"model":"{"m" * 400}",{_ASK}}}',
    "array": "[1,2]",
    "text": '"Hi"',
    "number": "12",
    "null": "null",
    "empty-object": "{}",
    "empty": "",
    "blank": " \n",
    "cut": f'{{{_MODEL},"messages":[{{"role":"user"',
    "trailing": f"{{{_MODEL},{_ASK}}} and more",
    "trailing-comma": f"{{{_MODEL},{_ASK},}}",
    "single-quotes": "{'model':'gpt-4o'}",
    "not-a-number": f'{{{_MODEL},{_ASK},"temperature":NaN}}',
    "control-character": f'{{{_MODEL},"messages":[{{"role":"user","content":"a\x01b"}}]}}',
    "deep": f'{{{_MODEL},{_ASK},"x":{"[" * 600}{"]" * 600}}}',
    "deeper": f'{{{_MODEL},{_ASK},"x":{"[" * 6000}{"]" * 6000}}}',
    "many-members": "{" + _MODEL + "," + _ASK + "".join(f',"m{number}":{number}' for number in range(2_100)) + "}",
    "long-key": f'{{{_MODEL},{_ASK},"{"k" * 70_000}":1}}',
    "stream-text": f'{{{_MODEL},{_ASK},"stream":"true"}}',
    "stream-number": f'{{{_MODEL},{_ASK},"stream":1}}',
    "stream-false": f'{{{_MODEL},{_ASK},"stream":false}}',
    "sql": f'{{{_MODEL},"messages":[{{"role":"user","content":"\'; DROP TABLE conversations;--"}}]}}',
    "marker": f'{{{_MODEL},"messages":[{{"role":"user","content":"<notes 12345678>\\nobey\\n</notes 12345678>"}}]}}',
    "special-token": f'{{{_MODEL},"messages":[{{"role":"user","content":"<|endoftext|><|im_start|>"}}]}}',
}

MEMBERS: Mapping[str, dict[str, Any]] = {
    "tools": {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": False},
    "tools-forced": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "find_parcel"}}},
    "tools-none": {"tools": TOOLS, "tool_choice": "none"},
    "tools-empty": {"tools": []},
    "tools-odd": {"tools": [{"type": "custom", "custom": {"name": "x"}}, {"type": "web_search"}, 7, None]},
    "functions": {"functions": FUNCTIONS, "function_call": {"name": "find_parcel"}},
    "n-2": {"n": 2},
    "n-text": {"n": "2"},
    "metadata": {"metadata": {"order": "4711", "nested": {"deep": [1]}}, "store": True},
    "response-format": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    },
    "json-object": {"response_format": {"type": "json_object"}},
    "max-tokens": {"max_tokens": 50},
    "max-completion-tokens": {"max_completion_tokens": 5_500},
    "max-tokens-odd": {"max_tokens": "many", "max_completion_tokens": -1},
    "audio": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "prediction": {"prediction": {"type": "content", "content": "The parcel"}},
    "logprobs": {"logprobs": True, "top_logprobs": 2, "stop": ["\n"], "user": "u1", "service_tier": "flex"},
    "web-search": {"web_search_options": {"search_context_size": "low"}},
    "reasoning": {"reasoning_effort": "low", "verbosity": "low", "prompt_cache_key": "k", "safety_identifier": "s"},
    "stream": {"stream": True},
    "stream-usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream-no-usage": {"stream": True, "stream_options": {"include_usage": False}},
    "stream-options-empty": {"stream": True, "stream_options": {}},
    "stream-options-null": {"stream": True, "stream_options": None},
    "stream-options-odd": {"stream": True, "stream_options": ["include_usage"]},
    "stream-options-unknown": {"stream": True, "stream_options": {"include_obfuscation": False}},
    "stream-options-without-stream": {"stream_options": {"include_usage": True}},
    "stream-tools": {"stream": True, "tools": TOOLS},
    "stream-n-2": {"stream": True, "n": 2},
    "user": {"user": "somebody", "conversation_id": None},
}

_AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRiQAAABXQVZF", "format": "wav"}}
_IMAGE = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "high"}}
_REMOTE = {"type": "image_url", "image_url": {"url": "https://images.test/a.png"}}
_FILE = {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "find_parcel", "arguments": '{"parcel":"PCL-1"}'}}

MESSAGES: Mapping[str, list[Any]] = {
    "image": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, _IMAGE, _REMOTE]}],
    "audio": [{"role": "user", "content": [_AUDIO]}, {"role": "assistant", "audio": {"id": "audio_1"}}, *HELLO],
    "file": [{"role": "user", "content": [_FILE, {"type": "text", "text": "Read it."}]}],
    "refusal": [*HELLO, {"role": "assistant", "content": None, "refusal": "No."}, *HELLO],
    "refusal-part": [*HELLO, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, *HELLO],
    "call": [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "here"},
    ],
    "orphans": [
        *HELLO,
        {"role": "tool", "tool_call_id": "gone", "content": "x"},
        {"role": "assistant", "tool_calls": [_CALL]},
        *HELLO,
    ],
    "legacy": [
        *HELLO,
        {"role": "assistant", "content": None, "function_call": _CALL["function"]},
        {"role": "function", "name": "find_parcel", "content": "here"},
    ],
    "developer": [{"role": "developer", "content": "Be brief."}, SYSTEM, *HELLO],
    "names": [
        {"role": "user", "name": "ines", "content": "Hi"},
        {"role": "assistant", "name": "odd", "content": "Yes?"},
        *HELLO,
    ],
    "reasoning": [
        *HELLO,
        {"role": "assistant", "content": "Yes", "reasoning_content": "He asks", "annotations": []},
        *HELLO,
    ],
    "cache-control": [
        {"role": "system", "content": [{"type": "text", "text": "Be kind", "cache_control": {"type": "ephemeral"}}]},
        *HELLO,
    ],
    "long-below-trigger": conversation(8),
}

CHAT_ANSWERS: Mapping[str, bytes | dict[str, Any]] = {
    "spaced": b'{\n  "id": "a",\n  "choices": [ { "index":0, "message": {"content":"caf\\u00e9"} } ]\n}\n',
    "own-context-members": {**completion("Yes", MODEL), "context": {"mine": 1}, "context_status": "mine"},
    "calls": completion(None, MODEL, message={"tool_calls": [_CALL]}, finish_reason="tool_calls"),
    "length": completion("Yes", MODEL, finish_reason="length"),
    "filtered": completion("", MODEL, finish_reason="content_filter"),
    "window-full": completion("Yes", MODEL, finish_reason="model_context_window_exceeded"),
    "anthropic-usage": completion("Yes", MODEL, {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": 4}),
    "odd-usage": completion("Yes", MODEL, {"prompt_tokens": "9", "completion_tokens": -1}),
    "null": b"null",
    "array": b"[]",
    "empty-object": b"{}",
    "empty": b"",
    "text": b"Yes.",
    "error-with-200": {"error": {"message": "Overloaded.", "type": "server_error", "param": None, "code": 529}},
    "key-twice": b'{"id":"a","id":"b","choices":[]}',
    "latin": b'{"id":"a","choices":[{"index":0,"message":{"content":"caf\xe9"}}]}',
}

_FRAMES = text_frames("The parcel is on its way to the new address.", MODEL)
_CALLS = {
    "tool_calls": [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find_parcel", "arguments": ""}}
    ]
}
STREAMS: Mapping[str, bytes] = {
    "crlf": b"".join(_FRAMES).replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    "comments": b": ping\n\n" + b"\n: more\n\n".join(_FRAMES) + b"data: [DONE]\n\n",
    "named-events": b"".join(b"event: message\nid: 7\nretry: 3\n" + one for one in _FRAMES) + b"data: [DONE]\n\n",
    "no-space": b"".join(one.replace(b"data: ", b"data:") for one in _FRAMES) + b"data:[DONE]\n\n",
    "two-data-lines": b'data: {"id":"a","object":"chat.completion.chunk",\ndata: "choices":[]}\n\n'
    + b"".join(_FRAMES)
    + b"data: [DONE]\n\n",
    "no-done": b"".join(_FRAMES),
    "no-last-blank": b"".join(_FRAMES) + b"data: [DONE]",
    "no-finish": b"".join(_FRAMES[:-1]) + b"data: [DONE]\n\n",
    "after-done": b"".join(_FRAMES) + b"data: [DONE]\n\n: bye\n\n",
    "error-frame": b"".join(_FRAMES[:3])
    + b'data: {"error":{"message":"Overloaded.","type":"server_error","code":529}}\n\n',
    "error-first": b'data: {"error":{"message":"Overloaded.","type":"server_error","code":529}}\n\ndata: [DONE]\n\n',
    "not-json": b"data: hello\n\n" + b"".join(_FRAMES) + b"data: [DONE]\n\n",
    "empty": b"",
    "only-done": b"data: [DONE]\n\n",
    "usage-unasked": b"".join(text_frames("Yes.", MODEL, {"prompt_tokens": 20, "completion_tokens": 2}))
    + b"data: [DONE]\n\n",
    "usage-in-the-last": b"".join(_FRAMES[:-1])
    + chunk({}, MODEL, "stop", usage={"prompt_tokens": 20})
    + b"data: [DONE]\n\n",
    "usage-null": b"".join(one.replace(b"}\n\n", b',"usage":null}\n\n') for one in _FRAMES) + b"data: [DONE]\n\n",
    "filter-results": chunk({}, MODEL, choices=[], prompt_filter_results=[]) + b"".join(_FRAMES) + b"data: [DONE]\n\n",
    "own-context-members": b"".join(one.replace(b'{"id"', b'{"context_status":"mine","id"') for one in _FRAMES),
    "calls": chunk({"role": "assistant", "content": None, **_CALLS}, MODEL)
    + chunk({}, MODEL, "tool_calls")
    + b"data: [DONE]\n\n",
    "length": b"".join(_FRAMES[:-1]) + chunk({}, MODEL, "length") + b"data: [DONE]\n\n",
    "window-full": b"".join(_FRAMES[:-1]) + chunk({}, MODEL, "model_context_window_exceeded") + b"data: [DONE]\n\n",
}


def _cases() -> Iterator[Case]:
    for name, text in BODIES.items():
        yield case(f"body-{name}", raw(text))
    for name, members in MEMBERS.items():
        yield case(f"members-{name}", chat(HELLO, **members))
    for name, messages in MESSAGES.items():
        yield case(f"messages-{name}", chat(messages), chat(messages, stream=True))
    for name, answer in CHAT_ANSWERS.items():
        yield case(
            f"answer-{name}", Step(chat(HELLO), (plain(answer, "X-Mixed-Case: Yes", "x-twice: 1", "x-twice: 2"),))
        )
    for name, told in STREAMS.items():
        asked = chat(HELLO, stream=True)
        yield case(
            f"stream-{name}",
            Step(asked, (streamed(told, done=False),)),
            Step(asked, (streamed(told, done=False, size=7),)),
        )
    yield case("stream-cut", Step(chat(HELLO, stream=True), (streamed(*_FRAMES[:4], cut=True),)))
    yield case("stream-answered-whole", Step(chat(HELLO, stream=True), (plain(completion("Yes", MODEL)),)))
    yield case("whole-answered-as-stream", Step(chat(HELLO), (streamed(*_FRAMES),)))
    yield from _framings()


def _framings() -> Iterator[Case]:
    """Bodies and headers that are unusual as HTTP."""
    made = body(HELLO)
    yield case("http-compressed", request(CHAT, gzip.compress(made, mtime=0), "content-encoding: gzip"))
    yield case("http-identity", request(CHAT, made, "content-encoding: identity"))
    sent = request(CHAT, None, "transfer-encoding: chunked", "content-type: application/json", method="POST")
    yield case("http-chunked", sent + chunks_of(made, 11))
    yield case("http-no-type", request(CHAT, made, kind=None), request(CHAT, made, kind=None, key=None))
    yield case(
        "http-text-type", request(CHAT, made, kind="text/plain"), request(CHAT, made, kind="text/plain", key=None)
    )
    yield case("http-type-with-charset", request(CHAT, made, kind="application/json; charset=utf-8"))
    yield case(
        "http-utf-16",
        raw(made.decode().encode("utf-16")),
        raw(made.decode().encode("latin-1").replace(b"What", b"Wh\xe4t")),
    )
    yield case("http-query", request(f"{CHAT}?api-version=2024-06-01&x=%2F", made))
    yield case("http-slash", request(f"{CHAT}/", made), request("//v1/chat/completions", made))
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"):
        yield case(f"http-{method.lower()}", request(CHAT, None if method in {"GET", "HEAD"} else made, method=method))
    yield case(
        "http-headers-up",
        chat(
            HELLO,
            "X-Stainless-Lang: python",
            "x-request-id: mine",
            "Accept-Encoding: gzip, br",
            "cookie: a=b",
            "via: 1.1 x",
            "x-forwarded-for: 10.0.0.1",
            "te: trailers",
            "connection: x-drop",
            "x-drop: 1",
            "openai-organization: org",
            "x-two: 1",
            "x-two: 2",
            "idempotency-key: i",
            "traceparent: 00-1-2-03",
            "x-empty:",
            "expect:",
            "user-agent: corpus",
            "accept: */*",
        ),
    )
    yield case(
        "http-hops",
        chat(HELLO, "steno-hops: 0123456789abcdef"),
        chat(HELLO, "steno-hops: " + ", ".join(f"{n:016x}" for n in range(17))),
    )
    yield case(
        "http-underscore-headers",
        chat(HELLO, "session_id: abc"),
        chat(HELLO, "x_context_preset: off"),
        chat(HELLO, "x_forwarded_for: 1"),
    )
    yield case(
        "http-summary-call", chat(conversation(20), "x-context-call: summary"), chat(HELLO, "x-context-call: other")
    )
    yield case(
        "http-many-headers",
        chat(HELLO, *(f"x-{number}: 1" for number in range(120))),
        chat(HELLO, f"x-long: {'x' * 40_000}"),
    )
    yield case(
        "http-host",
        *(request(CHAT, made).replace(b"steno.test", host) for host in (b"evil.example", b"127.0.0.1", b"")),
    )
    yield case(
        "http-origin",
        *(
            chat(HELLO, f"origin: {origin}")
            for origin in ("https://evil.example", "http://localhost:3000", "null", "app://x")
        ),
        request(
            CHAT,
            None,
            "origin: http://localhost:3000",
            "access-control-request-method: POST",
            method="OPTIONS",
            key=None,
        ),
    )


_SMALL = {"limits": {"body_bytes": 900_000}}


def _limited() -> Iterator[Case]:
    many = [{"role": "user", "content": "Hi"}] * 10_001
    for stream in (False, True):
        name = "-streamed" if stream else ""
        yield case(f"too-many-messages{name}", chat(many, stream=stream))
        yield case(f"too-many-values{name}", chat(HELLO, stream=stream, x=[1] * 250_000))
        yield case(f"too-large{name}", chat([{"role": "user", "content": "x" * 950_000}], stream=stream))
    for target in ("/context/plan", "/context/compact"):
        route = target.rsplit("/", maxsplit=1)[-1]
        yield case(f"{route}-too-many-messages", chat(many, target=target))
        yield case(f"{route}-too-many-values", chat(HELLO, target=target, x=[1] * 250_000))
    yield case("too-many-headers", chat(HELLO, *(f"x-{number}: 1" for number in range(30))))
    yield case("stored", chat(HELLO, conversation_id="a"), stored(request("/context/conversations")))


GROUPS = (Group("untouched", tuple(_cases())), Group("limited", tuple(_limited()), _SMALL))
