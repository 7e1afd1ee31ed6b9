"""The simulator over a real socket: what no SDK shows of its streams and its broken connections."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from app.http.loopback import RunningServer
from lab.simulator import Fault, ScriptedCall, Simulator

MODEL = "gpt-4o"
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]
LOOK_UP = ScriptedCall(name="look_up", arguments='{"name":"cart"}')
TOOL = {"name": "look_up", "input_schema": {"type": "object"}}


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(models="any")


@pytest.fixture
def server(simulator: Simulator) -> Iterator[RunningServer]:
    with simulator.serve() as server:
        yield server


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url) as client:
        yield client


def post(server: RunningServer, payload: Any, *, headers: str = "") -> socket.socket:
    """A raw request on a connection of its own."""
    body = json.dumps(payload).encode()
    connection = socket.create_connection((server.host, server.port), timeout=5)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body)
    return connection


def read_all(connection: socket.socket) -> bytes:
    with connection:
        received = b""
        while piece := connection.recv(65_536):
            received += piece
        return received


# Broken connections


def test_reset_and_close_break_the_http_answer(simulator: Simulator, server: RunningServer) -> None:
    payload = {"model": MODEL, "messages": HELLO, "stream": True}
    simulator.next_chat(cut="close", after=2)
    closed = read_all(post(server, payload))
    assert closed.count(b"data: ") == 2
    assert not closed.endswith(b"0\r\n\r\n")
    simulator.next_chat(cut="reset", after=2)
    with pytest.raises(ConnectionResetError):
        read_all(post(server, payload))
    assert [record.disconnected_at for record in simulator.chats] == [None, None]
    assert simulator.wait_for(lambda log: all(record.finished_at for record in log))


@pytest.mark.parametrize(
    "fault", [Fault(delay=30), Fault(hang=True), Fault(first_token_delay=30), Fault(chunk_delay=30)]
)
def test_caller_who_leaves_is_noticed_at_once(simulator: Simulator, server: RunningServer, fault: Fault) -> None:
    simulator.next_chat(fault)
    connection = post(server, {"model": MODEL, "messages": HELLO, "stream": True})
    assert simulator.wait_for(lambda log: len(log) == 1)
    time.sleep(0.05)
    left = time.monotonic()
    connection.close()
    assert simulator.wait_for(lambda log: log[0].disconnected_at is not None, timeout=10)
    [record] = simulator.chats
    assert record.disconnected_at is not None
    assert record.disconnected_at - left < 10
    assert record.finished_at is None


# Events


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    """Each frame's data; its name is its type."""
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    read = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in read]
    return read


def kinds(answer: httpx2.Response) -> list[str]:
    """Types of the events, in order; neighbours of one type once."""
    found = [event["type"] for event in events(answer)]
    return [kind for index, kind in enumerate(found) if index == 0 or found[index - 1] != kind]


def test_messages_stream_has_every_event_in_its_place(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(text="Let me see.", tool_calls=[LOOK_UP])
    answer = http.post(
        "/v1/messages",
        json={"model": "claude-x", "max_tokens": 900, "messages": HELLO, "tools": [TOOL], "stream": True},
    )
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds(answer) == ["message_start", block[0], "ping", *block[1:], *block, "message_delta", "message_stop"]
    called = [event["content_block"] for event in events(answer) if event["type"] == "content_block_start"][1]
    assert called == {"type": "tool_use", "id": "toolu_0000010", "name": "look_up", "input": {}}
    written = "".join(event["delta"].get("partial_json", "") for event in events(answer) if "delta" in event)
    assert json.loads(written) == {"name": "cart"}
    delta = events(answer)[-2]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_responses_stream_has_every_event_in_its_place(simulator: Simulator, http: httpx2.Client) -> None:
    simulator.next_chat(thinking="Hm.", text="Let me see.", tool_calls=[LOOK_UP])
    answer = http.post(
        "/v1/responses", json={"model": "gpt-x", "input": "Hello", "stream": True, "reasoning": {"summary": "auto"}}
    )
    item = ["response.output_item.added", "response.output_item.done"]
    thought = "response.reasoning_summary"
    assert kinds(answer) == [
        "response.created",
        "response.in_progress",
        item[0],
        *(f"{thought}_{each}" for each in ("part.added", "text.delta", "text.done", "part.done")),
        item[1],
        item[0],
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        item[1],
        item[0],
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        item[1],
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events(answer)] == list(range(len(events(answer))))
    assert {event["output_index"] for event in events(answer) if "output_index" in event} == {0, 1, 2}


# Everything else


def test_log_is_readable_over_http_and_can_be_emptied(simulator: Simulator, http: httpx2.Client) -> None:
    http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO})
    [record] = http.get("/__log").json()
    assert (record["kind"], record["status"], json.loads(record["body"])["messages"]) == ("chat", 200, HELLO)
    assert len(http.delete("/__log").json()) == 0
    assert simulator.chats == ()
    http.get("/v1/models")
    assert simulator.log[0].sequence == 2


def test_simulator_runs_standalone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "lab.simulator", "--port", str(port), "--window", "20"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603 -- a fixed command
        try:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            answer = asyncio.run(answered(url, {"model": "anything", "messages": [*HELLO, *HELLO]}))
        finally:
            process.terminate()
    assert "maximum context length is 20 tokens" in answer["error"]["message"]


async def answered(url: str, payload: Any) -> Any:
    """The JSON answer, once the server accepts connections."""
    async with httpx2.AsyncClient() as http:
        for _ in range(400):
            try:
                return (await http.post(url, json=payload)).json()
            except httpx2.ConnectError:
                await asyncio.sleep(0.05)
    raise AssertionError("never accepted a connection")
