"""Streams: the provider's bytes in order and on time, compaction events, and ends that are never mistaken."""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest

from app.errors import UpstreamUnreachable
from app.proxy import options
from app.wire.early import EVENT_SHAPES
from lab.simulator import Fault, ScriptedCall, Simulator
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.e2e.raw import arrival, connected, curl, pieces, post, read_until, request_bytes, timed_body
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, open_stream_head, stream_head

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LONG: Any = long_history()
TRUSTING: Any = [{"match": "*", "context_window": 9_000}]
"""More than the simulator has: what is over it is pruned here where no summary can be had."""
FIRST = b'data: {"id":"c1","x_new":1.0, "choices" :[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"caf\\u00e9"},"index":0,"finish_reason": null}],"id":"c1"}\n\n'
FINISH = b'data: {"id":"c1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}] }\n\n'
DONE = b"data: [DONE]\n\n"
SUMMARY = json.dumps(
    {
        "choices": [
            {
                "message": {"role": "assistant", "content": "The customer asked about fifteen orders. " * 10},
                "finish_reason": "stop",
            }
        ]
    }
).encode()


def data(stream: bytes) -> list[Any]:
    """The JSON of every data frame but `[DONE]`."""
    frames = (frame for frame in stream.split(b"\n\n") if frame.startswith(b"data: {"))
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def compactions(frames: Iterable[Any]) -> list[Any]:
    return [frame["compaction"] for frame in frames if "compaction" in frame]


# Untouched streams


