"""Samples of Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.history.messages import Kind
from app.core.summary.gate import Ending, SummaryAnswer
from app.core.tokens.usage import Tokens
from tests.conformance.samples import Samples

SYSTEM = rb'[ {"type":"text","text":"Be kind. \u00e9 \/", "cache_control":{"type":"ephemeral","ttl":"1h"}} ]'
MESSAGES = (
    (
        rb'{"content":[{"type":"text","text":"Find both.","x_part":1.50},{"type":"image","source":{"type":"base64",'
        rb'"media_type":"image/png","data":"AAAA"}}],"role":"user","x_unknown":{"b":[],"a":1e3}}'
    ),
    (
        b'{"role":"assistant","content":[{"x_unknown":1.50} ,\t{"type":"text",'
        b'"text":"Looking."},{"type":"tool_use","id":"c1","name":"find","input":{"a": 1}},'
        b'{"type":"tool_use","id":"c2","name":"look","input":{}}]}'
    ),
    (
        b'{"role":"user" , "content":[{"type":"tool_result","tool_use_id":"c1","content":"%b"},'
        b'{"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"nothing"},'
        b'{"type":"image","source":{"type":"url","url":"https://pictures.example/1"}}],"is_error":true}]}'
    )
    % (b"found it here; " * 40),
    (
        b'{"role":"assistant","content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{"query":"q"}},'
        b'{"type":"web_search_tool_result","tool_use_id":"s1","content":[{"type":"web_search_result","title":"News",'
        b'"url":"https://news.example","encrypted_content":"c2VhbGVk"}]},'
        b'{"type":"text","text":"One of them.","citations":null}]}'
    ),
    b'{"role":"user","content":"And the other?"}',
    b'{"role":"assistant","content":[{"type":"text","text":"It is gone.","cache_control":{"type":"ephemeral"}}]}',
    b'{"role":"user","content":"Since when?"}',
)
TOOLS = b'[ {"name":"find" ,"description":"Finds.","input_schema":{"type":"object"}}]'
_HISTORY = b"[ %b ]" % b" ,\n ".join(MESSAGES)
_BODY = (
    b'{"temperature": 1.0, "x_seed":9007199254740993,"tools": %b,\n "system" : %b, "messages" : %b,'
    b' "model": "claude-sonnet-4-5", "stream":true%b\t}\r\n'
)
_OWN = b', "context": {"pin": [1], "instructions": "dates"}, "conversation_id":"c"'
_READ = ("text", "title", "url", "stdout", "content")


def _texts(value: Any) -> list[str]:
    """What a reader finds who walks through everything that is no source and no thought."""
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if not isinstance(value, dict):
        return []
    found = []
    for key, held in value.items():
        if isinstance(held, str):
            found += [held] if key in _READ else []
        elif key not in ("source", "input"):
            found += _texts(held)
    return found


def _text_of(raw: bytes) -> str:
    held = json.loads(raw)
    return held if isinstance(held, str) else "\n".join(_texts(held))


def frame(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **members}).encode())


def start(**usage: int) -> bytes:
    head = {"id": "msg_theirs", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-2025"}
    ends: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return frame("message_start", message={**head, **ends}, x_unknown=1.5)


def delta(reason: str, **usage: int) -> bytes:
    return frame("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def text(index: int, *pieces: str) -> tuple[bytes, ...]:
    return (
        frame("content_block_start", index=index, content_block={"type": "text", "text": ""}),
        *(frame("content_block_delta", index=index, delta={"type": "text_delta", "text": piece}) for piece in pieces),
        frame("content_block_stop", index=index),
    )


PING = frame("ping")
STOP = frame("message_stop")
BEGINNING = (
    b": their comment\n\n",
    start(input_tokens=6, cache_read_input_tokens=60, cache_creation_input_tokens=4, output_tokens=1),
    *text(0, "The note ", "is: 42.")[:1],
    PING,
    *text(0, "The note ", "is: 42.")[1:],
)
STREAM = (*BEGINNING, delta("end_turn", output_tokens=9), STOP)
WHOLE = (
    b'{"id":"msg_1", "x_unknown":1.50,"type":"message","role":"assistant","model":"claude-sonnet-4-5","content":['
    b'{"type":"text","text":"\\u00e9"},{"type":"tool_use","id":"c9","name":"find","input":{"a":[1.0]}}],'
    b'"stop_reason":"tool_use","stop_sequence":null,'
    b'"usage":{"input_tokens":2,"cache_read_input_tokens":10,"output_tokens":3} }\n'
)
TOO_LONG = "prompt is too long: 274468 tokens > 200000 maximum"


def _error(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def _whole(*blocks: Mapping[str, Any], reason: str = "end_turn", **usage: int) -> bytes:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
    return json.dumps({**head, "content": blocks, "stop_reason": reason, "usage": usage}).encode()


def _told_in(sent: bytes) -> Mapping[str, object]:
    lines = [line for line in sent.splitlines() if not line.startswith((b"event:", b":"))]
    text = b"\n".join(lines).strip().removeprefix(b"data:").strip()
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


def _check_stream(frames: Sequence[bytes]) -> None:
    """The order that the SDKs and the AI SDK insist on: one beginning, whole blocks in their order, one end."""
    events = [_told_in(each) for each in frames if not each.startswith(b":")]
    for each, told in zip([each for each in frames if not each.startswith(b":")], events, strict=True):
        assert each.startswith(b"event: %b\n" % str(told["type"]).encode()), "an event has its type for a name"
    kinds = [str(told["type"]) for told in events if told["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == 1
    opened: list[object] = []
    for told in events:
        match told["type"]:
            case "content_block_start":
                assert told["index"] == len(opened)
                opened.append(told["content_block"])
            case "content_block_delta" | "content_block_stop":
                assert told["index"] == len(opened) - 1
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert "error" in kinds[-1:] or kinds[-2:] == ["message_delta", "message_stop"]


SAMPLES = Samples(
    request=_BODY % (TOOLS, SYSTEM, _HISTORY, b""),
    with_own_members=_BODY % (TOOLS, SYSTEM, _HISTORY, _OWN),
    pins=(2,),
    unreadable=(b'{"model":"m"}', b'{"messages":[]}', b'{"model":"m","messages":{}}', b"[]", b"<p>", b""),
    model="claude-sonnet-4-5",
    kinds=(
        Kind.INSTRUCTIONS,
        Kind.USER,
        Kind.ASSISTANT,
        Kind.RESULT,
        Kind.ASSISTANT,
        Kind.USER,
        Kind.ASSISTANT,
        Kind.USER,
    ),
    instructions=1,
    cuts=(0, 1, 3, 4, 5, 6),
    result=2,
    others=(
        (b'{"role":"system","content":"a"}', Kind.INSTRUCTIONS),
        (b'"a"', Kind.INSTRUCTIONS),
        (
            b'{"role":"user","content":[{"type":"tool_result","content":"a"},{"type":"text","text":"b"}]}',
            Kind.USER,
        ),
        (b'{"role":"narrator","content":"a"}', Kind.OTHER),
        (b'{"role":"user","content":"<system-reminder>a</system-reminder>"}', Kind.CLIENT),
        (
            (
                b'{"role":"user","content":[{"type":"tool_result","content":"a"},'
                b'{"type":"text","text":"<system-reminder>b</system-reminder>"}]}'
            ),
            Kind.RESULT,
        ),
        (
            (
                b'{"role":"user","content":[{"type":"tool_result","content":"a"},{"type":"text","text":'
                b'"<system-reminder>\\nThe user sent the following message:\\nUse tabs.\\n\\nPlease address this '
                b'message and continue with your tasks.\\n</system-reminder>"}]}'
            ),
            Kind.USER,
        ),
    ),
    shown=(
        (
            b'{"role":"user","x_own": 1.50,"content":[{"type":"text","text":"See:"},{"type":"image","source":{"type":'
            b'"base64","media_type":"image/png","data":"AAAA"},"cache_control":{"type":"ephemeral"}},'
            b'{"type":"text","text":"What is it?"}]}'
        ),
        (
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"See:"},'
            b'{"type":"image","source":{"type":"url","url":"https://pictures.example/1"}}]},'
            b'{"type":"text","text":"What is it?"}]}'
        ),
        (
            b'{"role":"user","content":[{"type":"document","source":{"type":"content","content":[{"type":"text","text":'
            b'"See:"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]}},'
            b'{"type":"text","text":"What is it?"}]}'
        ),
    ),
    alike=(
        (b'{"role":"user","content":"a"}', b'{"content":[{"type":"text","text":"a"}],"role":"user"}'),
        (b'"a"', b'[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]'),
        (
            b'{"role":"assistant","content":[{"type":"thinking","thinking":"t"},{"type":"text","text":"a","citations":[]}]}',
            b'{"role":"assistant","content":"a"}',
        ),
        (
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"a","cache_control":{}}]}',
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"a"}]}]}',
        ),
        (
            (
                b'{"role":"user","content":[{"type":"search_result","title":"t","source":"s","content":'
                b'[{"type":"text","text":"a"}]}]}'
            ),
            (
                b'{"role":"user","content":[{"type":"search_result","title":"t","source":"s","content":'
                b'[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}]}'
            ),
        ),
        (
            (
                b'{"role":"user","content":[{"type":"document","source":{"type":"content","content":'
                b'[{"type":"text","text":"a"}]}}]}'
            ),
            (
                b'{"role":"user","content":[{"type":"document","source":{"type":"content","content":'
                b'[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}}]}'
            ),
        ),
        (
            b'{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":1,"b":2}}]}',
            b'{"role":"assistant","content":[{"type":"tool_use","input":{"b":2,"a":1},"name":"f","id":"c"}]}',
        ),
    ),
    unlike=(
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"b"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"assistant","content":"a"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"a","x_unknown":1}'),
        (
            b'{"role":"user","content":[{"type":"text","text":"a","x":1}]}',
            b'{"role":"user","content":[{"type":"text","text":"a"}]}',
        ),
        (
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"a"}]}',
            b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"a","is_error":true}]}',
        ),
    ),
    text_of=_text_of,
    tells_usage=True,
    stream=STREAM,
    unasked=STREAM,
    ends_at=7,
    stream_usage=Tokens(prompt=70, completion=9, cached=60, written=4),
    whole=WHOLE,
    whole_usage=Tokens(prompt=12, completion=3, cached=10),
    full_stream=(*BEGINNING, delta("model_context_window_exceeded", output_tokens=9), STOP),
    full_whole=_whole({"type": "text", "text": "t"}, reason="model_context_window_exceeded"),
    check_stream=_check_stream,
    told_in=_told_in,
    overflow=(400, json.dumps(_error(TOO_LONG)).encode()),
    overflow_frame=frame("error", error=_error(TOO_LONG)["error"]),
    refusal=(401, json.dumps(_error("invalid x-api-key", "authentication_error")).encode(), "invalid x-api-key"),
    answers=(
        (b"".join(STREAM), SummaryAnswer("The note is: 42.", usage=Tokens(70, 9, 60, written=4))),
        (b"".join((start(), *text(0, "t"), delta("stop_sequence"), STOP)), SummaryAnswer("t")),
        (
            b"".join((start(), *text(0, "t"), delta("max_tokens"))),
            SummaryAnswer("t", Ending.CUT_OFF, "max_tokens"),
        ),
        (b"".join((start(), delta("refusal"), STOP)), SummaryAnswer("", Ending.REFUSED, "refusal")),
        (
            b"".join(
                (
                    start(),
                    frame("content_block_start", index=0, content_block={"type": "tool_use", "id": "c", "input": {}}),
                    delta("tool_use"),
                )
            ),
            SummaryAnswer("", Ending.CALLED, "tool_use"),
        ),
        (b"".join((start(), *text(0, "t"), delta("odd"))), SummaryAnswer("t", Ending.OTHER, "odd")),
        (b"".join((start(), *text(0, "t"), delta("\n odd"))), SummaryAnswer("t", Ending.OTHER, "other")),
        (
            _whole({"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "t"}, input_tokens=5),
            SummaryAnswer("t", usage=Tokens(5)),
        ),
        (
            _whole({"type": "text", "text": "t"}, reason="model_context_window_exceeded"),
            SummaryAnswer("t", Ending.CUT_OFF, "max_tokens"),
        ),
    ),
    no_answers=(
        b"",
        b"<p>",
        b"[]",
        b'{"content":7}',
        b"".join(BEGINNING),
        b"".join(BEGINNING) + b"data: [DONE]\n\n",
        b"".join(BEGINNING)[:-9],
        b"".join((*BEGINNING, frame("error", error=_error(TOO_LONG)["error"]))),
        json.dumps(_error(TOO_LONG)).encode(),
    ),
    lessons=(
        ("o3", json.dumps(_error("thinking.type: disabled is not supported by this model")).encode(), "thinking", ""),
        ("m", json.dumps(_error("stream: Extra inputs are not permitted")).encode(), "stream", ""),
        ("m", json.dumps(_error("`temperature` is deprecated for this model.")).encode(), "temperature", ""),
    ),
    nothing_taught=(
        b"",
        json.dumps(_error("No.")).encode(),
        json.dumps(_error("max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens")).encode(),
        json.dumps(_error("messages.1.content.0: Invalid `signature` in `thinking` block")).encode(),
    ),
)
