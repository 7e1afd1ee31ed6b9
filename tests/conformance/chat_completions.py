"""Samples of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.history.messages import Kind
from app.core.summary.gate import Ending, SummaryAnswer
from app.core.tokens.usage import Tokens
from tests.conformance.samples import Samples

MESSAGES = (
    rb'{"role":"system","content":"Be kind. \u00e9 \/"}',
    rb'{"content":[{"type":"text","text":"Find both."},{"x_part":1.50}],"role":"user","x_unknown":{"b":[],"a":1e3}}',
    (
        b'{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"find",'
        b'"arguments":"{\\"a\\": 1}"}} ,\t{"id":"c2","type":"function","function":{"name":"look","arguments":"{}"}}]}'
    ),
    b'{"role":"tool","tool_call_id":"c1","content":"%b"}' % (b"found it here; " * 40),
    b'{"role":"tool" , "tool_call_id":"c2","content":[{"type":"text","text":"nothing"}]}',
    b'{"role":"assistant","content":"One of them.","reasoning_content":"Hm."}',
    b'{"role":"user","content":"And the other?","name":"ann"}',
    b'{"role":"assistant","content":"It is gone.","refusal":null}',
    b'{"role":"user","content":"Since when?"}',
)
TOOLS = b'[ {"type":"function","function":{"name":"find" ,"parameters":{"type":"object"}}}]'
_HISTORY = b"[ %b ]" % b" ,\n ".join(MESSAGES)
_BODY = (
    b'{"temperature": 1.0, "seed":9007199254740993,"tools": %b,\n "messages" : %b, "model": "gpt-4o",'
    b' "stream":true%b\t}\r\n'
)
_OWN = (
    b', "context": {"pin": [1], "instructions": "dates"}, "conversation_id":"c" , "context_management":'
    b'[{"type":"compaction","compact_threshold":4000}]'
)


def _text_of(raw: bytes) -> str:
    content = json.loads(raw)["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def frame(chunk: Mapping[str, Any] | str) -> bytes:
    return b"data: %b\n\n" % (chunk if isinstance(chunk, str) else json.dumps(chunk)).encode()


def chunk(delta: Mapping[str, Any] | None = None, finish: str | None = None, **members: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "chatcmpl-theirs", "object": "chat.completion.chunk", "created": 7, "model": "gpt-4o-2024"}
    return frame({**head, "choices": choices, **members})


def _whole(message: Mapping[str, Any], finish: str | None = "stop", **members: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], **members}).encode()


def _error(message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


USAGE = {"prompt_tokens": 70, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 64}}
DONE = frame("[DONE]")
BEGINNING = (
    b": their comment\n\n",
    chunk({"role": "assistant", "content": ""}, x_unknown=1.5),
    chunk({"content": "The note "}),
    chunk({"content": "is: 42."}),
)
WHOLE = (
    b'{"id":"chatcmpl-1", "x_unknown":1.50,"created":7,"model":"gpt-4o-2024","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"\\u00e9"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":12,"completion_tokens":3} }\n'
)
TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
OVERFLOW = _error(TOO_LONG, "context_length_exceeded", "messages")


def _check_stream(frames: Sequence[bytes]) -> None:
    """Nothing but chunks, of one head and with one role; an error or the end last."""
    told = [_told_in(each) for each in frames]
    assert all("choices" in _told_in(each) or "error" in _told_in(each) for each in frames if each[:7] == b"data: {")
    chunks = [members for members in told if "choices" in members]
    assert len({(members["id"], members["created"], members["model"]) for members in chunks}) == 1
    deltas = [choice["delta"] for members in chunks for choice in _list(members["choices"])]
    assert [delta.get("role") for delta in deltas if "role" in delta] == ["assistant"]
    assert "role" in deltas[0]
    assert frames[-1] == DONE or "error" in told[-1]


def _list(value: object) -> list[Any]:
    assert isinstance(value, list)
    return value


def _told_in(sent: bytes) -> Mapping[str, object]:
    text = sent.removeprefix(b"data: ")
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


def _answered(*chunks: bytes) -> bytes:
    return b"".join((*chunks, DONE))


SAMPLES = Samples(
    request=_BODY % (TOOLS, _HISTORY, b""),
    with_own_members=_BODY % (TOOLS, _HISTORY, _OWN),
    unreadable=(b'{"model":"m"}', b'{"messages":[]}', b'{"model":"m","messages":{}}', b"[]", b"<p>", b""),
    model="gpt-4o",
    kinds=(
        Kind.INSTRUCTIONS,
        Kind.USER,
        Kind.ASSISTANT,
        Kind.RESULT,
        Kind.RESULT,
        Kind.ASSISTANT,
        Kind.USER,
        Kind.ASSISTANT,
        Kind.USER,
    ),
    instructions=1,
    cuts=(0, 1, 4, 5, 6, 7),
    result=2,
    others=(
        (b'{"role":"developer","content":"a"}', Kind.INSTRUCTIONS),
        (b'{"role":"function","name":"f","content":"a"}', Kind.RESULT),
        (b'{"role":"ipython","content":"a"}', Kind.OTHER),
        (b'{"role":"user","content":"<system-reminder>a</system-reminder>"}', Kind.CLIENT),
        (
            b'{"role":"user","content":[{"type":"text","text":"<environment_context>a</environment_context>"}]}',
            Kind.CLIENT,
        ),
    ),
    shown=(
        (
            b'{"role":"user","x_own": 1.50,"content":[{"type":"text","text":"See:"},{"type":"image_url","image_url":'
            b'{"url":"data:image/png;base64,AAAA"}},{"type":"text","text":"What is it?"}]}'
        ),
    ),
    alike=(
        (b'{"role":"user","content":"a"}', b'{"content":[{"type":"text","text":"a"}],"role":"user"}'),
        (b'{"role":"assistant","content":null}', b'{"role":"assistant","content":"","tool_calls":[]}'),
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"a","cache_control":{"type":"ephemeral"}}'),
        (
            b'{"role":"user","content":"a"}',
            b'{"role":"user","content":[{"type":"text","text":"a","prompt_cache_breakpoint":{"mode":"explicit"}}]}',
        ),
        (
            b'{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}',
            (
                b'{"role":"user","content":[{"type":"file","file":{"file_id":"f"},"prompt_cache_breakpoint":'
                b'{"mode":"explicit"}}]}'
            ),
        ),
        (
            b'{"role":"assistant","content":"a"}',
            b'{"role":"assistant","content":"a","reasoning_content":"r","reasoning_details":[{"text":"r"}]}',
        ),
        (
            b'{"role":"assistant","content":"a"}',
            b'{"role":"assistant","content":[{"type":"thinking","thinking":"r"},{"type":"text","text":"a"}]}',
        ),
        (
            b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}',
            (
                b'{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"},'
                b'"cache_control":{"type":"ephemeral"}}]}'
            ),
        ),
    ),
    unlike=(
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"b"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"assistant","content":"a"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"a","x_unknown":1}'),
    ),
    text_of=_text_of,
    stream=(*BEGINNING, chunk({}, "stop"), chunk(usage=USAGE), DONE),
    unasked=(*BEGINNING, chunk({}, "stop"), DONE),
    ends_at=4,
    stream_usage=Tokens(prompt=70, completion=9, cached=64),
    whole=WHOLE,
    whole_usage=Tokens(prompt=12, completion=3),
    full_stream=(*BEGINNING, chunk({}, "model_context_window_exceeded"), DONE),
    full_whole=_whole({"content": "t"}, "model_context_window_exceeded"),
    check_stream=_check_stream,
    told_in=_told_in,
    overflow=(400, json.dumps(OVERFLOW).encode()),
    overflow_frame=frame(OVERFLOW),
    refusal=(401, json.dumps(_error("Incorrect API key.", "invalid_api_key")).encode(), "Incorrect API key."),
    answers=(
        (
            _answered(*BEGINNING, chunk({}, "stop"), chunk(usage=USAGE)),
            SummaryAnswer("The note is: 42.", usage=Tokens(70, 9, 64)),
        ),
        (_answered(chunk({"content": "t"}, "length")), SummaryAnswer("t", Ending.CUT_OFF, "length")),
        (_answered(chunk({"refusal": "No."}), chunk({}, "stop")), SummaryAnswer("", Ending.REFUSED, "refusal")),
        (_answered(chunk({"tool_calls": [{}]}, "tool_calls")), SummaryAnswer("", Ending.CALLED, "tool_calls")),
        (_answered(chunk({"content": "t"}, "odd")), SummaryAnswer("t", Ending.OTHER, "odd")),
        (_whole({"content": "t"}, usage={"prompt_tokens": 5}), SummaryAnswer("t", usage=Tokens(5))),
        (_whole({"content": "t"}, "content_filter"), SummaryAnswer("t", Ending.REFUSED, "content_filter")),
    ),
    no_answers=(
        b"",
        b"<p>",
        b"[]",
        b'{"choices":[]}',
        b"".join(BEGINNING),
        b"".join(BEGINNING)[:-9],
        b"".join((*BEGINNING, frame(OVERFLOW))),
        json.dumps(OVERFLOW).encode(),
    ),
    lessons=(
        (
            "m",
            json.dumps(_error("'max_tokens' is not supported with this model. Use 'max_completion_tokens'.")).encode(),
            "max_tokens",
            "max_completion_tokens",
        ),
        ("o3", json.dumps(_error("Unknown argument: reasoning_effort")).encode(), "reasoning_effort", ""),
        ("m", json.dumps(_error("stream_options is not known here")).encode(), "stream_options", ""),
        ("m", json.dumps(_error("temperature must be left out")).encode(), "temperature", ""),
    ),
    nothing_taught=(b"", json.dumps(_error("No.")).encode(), json.dumps(_error("messages: too many")).encode()),
)