def test_stream_passes_to_the_byte_but_for_the_status(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Comments, unknown fields, odd spacing and line ends included."""
    comment, odd = b": OPENROUTER PROCESSING\n\n", b"event: x\ndata: not JSON\nid: 7\n\n"
    crlf = TEXT.replace(b"\n", b"\r\n")
    scripted.then(stream_head() + chunked(comment + FIRST + odd + TEXT + crlf + FINISH + DONE) + LAST_CHUNK)
    answered = post(before_scripted().url, chat(stream=True))
    status = b',"context_status":"full"'
    context = answered.body.partition(b',"context":')[2].partition(b" }\n\ndata: [DONE]")[0]
    assert json.loads(context)["status"] == "full"
    first = FIRST.replace(b"]}\n", b"]" + status + b"}\n")
    finish = FINISH.replace(b"] }", b"]" + status + b',"context":' + context + b" }")
    assert answered.body == comment + first + odd + TEXT + crlf + finish + DONE
    assert answered.header("content-type") == "text/event-stream"
    assert answered.header("x-context-status") == "full"


STREAMS = {
    "/v1/chat/completions": (FIRST, b"event: x\n" + TEXT, b"id: 7\n" + FINISH, DONE),
    "/v1/messages": (
        (
            b'event: message_start\ndata: {"type":"message_start","message":{"id":"m1","type":"message",'
            b'"role":"assistant","content":[],"model":"m","usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
        ),
        (
            b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
            b'"content_block":{"type":"text","text":""}}\n\n'
        ),
        (
            b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
            b'"usage":{"output_tokens":2}}\n\n'
        ),
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
    "/v1/responses": (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0,"response":{"id":"r1"}}\n\n',
        (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":1,'
            b'"delta":"a"}\n\n'
        ),
        (
            b'event: response.completed\ndata: {"type":"response.completed","sequence_number":2,'
            b'"response":{"id":"r1","output":[],"usage":{"input_tokens":5,"output_tokens":1}}}\n\n'
        ),
    ),
}
LINE_ENDS = {
    "CR": [b"\r"],
    "CRLF": [b"\r\n"],
    "LF, CRLF": [b"\n", b"\r\n"],
    "CRLF, LF": [b"\r\n", b"\n"],
    "CR, CRLF": [b"\r", b"\r\n"],
    "LF, CR": [b"\n", b"\r"],
}


@pytest.mark.sampled(0.2)
@pytest.mark.parametrize("cut", ["frames", "behind each CR", "one piece"])
@pytest.mark.parametrize("ends", LINE_ENDS)
@pytest.mark.parametrize("target", STREAMS)
def test_a_stream_is_read_and_passed_on_whatever_ends_its_lines(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str, ends: str, cut: str
) -> None:
    """To the byte where nothing is added, and where it is, only with that; a cut one has no end."""
    frames = [b"".join(ended(frame, LINE_ENDS[ends])) for frame in STREAMS[target]]
    whole = b"".join(frames)
    cuts = {"frames": frames, "behind each CR": re.split(rb"(?<=\r)", whole), "one piece": [whole]}
    steps = [step for piece in cuts[cut] if piece for step in (chunked(piece), 0.005)]
    scripted.then(stream_head(), *steps, LAST_CHUNK)
    scripted.then(stream_head(), chunked(frames[0] + frames[1]), 0.02, LAST_CHUNK)
    asked = {"model": MODEL, "max_tokens": 9, "stream": True}
    asked["input" if target.endswith("responses") else "messages"] = HELLO
    url = before_scripted().url
    body = post(url, asked, target=target).body
    assert body.count(b'"context_status"') == 2
    ours = rb',"context_status":"full"(?:,"context":\{[^\r\n]*\}(?= ?\}[\r\n]))?'
    assert re.sub(ours, b"", body) == whole
    told = post(url, asked, target=target).body
    assert b"upstream_disconnected" in told
    assert told.splitlines()[-2].startswith(b"data: ")


def ended(frame: bytes, ends: list[bytes]) -> Iterator[bytes]:
    """A frame whose lines end so, in turn, the last two with the last two of them."""
    *lines, last = frame.removesuffix(b"\n\n").split(b"\n")
    for line in lines:
        yield line + ends[-1]
    yield last + ends[0] + ends[-1]


def test_frames_leave_as_they_arrive(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """A piece is not held back for the next one, and its end may come later than its beginning."""
    scripted.then(
        stream_head() + chunked(FIRST), 0.3, chunked(TEXT + FINISH[:9]), 0.3, chunked(FINISH[9:] + DONE) + LAST_CHUNK
    )
    with connected(before_scripted().url) as connection:
        connection.sendall(request_bytes(chat(stream=True), b"connection: close"))
        arrived = pieces(connection)
    first, text, done = (arrival(arrived, mark) for mark in (b"assistant", b"caf", b"[DONE]"))
    assert text - first == pytest.approx(0.3, abs=0.2)
    assert done - text == pytest.approx(0.3, abs=0.2)


def test_no_byte_leaves_before_the_providers_status(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Not even of the header."""
    scripted.then(0.5, answer(b'{"error":{}}', status=b"429 Too Many Requests"))
    with connected(before_scripted().url) as connection:
        began = time.monotonic()
        connection.sendall(request_bytes(chat(stream=True), b"connection: close"))
        arrived = pieces(connection)
    assert arrived[0][0] - began > 0.4
    assert arrived[0][1].startswith(b"HTTP/1.1 429")


def test_stored_summary_holds_the_status_too(simulator: Simulator, steno: StartSteno) -> None:
    """Using a stored chunk is no reason to start early; the SDK can retry."""
    served = steno()
    post(served.url, chat(LONG))
    simulator.next_chat(status=503)
    refused = post(served.url, chat(LONG, stream=True))
    assert (refused.status, refused.header("x-context-status")) == (503, "summarized")
    frames = data(post(served.url, chat(LONG, stream=True)).body)
    assert [frame.get("context_status") for frame in (frames[0], frames[1], frames[-1])] == [
        "summarized",
        None,
        "summarized",
    ]
    assert frames[-1]["context"]["actions"] == ["summarized"]
    assert not compactions(frames)
    assert len(simulator.summaries) == 1


def test_json_answer_to_a_stream_request_passes(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """As the JSON that it is."""
    scripted.then(answer(b'{"id":"c1"}'))
    answered = post(before_scripted().url, chat(stream=True))
    assert answered.json["id"] == "c1"
    assert answered.json["context_status"] == "full"


# Cuts

CUTS = {
    "reset": (stream_head(), chunked, "reset"),
    "close": (stream_head(), chunked, "close"),
    "clean end": (stream_head(), chunked, LAST_CHUNK),
    "end of the connection": (open_stream_head(), bytes, "close"),
}


@pytest.mark.parametrize(("head", "frame", "end"), CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("sent", [b"", FIRST + TEXT[:20]], ids=["0", "1.5"])
def test_cut_stream_ends_with_an_error(
    scripted: ScriptedProvider, before_scripted: StartSteno, head: bytes, frame: Any, end: Any, sent: bytes
) -> None:
    """Also where the connection was to be closed, and nothing tells a cut from an end."""
    scripted.then(head, frame(sent) if sent else b"", 0.05, end)
    answered = post(before_scripted().url, chat(stream=True))
    *_, last, rest = answered.body.split(b"\n\n")
    assert rest == b""
    assert last.startswith(b'data: {"error":{"message":')
    assert json.loads(last[6:])["error"]["code"] == "upstream_disconnected"
    assert b"[DONE]" not in answered.body


@pytest.mark.parametrize(
    "kept", [FINISH, FINISH + DONE, DONE, FINISH[:-1]], ids=["finish", "both", "done", "no blank line"]
)
def test_stream_that_had_its_end_ends_cleanly(
    scripted: ScriptedProvider, before_scripted: StartSteno, kept: bytes
) -> None:
    """An error after the finish chunk would spoil a good answer."""
    scripted.then(stream_head() + chunked(FIRST + TEXT + kept), 0.05, "reset")
    answered = post(before_scripted().url, chat(stream=True))
    assert b'"error"' not in answered.body
    assert b"caf" in answered.body


def test_cut_after_one_of_two_choices_is_a_cut(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Each choice has an end of its own."""
    other = TEXT.replace(b'"index":0', b'"index":1')
    scripted.then(stream_head() + chunked(FIRST + FINISH + other), 0.05, "close")
    answered = post(before_scripted().url, chat(stream=True, n=2))
    assert data(answered.body)[-1]["error"]["code"] == "upstream_disconnected"


def test_silence_in_the_middle_of_a_stream_is_an_error(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    scripted.then(stream_head() + chunked(FIRST), "hang")
    answered = post(before_scripted(upstream={"between_bytes_seconds": 0.3}).url, chat(stream=True))
    assert data(answered.body)[-1]["error"]["code"] == "upstream_timeout"
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)


@pytest.mark.parametrize("cut", ["reset", "close", "end"])
@pytest.mark.parametrize("messages", [HELLO, LONG], ids=["untouched", "compacted"])
def test_sdk_raises_on_a_cut_stream(simulator: Simulator, steno: StartSteno, cut: Any, messages: Any) -> None:
    """A cut answer is not taken for a whole one."""
    simulator.next_chat(cut=cut, after=3)
    stream = steno().sdk().chat.completions.create(model=MODEL, messages=messages, stream=True)
    with pytest.raises(openai.APIError, match=r"ended in the middle|closed the connection"):
        list(stream)


def test_raw_relay_that_breaks_off_is_curls_partial_file(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """On a path that Steno does not read it aborts the connection."""
    steno = before_scripted()
    scripted.default = (stream_head() + chunked(b"data: 1\n\n"), 0.05, "close")
    assert curl(f"{steno.url}/v1/embeddings", "--data", "{}", "-H", "content-type: application/json").returncode == 18
    scripted.default = (stream_head() + chunked(b"data: 1\n\n") + LAST_CHUNK,)
    assert curl(f"{steno.url}/v1/embeddings", "--data", "{}", "-H", "content-type: application/json").returncode == 0


# Compaction events


def stream_of(steno: Steno, *headers: bytes, messages: Any = LONG, **members: Any) -> bytes:
    return post(steno.url, chat(messages, stream=True, **members), *headers).body


def test_compaction_is_told_in_chunks(simulator: Simulator, steno: StartSteno) -> None:
    """clients.md, the default shape: no event line, choices never empty, one role, one head, no comment."""
    simulator.next_summary(delay=0.2)
    answered = post(steno().url, chat(LONG, stream=True))
    frames = data(answered.body)
    assert b"\nevent:" not in b"\n" + answered.body
    assert b"\n:" not in b"\n" + answered.body
    assert all(frame["choices"] for frame in frames)
    assert len({(frame["id"], frame["created"], frame["model"]) for frame in frames}) == 1
    assert frames[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    roles = [choice["delta"].get("role") for frame in frames for choice in frame["choices"]]
    assert roles == ["assistant", *[None] * (len(frames) - 1)]
    started, completed = compactions(frames)
    assert compactions(frames[:2]) == [started, completed]
    assert (started["type"], completed["type"]) == ("compaction_started", "compaction_completed")
    assert started["id"] == completed["id"]
    assert started["tokens"]["window"] == 8_000
    assert completed["status"] == frames[-1]["context_status"] == "summarized"
    assert answered.header("x-context-status") == "pending"
    assert answered.header("cache-control") == "no-cache"
    assert answered.header("x-accel-buffering") == "no"
    assert answered.header("content-type") == "text/event-stream; charset=utf-8"
    assert answered.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("fault", [Fault(), Fault(status=500)], ids=["completed", "failed"])
def test_a_member_has_one_type_wherever_it_stands(simulator: Simulator, steno: StartSteno, fault: Fault) -> None:
    """clients.md: LangChain.js merges the chunks of a stream, and throws where two types of a member differ."""
    simulator.summary_default = fault
    answered = post(steno(models=TRUSTING).url, chat(turns(22), stream=True))
    frames = data(answered.body)
    told = [*compactions(frames), frames[-1].get("context", {})]
    assert [event.get("type") for event in told[:2]] == [
        "compaction_started",
        "compaction_failed" if fault.status == 500 else "compaction_completed",
    ]
    types: dict[str, set[type]] = {}
    for path, kind in (pair for event in told for pair in types_in(event)):
        types.setdefault(path, set()).add(kind)
    assert {path: kinds for path, kinds in types.items() if len(kinds) > 1} == {}
    assert types["messages"] == {dict}
    assert types["messages.summarizing"] == {int}


def types_in(value: Any, path: str = "") -> Iterator[tuple[str, type]]:
    """The type of each member, by its path. Null fits everywhere."""
    for name, member in value.items():
        if member is not None:
            yield f"{path}{name}", type(member)
        if isinstance(member, dict):
            yield from types_in(member, f"{path}{name}.")


ENCODE: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress}


@pytest.mark.parametrize("in_one_piece", [False, True])
@pytest.mark.parametrize("name", ENCODE)
def test_a_compressed_answer_to_a_stream_that_has_begun_is_decoded(
    scripted: ScriptedProvider, before_scripted: StartSteno, name: str, in_one_piece: bool
) -> None:
    """It is paid for, too: as a stream, however its bytes are cut, and in one piece."""
    coded = f"content-encoding: {name}".encode()
    if in_one_piece:
        answering = answer(ENCODE[name](completion(MESSAGES["text"])), coded)
    else:
        encoded = ENCODE[name](FIRST + TEXT + FINISH + DONE)
        answering = stream_head(coded) + b"".join(chunked(bytes([byte])) for byte in encoded) + LAST_CHUNK
    scripted.then(answer(SUMMARY)).then(answering)
    told = stream_of(before_scripted())
    choices = [choice for frame in data(told) for choice in frame["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "caf\u00e9"
    assert data(told)[-1]["context_status"] == "summarized"
    assert told.endswith(DONE)


def test_compressed_frames_leave_as_they_arrive(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """What a provider flushed is not held back until more comes."""
    encoder = zlib.compressobj(wbits=31)
    first, rest = (encoder.compress(FIRST + TEXT) + encoder.flush(zlib.Z_SYNC_FLUSH)), encoder.compress(FINISH + DONE)
    head = stream_head(b"content-encoding: gzip")
    scripted.then(answer(SUMMARY)).then(head + chunked(first), 1.0, chunked(rest + encoder.flush()) + LAST_CHUNK)
    with connected(before_scripted().url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True), b"connection: close"))
        arrived = pieces(connection)
    assert arrival(arrived, b"caf") < arrival(arrived, b"[DONE]") - 0.5


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        (b"br", b"\x0b\x02\x80", "in a way that Steno cannot undo: br"),
        (b"gzip", b"\x1f\x8b\x08", "not as its content-encoding says"),
        (b"zstd", FIRST, "not as its content-encoding says"),
        (b"gzip", gzip.compress(TEXT * 1_000), "more than 50000 bytes when decoded"),
    ],
    ids=["unknown", "cut", "none", "bomb"],
)
def test_a_compressed_answer_that_cannot_be_decoded_is_an_error_in_the_stream(
    scripted: ScriptedProvider,
    before_scripted: StartSteno,
    monkeypatch: pytest.MonkeyPatch,
    name: bytes,
    body: bytes,
    why: str,
) -> None:
    """Its bytes would stand between frames that are none of them."""
    monkeypatch.setattr("app.proxy.decoding.MOST_OF_ANSWER", 50_000)
    scripted.then(answer(SUMMARY)).then(stream_head(b"content-encoding: " + name) + chunked(body) + LAST_CHUNK)
    told = stream_of(before_scripted())
    assert body not in told
    error = data(told)[-1]["error"]
    assert error["code"] == "upstream_unreadable"
    assert why in error["message"]


def test_a_compressed_refusal_of_a_stream_that_has_begun_is_told(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    refusal = gzip.compress(b'{"error":{"code":"busy","message":"Come back tomorrow."}}')
    scripted.then(answer(SUMMARY)).then(answer(refusal, b"content-encoding: gzip", status=b"403 Forbidden"))
    error = data(stream_of(before_scripted()))[-1]["error"]
    assert (error["code"], error["message"]) == ("busy", "Come back tomorrow.")


@pytest.mark.parametrize("shape", EVENT_SHAPES)
@pytest.mark.parametrize("asked_by", ["header", "setting"])
def test_sdk_reads_a_compacted_stream_in_every_shape(
    simulator: Simulator, steno: StartSteno, shape: str, asked_by: str
) -> None:
    """clients.md: the answer is whole, with one id and one role, whatever the events look like."""
    simulator.next_summary(delay=0.1)
    served = steno(events={"stream": shape} if asked_by == "setting" else {})
    headers = {"x-context-events": shape} if asked_by == "header" else {}
    with served.sdk().chat.completions.stream(model=MODEL, messages=LONG, extra_headers=headers) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    chunks = [chunk for chunk in chunks if chunk.id]  # A named event has none: it is opt-in.
    assert final.choices[0].message.content == simulator.chats[0].text
    assert final.choices[0].message.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    told = [extra["compaction"]["type"] for chunk in chunks if "compaction" in (extra := chunk.model_extra or {})]
    assert told == (["compaction_started", "compaction_completed"] if shape in ("chunk", "start") else [])
    assert (chunks[-1].model_extra or {})["context_status"] == "summarized"
    assert len(simulator.summaries) == 1


@pytest.mark.parametrize(
    ("shape", "started", "completed"),
    [
        (b"named", b'event: compaction_started\ndata: {"type":"compaction_started",', b"event: compaction_completed\n"),
        (b"comment", b': compaction_started {"type":"compaction_started",', b": compaction_completed {"),
    ],
)
def test_other_shapes_stand_before_the_providers_untouched_stream(
    steno: StartSteno, shape: bytes, started: bytes, completed: bytes
) -> None:
    """clients.md: no chunk of ours was sent, so the provider keeps its id and its role."""
    told, closed, *rest = stream_of(steno(), b"x-context-events: " + shape).split(b"\n\n")
    assert told.startswith(started)
    assert closed.startswith(completed)
    frames = data(b"\n\n".join(rest))
    assert frames[0]["id"].startswith("chatcmpl-0000")
    assert frames[0]["choices"][0]["delta"]["role"] == "assistant"
    assert frames[0]["context_status"] == frames[-1]["context_status"] == "summarized"


def test_no_event_holds_the_status(simulator: Simulator, steno: StartSteno) -> None:
    """`x-context-events: off`"""
    simulator.next_chat(status=429)
    refused = post(steno().url, chat(LONG, stream=True), b"x-context-events: off")
    assert (refused.status, refused.header("x-context-status")) == (429, "summarized")
    assert len(simulator.summaries) == 1


def test_several_choices_hold_the_status(simulator: Simulator, steno: StartSteno) -> None:
    """A role chunk of ours would belong to one of them only."""
    served = steno()
    simulator.next_chat(status=429)
    refused = post(served.url, chat(LONG, stream=True, n=2))
    assert (refused.status, refused.header("x-context-status")) == (429, "summarized")
    stream = served.sdk().chat.completions.create(model=MODEL, messages=LONG, n=2, stream=True)
    roles = [(choice.index, choice.delta.role) for chunk in stream for choice in chunk.choices if choice.delta.role]
    assert roles == [(0, "assistant"), (1, "assistant")]


@pytest.mark.parametrize("shape", ["chunk", "named", "comment"])
def test_keep_alives_come_while_a_summary_is_made(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """At frame boundaries, no faster than is due; also while the provider is silent after it."""
    monkeypatch.setattr(options, "KEEP_ALIVE_SECONDS", 1.0)
    steno = before_scripted()
    scripted.then(2.3, answer(SUMMARY)).then(1.3, stream_head() + chunked(FIRST + TEXT + FINISH + DONE) + LAST_CHUNK)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True), b"x-context-events: " + shape.encode()))
        arrived = timed_body(connection)
    alive = b'"delta":{},"finish_reason":null}]}\n\n' if shape == "chunk" else b": keep-alive\n\n"
    beats = [at for at, piece in arrived if piece.endswith(alive)]
    assert len(beats) == 3
    assert min(later - earlier for earlier, later in pairwise(beats)) > 0.9
    frames = data(b"".join(piece for _, piece in arrived))
    assert len(compactions(frames)) == (2 if shape == "chunk" else 0)
    assert all(frame["choices"] for frame in frames if "choices" in frame)


def test_keep_alives_of_ours_do_not_prolong_the_providers_time(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is kept waiting, but no longer than the provider may be silent."""
    monkeypatch.setattr(options, "KEEP_ALIVE_SECONDS", 1.0)
    steno = before_scripted(upstream={"first_byte_seconds": 3.5})
    scripted.then(answer(SUMMARY)).then("hang")
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True)))
        arrived = timed_body(connection)
    beats = [piece for _, piece in arrived if piece.endswith(b'"delta":{},"finish_reason":null}]}\n\n')]
    assert len(beats) >= 2
    frames = data(b"".join(piece for _, piece in arrived))
    assert frames[-1]["error"]["code"] == "upstream_timeout"
    assert scripted.wait_for(lambda requests: requests[1].closed_at is not None)


@pytest.mark.parametrize("header", [b"x-stainless-read-timeout", b"x-stainless-timeout"])
def test_keep_alives_come_within_the_patience_that_a_client_announces(
    simulator: Simulator, steno: StartSteno, header: bytes
) -> None:
    """Where it is shorter than usual, but no more often than each second."""
    simulator.next_summary(delay=4.5)
    with connected(steno().url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True), header + b": 1.5", b"connection: close"))
        arrived = timed_body(connection)
    beats = [at for at, piece in arrived if piece.endswith(b'"delta":{},"finish_reason":null}]}\n\n')]
    assert len(beats) >= 3
    assert min(later - earlier for earlier, later in pairwise(beats)) > 0.9


