"""The ledger: what `GET .../usage` tells adds up to what the provider reported, by call, by turn and in all."""

from __future__ import annotations

import time
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import chat
from tests.e2e.raw import CHAT, connected, get, read_until, request_bytes
from tests.e2e.running import StartSteno, Steno

MODEL = "gpt-4o"
NAMED: Any = {"x-conversation-id": "c-1"}
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]


def usage(steno: Steno, query: str = "", conversation: str = "c-1") -> Any:
    told = get(steno.url, f"/context/conversations/{conversation}/usage?{query}")
    assert told.status == 200, told.body
    return told.json


def say(steno: Steno, messages: Any = HELLO, **options: Any) -> Any:
    return steno.sdk().chat.completions.create(model=MODEL, messages=messages, extra_headers=NAMED, **options)


def stream(steno: Steno, messages: Any = HELLO, **options: Any) -> None:
    for _ in say(steno, messages, stream=True, **options):
        pass


def test_a_client_that_leaves_in_the_middle_leaves_a_record(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(chunk_delay=0.2, words=200)
    proxy = steno()
    with connected(proxy.url) as connection:
        connection.sendall(request_bytes(chat(HELLO, stream=True), b"x-conversation-id: c-1", target=CHAT))
        read_until(connection, b"data: ")
    assert simulator.wait_for(lambda records: any(record.disconnected_at for record in records))
    records: list[Any] = []
    for _ in range(100):
        told = get(proxy.url, "/context/conversations/c-1/usage")
        records = told.json["data"] if told.status == 200 else []
        if records:
            break
        time.sleep(0.05)
    assert [(record["status"], record["tokens"]["prompt"]) for record in records] == [(200, None)]


@pytest.mark.slow
def test_a_ledger_that_does_not_work_fails_no_request(steno: StartSteno) -> None:
    proxy = steno()
    broken: Any = None
    proxy.services.ledger = broken
    assert say(proxy).usage.prompt_tokens > 0
    stream(proxy)
    assert usage(proxy)["data"] == []
