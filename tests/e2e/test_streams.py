"""Streams: the provider's bytes in order and on time, compaction events, and ends that are never mistaken."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import openai
import pytest

from app.errors import UpstreamUnreachable
from app.formats.sse import EVENT_SHAPES
from app.proxy import stream
from lab.simulator import Fault, ScriptedCall, Simulator
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.e2e.raw import arrival, connected, pieces, post, read_until, request_bytes, timed_body
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

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


def ended(frame: bytes, ends: list[bytes]) -> Iterator[bytes]:
    """A frame whose lines end so, in turn, the last two with the last two of them."""
    *lines, last = frame.removesuffix(b"\n\n").split(b"\n")
    for line in lines:
        yield line + ends[-1]
    yield last + ends[0] + ends[-1]


def test_frames_leave_as_they_arrive(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """A piece is not held back for the next one, and its end may come later than its beginning."""
    steno = before_scripted()
    post(steno.url, chat())  # The first request of all is slower.
    scripted.then(
        stream_head() + chunked(FIRST), 0.3, chunked(TEXT + FINISH[:9]), 0.3, chunked(FINISH[9:] + DONE) + LAST_CHUNK
    )
    with connected(steno.url) as connection:
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


# Cuts


@pytest.mark.parametrize("cut", ["reset", "close", "end"])
@pytest.mark.parametrize("messages", [HELLO, LONG], ids=["untouched", "compacted"])
def test_sdk_raises_on_a_cut_stream(simulator: Simulator, steno: StartSteno, cut: Any, messages: Any) -> None:
    """A cut answer is not taken for a whole one."""
    simulator.next_chat(cut=cut, after=3)
    stream = steno().sdk().chat.completions.create(model=MODEL, messages=messages, stream=True)
    with pytest.raises(openai.APIError, match=r"ended in the middle|closed the connection"):
        list(stream)


# Compaction events


def stream_of(steno: Steno, *headers: bytes, messages: Any = LONG, **members: Any) -> bytes:
    return post(steno.url, chat(messages, stream=True, **members), *headers).body


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
    monkeypatch.setattr("app.proxy.stream.MOST_OF_ANSWER", 50_000)
    scripted.then(answer(SUMMARY)).then(stream_head(b"content-encoding: " + name) + chunked(body) + LAST_CHUNK)
    told = stream_of(before_scripted())
    assert body not in told
    error = data(told)[-1]["error"]
    assert error["code"] == "upstream_unreadable"
    assert why in error["message"]


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


@pytest.mark.parametrize("shape", ["chunk", "named", "comment"])
def test_keep_alives_come_while_a_summary_is_made(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """At frame boundaries, no faster than is due; also while the provider is silent after it."""
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 1.0)
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
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 1.0)
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


# After the commitment


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


def test_a_client_is_kept_alive_while_a_refused_request_waits_and_its_leaving_ends_it(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 1.0)
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


def test_two_stenos_in_a_row_make_one_summary(simulator: Simulator, steno: StartSteno) -> None:
    """The one behind leaves the marked call alone, and the word of the one that compacted stands."""
    behind = steno()
    ahead = steno(upstream={"base_url": behind.base_url})
    for streams in (False, True):
        answered = post(ahead.url, chat(LONG, stream=streams, temperature=0.1 if streams else 0.2))
        assert len(answered.all("x-context-status")) == 1
        told = data(answered.body)[-1] if streams else answered.json
        assert told["context_status"] == told["context"]["status"] == "summarized"
        assert answered.body.count(b'"context":') == 1
    assert len(simulator.summaries) == 1
    assert simulator.summaries[0].header("x-context-call") == "summary"
