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
from lab.simulator import Fault, Simulator

MODEL = "gpt-4o"
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]


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


@pytest.mark.parametrize("fault", [Fault(hang=True), Fault(chunk_delay=30)])
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
