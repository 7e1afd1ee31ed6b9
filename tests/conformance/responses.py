"""Samples of Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.history.messages import Kind
from app.core.summary.gate import Ending, SummaryAnswer
from app.core.tokens.usage import Tokens
from tests.conformance.samples import Samples

INSTRUCTIONS = rb'"instructions" : "Be kind. \u00e9 \/"'
ITEMS = (
    rb'{"role":"user","content":[{"type":"input_text","text":"Find both."}],"x_unknown":{"b":[],"a":1e3}}',
    b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA=="}',
    (
        b'{"type":"function_call","id":"fc_1","call_id":"c1","name":"find","status":"completed",'
        b'"arguments":"{\\"a\\": 1}"}'
    ),
    b'{"type":"function_call" ,\t"id":"fc_2","call_id":"c2","name":"look","arguments":"{}"}',
    b'{"type":"function_call_output","call_id":"c1","output":"%b"}' % (b"found it here; " * 40),
    b'{"type":"function_call_output" , "call_id":"c2","output":[{"type":"input_text","text":"nothing"}]}',
    (
        b'{"type":"message","id":"msg_1","status":"completed","role":"assistant","phase":"commentary","content":['
        b'{"type":"output_text","text":"One of them.","annotations":[],"logprobs":[]}]}'
    ),
    b'{"role":"user","content":"And the other?"}',
    b'{"role":"assistant","content":"It is gone."}',
    b'{"type":"message","role":"user","content":"Since when?"}',
)
TOOLS = b'[ {"type":"function","name":"find" ,"parameters":{"type":"object"},"strict":true}]'
_HISTORY = b"[ %b ]" % b" ,\n ".join(ITEMS)
_BODY = (
    b'{"temperature": 1.0, "x_seed":9007199254740993,"tools": %b,\n %b, "input" : %b, "model": "gpt-4o",'
    b' "store":false, "stream":true%b\t}\r\n'
)
_OWN = b', "context": {"pin": [1], "instructions": "dates"}, "conversation_id":"c"'


def _text_of(raw: bytes) -> str:
    held = json.loads(b"{%b}" % raw) if raw.startswith(b'"instructions"') else json.loads(raw)
    if isinstance(held, str):
        return held
    if held.get("type", "message") not in ("message", "function_call_output") and "instructions" not in held:
        return "" if held["type"] == "reasoning" else raw.decode()
    content = held.get("content", held.get("output", held.get("instructions")))
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def frame(type_: str, number: int, **members: Any) -> bytes:
    data = json.dumps({"type": type_, "sequence_number": number, **members})
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), data.encode())


def response(status: str, output: Sequence[Any] = (), **members: Any) -> dict[str, Any]:
    head = {"id": "resp_theirs", "object": "response", "created_at": 7, "model": "gpt-4o-2024", "error": None}
    return {**head, "status": status, "output": list(output), "usage": None, **members}


def message(text: str, **part: Any) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": [], **part}
    return {"type": "message", "id": "msg_2", "status": "completed", "role": "assistant", "content": [said]}


def ends(number: int, status: str = "completed", output: Sequence[Any] = (), **members: Any) -> bytes:
    return frame(f"response.{status}", number, response=response(status, output, **members))


USAGE = {
    "input_tokens": 70,
    "input_tokens_details": {"cached_tokens": 64},
    "output_tokens": 9,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 79,
}
_AT = {"item_id": "msg_2", "output_index": 0, "content_index": 0}
BEGINNING = (
    b": their comment\n\n",
    frame("response.created", 0, response=response("in_progress"), x_unknown=1.5),
    frame("response.in_progress", 1, response=response("in_progress")),
    frame("response.output_item.added", 2, output_index=0, item={**message(""), "content": []}),
    frame("response.output_text.delta", 3, **_AT, delta="The note "),
    frame("response.output_text.delta", 4, **_AT, delta="is: 42."),
    frame("response.output_item.done", 5, output_index=0, item=message("The note is: 42.")),
)
STREAM = (*BEGINNING, ends(6, output=[message("The note is: 42.")], usage=USAGE))
WHOLE = (
    b'{"id":"resp_theirs", "x_unknown":1.50,"object":"response","created_at":7,"status":"completed","error":null,'
    b'"incomplete_details":null,"model":"gpt-4o-2024","output":[{"type":"message","id":"msg_2","role":"assistant",'
    b'"status":"completed","content":[{"type":"output_text","text":"\\u00e9","annotations":[]}]},'
    b'{"type":"function_call","id":"fc_9","call_id":"c9","name":"find","arguments":"{}","status":"completed"}],'
    b'"usage":{"input_tokens":12,"output_tokens":3} }\n'
)
FULL: dict[str, Any] = {"incomplete_details": {"reason": "model_context_window_exceeded"}}
TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."


def _error(message: str, code: str | None = None, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


OVERFLOW = _error(f"{TOO_LONG} Its context length is 8192 tokens.", "context_length_exceeded", "input")


def _check_stream(frames: Sequence[bytes]) -> None:
    """Comments aside: it begins once and ends once, its numbers have no gaps, its id stays, items are added before
    anything is said of them, and done once."""
    told = [dict(_told_in(each)) for each in frames if not each.startswith(b":")]
    types = [str(members["type"]) for members in told]
    assert types[0] == "response.created"
    assert types.count("response.created") == 1
    assert [members["sequence_number"] for members in told] == list(range(len(told)))
    assert types[-1] in ("response.completed", "response.incomplete", "response.failed", "error")
    assert sum(type_ in ("response.completed", "response.incomplete", "response.failed") for type_ in types) <= 1
    ids = {held["id"] for members in told if isinstance(held := members.get("response"), dict)}
    assert len(ids) == 1
    added: set[object] = set()
    for members in told:
        if members["type"] == "response.output_item.added":
            assert members["output_index"] == len(added)
            added.add(members["output_index"])
        elif "output_index" in members:
            assert members["output_index"] in added
    begun = types.index("response.output_item.added") if "response.output_item.added" in types else len(types)
    assert not {"response.in_progress", "response.queued"} & set(types[begun:])


def _told_in(sent: bytes) -> Mapping[str, object]:
    text = sent.partition(b"data: ")[2] or sent
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


def _called(*frames: bytes) -> bytes:
    return b"".join(frames)


SAMPLES = Samples(
    request=_BODY % (TOOLS, INSTRUCTIONS, _HISTORY, b""),
    with_own_members=_BODY % (TOOLS, INSTRUCTIONS, _HISTORY, _OWN),
    unreadable=(
        *(b'{"model":"m"}', b'{"input":[]}', b'{"model":"m","input":{}}', b"[]", b"<p>", b""),
        b'{"model":"m","input":null}',
    ),
    model="gpt-4o",
    kinds=(
        Kind.INSTRUCTIONS,
        Kind.USER,
        *(Kind.ASSISTANT, Kind.ASSISTANT, Kind.ASSISTANT),
        *(Kind.RESULT, Kind.RESULT, Kind.ASSISTANT),
        *(Kind.USER, Kind.ASSISTANT, Kind.USER),
    ),
    instructions=1,
    cuts=(0, 1, 6, 7, 8, 9),
    result=4,
    others=(
        (b'{"type":"message","role":"developer","content":"a"}', Kind.INSTRUCTIONS),
        (b'{"type":"x_unheard_of","held":1}', Kind.OTHER),
        (b'{"role":"critic","content":"a"}', Kind.OTHER),
        (b'{"role":"user","content":"<environment_context>a</environment_context>"}', Kind.CLIENT),
        (b'{"type":"function_call_output","call_id":"c","output":"a"}', Kind.RESULT),
    ),
    shown=(
        (
            b'{"role":"user","x_own": 1.50,"content":[{"type":"input_text","text":"See:"},{"type":"input_image",'
            b'"image_url":"data:image/png;base64,AAAA"},{"type":"input_text","text":"What is it?"}]}'
        ),
        (
            b'{"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"See:"},'
            b'{"type":"input_image","file_id":"f"},{"type":"input_text","text":"What is it?"}]}'
        ),
    ),
    alike=(
        (
            b'{"role":"user","content":"a"}',
            b'{"type":"message","content":[{"type":"input_text","text":"a"}],"role":"user"}',
        ),
        (
            b'{"role":"assistant","content":"a"}',
            (
                b'{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":'
                b'"output_text","text":"a","annotations":[{"type":"url_citation"}],"logprobs":[1]}]}'
            ),
        ),
        (
            b'{"type":"function_call","call_id":"c","name":"f","arguments":"{\\"a\\": 1, \\"b\\":2}"}',
            b'{"type":"function_call","id":"fc","status":"completed","name":"f","call_id":"c","arguments":"{\\"b\\":2,\\"a\\":1}"}',
        ),
        (
            b'{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"x"}',
            b'{"type":"reasoning","id":"rs_2","summary":[]}',
        ),
        (b'"a"', b'{"role":"user","content":"a"}'),
        (
            b'{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","file_id":"f"}}',
            (
                b'{"type":"computer_call_output","call_id":"c","output":{"type":"computer_screenshot","file_id":"f",'
                b'"prompt_cache_breakpoint":{"mode":"explicit"}}}'
            ),
        ),
        (
            b'{"role":"user","content":"a"}',
            b'{"role":"user","content":"a","internal_chat_message_metadata_passthrough":{"turn_id":"t"}}',
        ),
    ),
    unlike=(
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"b"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"assistant","content":"a"}'),
        (b'{"role":"user","content":"a"}', b'{"role":"user","content":"a","x_unknown":1}'),
        (b'{"role":"assistant","content":"a"}', b'{"role":"assistant","content":"a","phase":"commentary"}'),
        (
            b'{"type":"function_call_output","call_id":"c","output":"a"}',
            b'{"type":"custom_tool_call_output","call_id":"c","output":"a"}',
        ),
        (
            b'{"type":"mcp_approval_request","id":"a","name":"f","server_label":"s","arguments":"{}"}',
            b'{"type":"mcp_approval_request","id":"b","name":"f","server_label":"s","arguments":"{}"}',
        ),
    ),
    text_of=_text_of,
    stream=STREAM,
    unasked=STREAM,
    ends_at=7,
    stream_usage=Tokens(prompt=70, completion=9, cached=64, reasoning=2),
    whole=WHOLE,
    whole_usage=Tokens(prompt=12, completion=3),
    full_stream=(*BEGINNING, ends(6, "incomplete", **FULL)),
    full_whole=json.dumps(response("incomplete", [message("t")], **FULL)).encode(),
    check_stream=_check_stream,
    told_in=_told_in,
    overflow=(400, json.dumps(OVERFLOW).encode()),
    overflow_frame=frame("error", 2, **OVERFLOW),
    refusal=(401, json.dumps(_error("Incorrect API key.", "invalid_api_key")).encode(), "Incorrect API key."),
    answers=(
        (_called(*STREAM), SummaryAnswer("The note is: 42.", usage=Tokens(70, 9, 64, 2))),
        (ends(0, output=[message("t")]), SummaryAnswer("t")),
        (
            _called(*BEGINNING, ends(6, "incomplete", incomplete_details={"reason": "max_output_tokens"})),
            SummaryAnswer("The note is: 42.", Ending.CUT_OFF, "max_output_tokens"),
        ),
        (
            _called(BEGINNING[1], frame("response.refusal.delta", 2, **_AT, delta="No."), ends(3)),
            SummaryAnswer("", Ending.REFUSED, "refusal"),
        ),
        (
            _called(frame("response.output_item.added", 2, output_index=0, item={"type": "function_call"}), ends(3)),
            SummaryAnswer("", Ending.CALLED, "completed"),
        ),
        (
            json.dumps(response("incomplete", [message("t")], incomplete_details={"reason": "odd"})).encode(),
            SummaryAnswer("t", Ending.OTHER, "odd"),
        ),
        (
            json.dumps(response("completed", [message("t")], usage=USAGE)).encode(),
            SummaryAnswer("t", usage=Tokens(70, 9, 64, 2)),
        ),
        (
            json.dumps(
                response("incomplete", [message("t")], incomplete_details={"reason": "content_filter"})
            ).encode(),
            SummaryAnswer("t", Ending.REFUSED, "content_filter"),
        ),
    ),
    no_answers=(
        b"",
        b"<p>",
        b"[]",
        b'{"object":"response"}',
        b"".join(BEGINNING),
        b"".join(BEGINNING)[:-9],
        b"".join((*BEGINNING, frame("error", 6, **OVERFLOW))),
        b"".join((*BEGINNING, ends(6, "failed", error={"code": "server_error", "message": "No."}))),
        json.dumps(OVERFLOW).encode(),
    ),
    lessons=(
        ("o3", json.dumps(_error("Unknown parameter: 'reasoning'.")).encode(), "reasoning", ""),
        ("m", json.dumps(_error("Unknown parameter: 'store'.")).encode(), "store", ""),
        ("m", json.dumps(_error("temperature must be left out")).encode(), "temperature", ""),
    ),
    nothing_taught=(b"", json.dumps(_error("No.")).encode(), json.dumps(_error("input: too many")).encode()),
    pins=(2,),
    tells_usage=True,
)