def test_client_with_a_short_read_timeout_needs_no_setting(simulator: Simulator, steno: StartSteno) -> None:
    """The SDK announces it."""
    simulator.next_summary(delay=4.5)
    chunks = list(steno().sdk(timeout=3.0).chat.completions.create(model=MODEL, messages=LONG, stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_tool_calls_survive_an_early_start(simulator: Simulator, steno: StartSteno) -> None:
    """clients.md: the SDK assembles them as without Steno."""
    simulator.next_chat(
        tool_calls=[ScriptedCall(name="look_up", arguments='{"order": "ORD-0007"}'), ScriptedCall(name="look_up")]
    )
    tool: Any = {
        "type": "function",
        "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
    }
    with steno().sdk().chat.completions.stream(model=MODEL, messages=LONG, tools=[tool]) as stream:
        stream.until_done()
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.role == "assistant"
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    assert calls == [("look_up", '{"order": "ORD-0007"}'), ("look_up", "{}")]
    assert choice.message.content is None


def test_usage_chunk_stays_where_it_was_asked_for(simulator: Simulator, steno: StartSteno) -> None:
    """With the same id as the others."""
    chunks = list(
        steno()
        .sdk()
        .chat.completions.create(model=MODEL, messages=LONG, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == simulator.chats[0].prompt_tokens
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


@pytest.mark.parametrize("choices", [b"[]", b'[{"index":0,"delta":{},"finish_reason":null}]'])
def test_a_usage_that_was_not_asked_for_stays(
    scripted: ScriptedProvider, before_scripted: StartSteno, choices: bytes
) -> None:
    """Its clients count on it, from the first stream on: nobody asked for it, so it is not ours to take out."""
    usage = b'data: {"id":"c1","choices":%b,"usage":{"prompt_tokens":9}}\n\n' % choices
    stream = stream_head() + chunked(FIRST + TEXT + FINISH + usage + DONE) + LAST_CHUNK
    scripted.then(answer(SUMMARY)).then(stream).then(stream)
    proxy = before_scripted()
    for _ in range(2):
        assert b'"usage":{"prompt_tokens":9}' in stream_of(proxy)
    assert all(b"stream_options" not in request.body for request in scripted.requests[1:])


def test_without_members_no_usage_is_asked_for_that_nobody_takes_out(simulator: Simulator, steno: StartSteno) -> None:
    """Such a stream is not read."""
    proxy = steno(events={"body": False})
    for messages in (HELLO, LONG, LONG):
        assert b'"usage"' not in stream_of(proxy, messages=messages)
    assert not any(b"stream_options" in record.body for record in simulator.chats)


# After the commitment


def test_providers_error_after_the_commitment_raises_in_the_sdk(simulator: Simulator, steno: StartSteno) -> None:
    """With the provider's own code, as one frame with `error` first, and without [DONE]."""
    simulator.next_chat(status=403)
    served = steno()
    body = stream_of(served)
    last = body.rstrip(b"\n").rpartition(b"\n\n")[2]
    assert last.startswith(b'data: {"error":{')
    error = json.loads(last[6:])["error"]
    assert (error["code"], error["status"]) == ("model_not_allowed", 403)
    assert error["request_id"] == f"req_{simulator.chats[0].sequence:012d}"
    assert {"message", "type", "param", "code"} <= set(error)
    assert b"[DONE]" not in body
    assert body.index(b"compaction_completed") < body.index(b'"error"')
    simulator.next_chat(status=403)
    other = [*LONG, {"role": "assistant", "content": "word " * 1_500}, {"role": "user", "content": "word " * 3_000}]
    with pytest.raises(openai.APIError, match="not allowed"):
        list(served.sdk().chat.completions.create(model=MODEL, messages=other, stream=True))


UNREADABLE = "upstream_unreadable"


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (("close",), "upstream_disconnected"),
        ((answer(b"<html>gone</html>", status=b"404 Not Found", kind=b"text/html"),), "not_found"),
        ((answer(b'{"error":"busy"}', status=b"400 Oops"),), "bad_request"),
        ((answer(b'{"detail":"No."}', status=b"401 Unauthorized"),), "invalid_api_key"),
        ((answer(b'{"id":"c1","choices":[]}'),), UNREADABLE),
        ((answer(b"<html>Log in</html>", kind=b"text/html"),), UNREADABLE),
        ((answer(b"\x1f\x8b", b"content-encoding: gzip", kind=b"text/event-stream"),), UNREADABLE),
        ((answer(b'{"error":{"code":"busy"}}'),), "busy"),
        ((stream_head() + chunked(FIRST), 0.05, "reset"), "upstream_disconnected"),
        ((answer(b'{"error":{"code":"busy"}}', status=b"400 Oops")[:-3], "close"), "upstream_disconnected"),
        ((answer(b'{"error":{"code":"busy"}}', status=b"404 Oops")[:-3], "close"), "not_found"),
    ],
)
def test_every_failure_after_the_commitment_is_an_error_frame(
    scripted: ScriptedProvider, before_scripted: StartSteno, steps: Any, code: str
) -> None:
    """With the code that its status means, where the provider named none."""
    scripted.then(answer(SUMMARY))
    scripted.default = steps
    body = stream_of(before_scripted())
    error = data(body)[-1]["error"]
    assert error["code"] == code
    assert body.count(b'data: {"error":') == 1
    assert b"[DONE]" not in body


TOOL_CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"order": "ORD-0007"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
]
COST = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
MESSAGES: dict[str, Any] = {
    "text": {"role": "assistant", "content": "caf\u00e9", "refusal": None},
    "tool calls": {"role": "assistant", "content": None, "tool_calls": TOOL_CALLS},
    "refusal": {"role": "assistant", "content": None, "refusal": "I can't help with that."},
}


def completion(*messages: Any, **members: Any) -> bytes:
    finish = "tool_calls" if "tool_calls" in messages[0] else "stop"
    choices = [{"index": i, "message": said, "finish_reason": finish} for i, said in enumerate(messages)]
    whole = {"id": "c1", "object": "chat.completion", "created": 7, "model": "m", "choices": choices, "usage": COST}
    return json.dumps(whole | members, indent=1).encode()


@pytest.mark.parametrize("said", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize(("shape", "asks"), [("chunk", False), ("named", True)])
def test_an_answer_in_one_piece_becomes_the_stream_that_has_begun(
    scripted: ScriptedProvider, before_scripted: StartSteno, said: Any, shape: str, asks: bool
) -> None:
    """It is paid for, and the client has been promised a stream."""
    scripted.then(answer(SUMMARY)).then(answer(completion(said, service_tier="default")))
    client = before_scripted().sdk(default_headers={"x-context-events": shape})
    options: Any = {"stream_options": {"include_usage": True}} if asks else {}
    with client.chat.completions.stream(model=MODEL, messages=LONG, **options) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    [choice] = final.choices
    assert choice.finish_reason == ("tool_calls" if "tool_calls" in said else "stop")
    assert choice.message.role == "assistant"
    assert (choice.message.content, choice.message.refusal) == (said["content"], said.get("refusal"))
    calls = [call.to_dict() for call in choice.message.tool_calls or ()]
    assert [{name: call[name] for name in ("id", "type")} for call in calls] == [
        {name: call[name] for name in ("id", "type")} for call in said.get("tool_calls", ())
    ]
    assert [call.function.arguments for call in choice.message.tool_calls or ()] == [
        call["function"]["arguments"] for call in said.get("tool_calls", ())
    ]
    assert [chunk.service_tier for chunk in chunks if chunk.service_tier] == ["default"]
    assert (final.usage and final.usage.total_tokens) == 8
    assert [chunk.choices == [] for chunk in chunks[-2:]] == [False, asks]
    assert [(chunk.model_extra or {}).get("context_status") for chunk in chunks if chunk.choices][-1] == "summarized"


def test_a_stream_is_known_without_its_type(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """It is paid for, too."""
    stream = FIRST + TEXT + FINISH + DONE
    scripted.then(answer(SUMMARY)).then(answer(stream, kind=b"application/octet-stream"))
    body = stream_of(before_scripted())
    assert b"caf\\u00e9" in body
    assert body.endswith(DONE)


REPEATED: dict[str, Any] = {
    "429, in milliseconds": answer(b"{}", b"retry-after-ms: 300", b"retry-after: 1", status=b"429 Too Many Requests"),
    "503, in seconds": answer(b"{}", b"retry-after: 0.3", status=b"503 Service Unavailable"),
    "409": answer(b"{}", b"retry-after-ms: 300", status=b"409 Conflict"),
    "504": answer(b"{}", b"retry-after-ms: 300", status=b"504 Gateway Timeout"),
    "the provider says so": answer(b"{}", b"retry-after-ms: 300", b"x-should-retry: true", status=b"403 Forbidden"),
}


@pytest.mark.parametrize("refused", REPEATED.values(), ids=REPEATED)
def test_what_an_sdk_would_repeat_is_repeated_once_the_stream_has_begun(
    scripted: ScriptedProvider, before_scripted: StartSteno, refused: bytes
) -> None:
    """No SDK does it after the first byte; after the pause that the provider asks for."""
    scripted.then(answer(SUMMARY)).then(refused).then(refused)
    scripted.then(stream_head() + chunked(FIRST + TEXT + FINISH + DONE) + LAST_CHUNK)
    body = stream_of(before_scripted())
    assert b'"error"' not in body
    assert body.endswith(DONE)
    _, first, second, third = scripted.requests
    assert first.body == second.body == third.body
    assert second.at - first.at > 0.25
    assert third.at - second.at > 0.25


def test_a_third_refusal_is_the_clients(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """With its status, the provider's name for the request and the pause that it asks for."""
    scripted.then(answer(SUMMARY))
    busy = b'{"error":{"message":"Slow down.","type":"requests","param":null,"code":"rate_limit_exceeded"}}'
    scripted.default = (answer(busy, b"retry-after-ms: 20", b"x-request-id: req_9", status=b"429 Too Many Requests"),)
    error = data(stream_of(before_scripted()))[-1]["error"]
    assert error == json.loads(busy)["error"] | {"status": 429, "request_id": "req_9", "retry_after": 0.02}
    assert len(scripted.requests) == 4


@pytest.mark.parametrize(
    "refused",
    [
        answer(b"{}", b"retry-after: 30", status=b"429 Too Many Requests"),
        answer(b"{}", b"retry-after-ms: 20", b"x-should-retry: false", status=b"429 Too Many Requests"),
        answer(b"{}", b"retry-after-ms: 20", status=b"404 Not Found"),
    ],
    ids=["longer than anybody waits", "the provider says no", "not for an SDK either"],
)
def test_what_no_sdk_would_repeat_in_time_is_not_repeated(
    scripted: ScriptedProvider, before_scripted: StartSteno, refused: bytes
) -> None:
    scripted.then(answer(SUMMARY))
    scripted.default = (refused,)
    assert data(stream_of(before_scripted(compaction={"wait_seconds": 20})))[-1]["error"]["status"] in (404, 429)
    assert len(scripted.requests) == 2


def test_a_client_is_kept_alive_while_a_refused_request_waits_and_its_leaving_ends_it(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "KEEP_ALIVE_SECONDS", 1.0)
    steno = before_scripted()
    scripted.then(answer(SUMMARY))
    scripted.default = (answer(b"{}", b"retry-after-ms: 1500", status=b"429 Too Many Requests"),)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True)))
        read_until(connection, b'"delta":{},"finish_reason":null}]}\n\n')
    assert not scripted.wait_for(lambda requests: len(requests) == 3, 1.0)


def test_a_provider_that_cannot_be_reached_is_tried_again_once_the_stream_has_begun(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a connection nothing was processed."""
    scripted.then(answer(SUMMARY)).then(stream_head() + chunked(FIRST + TEXT + FINISH + DONE) + LAST_CHUNK)
    steno = before_scripted()
    upstream = steno.services.providers.default.upstream
    relay, failures = upstream.relay, [UpstreamUnreachable("127.0.0.1:80")]

    async def unreachable(head: Any, content: Any) -> Any:
        if b"x-context-call" not in head.before(content).head and failures:
            raise failures.pop()
        return await relay(head, content)

    monkeypatch.setattr(upstream, "relay", unreachable)
    assert stream_of(steno).endswith(DONE)
    assert not failures


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", [Fault(status=500), Fault(text="no"), Fault(cut="reset")])
def test_failed_compaction_is_told_and_the_answer_still_comes(
    simulator: Simulator, steno: StartSteno, fault: Fault
) -> None:
    """One step down the ladder, with the reason."""
    simulator.summary_default = fault
    answered = post(steno().url, chat(LONG, stream=True))
    assert answered.status == 200
    frames = data(answered.body)
    started, failed = compactions(frames)
    assert (started["type"], failed["type"]) == ("compaction_started", "compaction_failed")
    assert started["id"] == failed["id"]
    assert failed["reason"] == frames[-1]["context"]["reason"]
    assert failed["reason"]
    assert frames[-1]["context_status"] == "full"
    assert frames[-1]["choices"][0]["finish_reason"] == "stop"
    assert [record.body for record in simulator.chats] == [chat(LONG, stream=True)]


def test_slow_summary_is_not_waited_for_beyond_the_limit(simulator: Simulator, steno: StartSteno) -> None:
    """A plain request waits less than the client says it will, then goes on without; the summary is kept."""
    simulator.next_summary(delay=4.0)
    served = steno()
    answered = post(served.url, chat(LONG), b"x-stainless-read-timeout: 0.5")
    assert [each.finished_at for each in simulator.summaries] == [None]
    assert answered.header("x-context-reason") == "summary_takes_too_long"
    simulator.wait_for(lambda records: any(each.kind == "summary" and each.finished_at for each in records))
    assert post(served.url, chat(LONG)).header("x-context-status") == "summarized"
    assert len(simulator.summaries) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("header", "quiet"), [("x-stainless-timeout", {}), ("x-stainless-read-timeout", {"stream": True, "n": 2})]
)
def test_both_ways_to_announce_patience_are_read(
    simulator: Simulator, steno: StartSteno, header: str, quiet: Any
) -> None:
    """Openai-python's and openai-node's, in seconds; a stream without keep-alives waits no longer either."""
    simulator.next_summary(delay=1.0)
    answered = post(steno().url, chat(LONG, **quiet), f"{header}: 0.3".encode())
    assert answered.header("x-context-reason") == "summary_takes_too_long"


def test_stream_can_go_without_members(steno: StartSteno) -> None:
    """The setting leaves them out of streams too, also of one that begins early."""
    proxy = steno(events={"body": False})
    answered = post(proxy.url, chat(stream=True))
    assert b"context" not in answered.body
    assert answered.header("x-context-status") == "full"
    body = stream_of(proxy)
    assert b"compaction_completed" in body
    assert b'"context_status"' not in body
    assert b'"context"' not in body


def test_two_stenos_in_a_row_make_one_summary(simulator: Simulator, steno: StartSteno) -> None:
    """The one behind leaves the marked call alone, and the word of the one that compacted stands."""
    behind = steno()
    ahead = steno(upstream={"base_url": behind.base_url})
    for stream in (False, True):
        answered = post(ahead.url, chat(LONG, stream=stream, temperature=0.1 if stream else 0.2))
        assert len(answered.all("x-context-status")) == 1
        told = data(answered.body)[-1] if stream else answered.json
        assert told["context_status"] == told["context"]["status"] == "summarized"
        assert answered.body.count(b'"context":') == 1
    assert len(simulator.summaries) == 1
    assert simulator.summaries[0].header("x-context-call") == "summary"


def test_the_word_of_a_steno_behind_stands_where_this_one_did_nothing(steno: StartSteno) -> None:
    """What was done to the context is not hidden by who did nothing to it."""
    behind = steno()
    ahead = steno(upstream={"base_url": behind.base_url}, compaction={"enabled": False})
    for stream in (False, True):
        answered = post(ahead.url, chat(LONG, stream=stream), b"x-context-events: off")
        assert answered.all("x-context-status") == ["summarized"]
        told = data(answered.body)[-1] if stream else answered.json
        assert told["context_status"] == "summarized"


@pytest.mark.parametrize("quietly", [True, False], ids=["nothing is added", "the request is unreadable"])
def test_a_stream_to_which_nothing_is_added_is_cut_no_more_cleanly(
    scripted: ScriptedProvider, before_scripted: StartSteno, quietly: bool
) -> None:
    """And one that had its end passes byte for byte."""
    proxy = before_scripted(events={"body": not quietly})
    body = chat(stream=True) if quietly else b'{"stream":true,"model":"m","model":"m","messages":[]}'
    scripted.then(open_stream_head(), FIRST + TEXT, 0.05, "close")
    assert b'data: {"error":{"message":' in post(proxy.url, body).body
    scripted.then(open_stream_head(), FIRST + TEXT + FINISH + DONE, 0.05, "close")
    assert post(proxy.url, body).body == FIRST + TEXT + FINISH + DONE
