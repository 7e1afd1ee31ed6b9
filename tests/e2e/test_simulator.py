"""`make simulator`: the provider as a process of its own, with its log over HTTP."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from contextlib import suppress

import httpx2

from tests.e2e.commands import until
from tests.e2e.scripted import closed_port

HELLO = {"role": "user", "content": "What is in my cart?"}


def test_simulator_runs_standalone_and_shows_its_log() -> None:
    port = closed_port()
    command = [sys.executable, "-m", "lab.simulator", "--port", str(port), "--window", "20"]
    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as process,  # noqa: S603 -- a fixed command
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            until(lambda: listens(port))
            answer = client.post("/v1/chat/completions", json={"model": "any", "messages": [HELLO, HELLO]}).json()
            [record] = client.get("/__log").json()
            emptied = client.delete("/__log").json()
        finally:
            process.terminate()
    assert "maximum context length is 20 tokens" in answer["error"]["message"]
    assert (record["kind"], record["status"], json.loads(record["body"])["messages"]) == ("chat", 400, [HELLO, HELLO])
    assert emptied == []


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
