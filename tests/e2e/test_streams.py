"""Streams: the provider's bytes in order and on time, compaction events, and ends that are never mistaken."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from typing import Any

import openai
import pytest

from app.formats.compaction_events import EVENT_SHAPES
from lab.simulator import Simulator
from tests.e2e.commands import until
from tests.e2e.histories import HELLO, MODEL, chat, long_history
from tests.e2e.raw import body_pieces, connected, get, read_until, request_bytes
from tests.e2e.running import StartSteno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

LONG: Any = long_history()
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


def test_frames_leave_as_they_arrive(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """A piece is not held back for the next one, and its end may come later than its beginning."""
    first, text = threading.Event(), threading.Event()
    scripted.then(
        stream_head() + chunked(FIRST), first, chunked(TEXT + FINISH[:9]), text, chunked(FINISH[9:] + DONE) + LAST_CHUNK
    )
    with connected(before_scripted().url) as connection:
        connection.sendall(request_bytes(chat(stream=True), b"connection: close"))
        for mark, arrived in ((b"assistant", first), (b"caf", text)):
            read_until(connection, mark)
            arrived.set()
        read_until(connection, b"[DONE]")


def test_no_byte_leaves_before_the_providers_status(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Not even of the header."""
    scripted.then(0.5, answer(b'{"error":{}}', status=b"429 Too Many Requests"))
    with connected(before_scripted().url) as connection:
        began = time.monotonic()
        connection.sendall(request_bytes(chat(stream=True), b"connection: close"))
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 429")
    assert time.monotonic() - began > 0.4


# Cuts


@pytest.mark.parametrize("messages", [HELLO, LONG], ids=["untouched", "compacted"])
def test_sdk_raises_on_a_cut_stream(simulator: Simulator, steno: StartSteno, messages: Any) -> None:
    """A cut answer is not taken for a whole one."""
    simulator.next_chat(cut="close", after=3)
    stream = steno().sdk().chat.completions.create(model=MODEL, messages=messages, stream=True)
    with pytest.raises(openai.APIError, match=r"ended in the middle|closed the connection"):
        list(stream)


# Compaction events


@pytest.mark.parametrize("shape", EVENT_SHAPES)
def test_sdk_reads_a_compacted_stream_in_every_shape(simulator: Simulator, steno: StartSteno, shape: str) -> None:
    """clients.md: the answer is whole, with one id and one role, whatever the events look like."""
    simulator.next_summary(delay=0.1)
    headers = {"x-context-events": shape}
    with steno().sdk().chat.completions.stream(model=MODEL, messages=LONG, extra_headers=headers) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == simulator.chats[0].text
    assert final.choices[0].message.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    told = [extra["compaction"]["type"] for chunk in chunks if "compaction" in (extra := chunk.model_extra or {})]
    assert told == (["compaction_started", "compaction_completed"] if shape == "chunk" else [])
    assert (chunks[-1].model_extra or {})["context_status"] == "summarized"
    assert len(simulator.summaries) == 1


@pytest.mark.parametrize("shape", ["chunk", "comment"])
def test_keep_alives_come_while_a_summary_is_made(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    """At frame boundaries, no faster than is due; also while the provider is silent after it."""
    monkeypatch.setattr("app.proxy.early_stream.KEEP_ALIVE_SECONDS", 0.2)
    steno = before_scripted()
    alive = b'"delta":{},"finish_reason":null}]}\n\n' if shape == "chunk" else b": keep-alive\n\n"
    releases, told = (threading.Event(), threading.Event()), b""
    stream = stream_head() + chunked(FIRST + TEXT + FINISH + DONE) + LAST_CHUNK
    scripted.then(releases[0], answer(SUMMARY)).then(releases[1], stream)
    began = time.monotonic()
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True), b"x-context-events: " + shape.encode()))
        arriving = body_pieces(connection)
        for number, release in enumerate(releases, start=1):
            while told.count(alive) < 2 * number:
                told += next(arriving)
            release.set()
        told += b"".join(arriving)
    assert 4 <= told.count(alive) <= 1 + (time.monotonic() - began) / 0.2
    frames = data(told)
    assert len(compactions(frames)) == (2 if shape == "chunk" else 0)
    assert all(frame["choices"] for frame in frames if "choices" in frame)


# After the commitment


def test_a_client_is_kept_alive_while_a_refused_request_waits_and_its_leaving_ends_it(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.proxy.early_stream.KEEP_ALIVE_SECONDS", 0.1)
    steno = before_scripted()
    scripted.then(answer(SUMMARY))
    scripted.default = (answer(b"{}", b"retry-after-ms: 20000", status=b"429 Too Many Requests"),)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(chat(LONG, stream=True)))
        assert scripted.wait_for(lambda requests: len(requests) == 2)
        connection.recv(1 << 20)  # Keep-alives until then were for the summary.
        for _ in range(2):
            read_until(connection, b'"delta":{},"finish_reason":null}]}\n\n')
    until(lambda: b"\nsteno_in_flight_bytes 0.0\n" in get(steno.url, "/metrics").body)
    assert len(scripted.requests) == 2, "it ended before the pause was over"
