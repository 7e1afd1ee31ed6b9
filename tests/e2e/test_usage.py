"""The ledger: what `GET .../usage` tells adds up to what the provider reported, by call, by turn and in all."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from lab.simulator import Record, Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import CHAT, connected, get, post, read_until, request_bytes
from tests.e2e.running import StartSteno, Steno

MODEL = "gpt-4o"
NAMED: Any = {"x-conversation-id": "c-1"}
PRICES: Any = [{"match": "gpt-4o", "prompt": 15, "completion": 75}]
HELLO: Any = [{"role": "user", "content": "What is in my cart?"}]
LONG: Any = turns(15)


def usage(steno: Steno, query: str = "", conversation: str = "c-1") -> Any:
    told = get(steno.url, f"/context/conversations/{conversation}/usage?{query}")
    assert told.status == 200, told.body
    return told.json


def say(steno: Steno, messages: Any = HELLO, **options: Any) -> Any:
    return steno.sdk().chat.completions.create(model=MODEL, messages=messages, extra_headers=NAMED, **options)


def stream(steno: Steno, messages: Any = HELLO, **options: Any) -> None:
    for _ in say(steno, messages, stream=True, **options):
        pass


def reported(records: Iterable[Record], name: str) -> int:
    """What the provider's own log says, added up."""
    return sum(record.usage[name] for record in records if record.usage)


def test_all_calls_of_a_caller_add_up_to_what_the_provider_reported(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno(prices=PRICES)
    for conversation in ("c-1", "c-1", "c-2", "c-2"):
        post(proxy.url, chat(LONG), f"x-conversation-id: {conversation}".encode())
    told = get(proxy.url, "/context/usage?by=model").json
    totals, summary = told["totals"], told["totals"]["summary"]
    for name in ("prompt", "completion"):
        assert totals[name] == reported(simulator.chats, f"{name}_tokens")
        assert summary[name] == reported(simulator.summaries, f"{name}_tokens") > 0
    cached = sum(record.usage["prompt_tokens_details"]["cached_tokens"] for record in simulator.chats if record.usage)
    assert totals["cached"] == cached > 0
    assert totals["cached_share"] == round(cached / totals["prompt"], 4)
    per_conversation = [usage(proxy, conversation=name)["totals"] for name in ("c-1", "c-2")]
    for name in ("calls", "prompt", "cached", "saved"):
        assert totals[name] == sum(each[name] for each in per_conversation)
    assert totals["cost"] == pytest.approx(sum(each["cost"] for each in per_conversation))
    [group] = told["groups"]
    assert (group["model"], group["prompt"], group["day"]) == (MODEL, totals["prompt"], None)
    [today] = get(proxy.url, "/context/usage?by=day").json["groups"]
    assert (today["prompt"], today["model"]) == (totals["prompt"], None)


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
