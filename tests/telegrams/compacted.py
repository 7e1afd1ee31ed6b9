"""A compaction of telegrams through a real server, before a provider that refuses what is not in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL, turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import WINDOW, Steno
from tests.telegrams.office import before_an_office, telegram_of
from tests.telegrams.telegrams import PATH

ORDERED = (
    {"from": "sender", "text": "Order both."},
    {"from": "clerk", "text": "", "orders": [{"no": n, "what": "order", "with": {"n": n}} for n in ("a", "b")]},
    {"from": "depot", "deliveries": [{"no": "b", "text": "two " * 300}, {"no": "a", "text": "one " * 300}]},
    {"from": "clerk", "text": "Both came."},
)
LOG = [*map(telegram_of, turns(9)[:-1]), *ORDERED, *map(telegram_of, turns(9, first=20))]


@pytest.fixture
def simulator() -> Simulator:
    return Simulator(window=WINDOW, tables=TABLES)


@pytest.fixture
def steno(monkeypatch: pytest.MonkeyPatch, simulator: Simulator) -> Iterator[Steno]:
    with simulator.serve() as server:
        for start in before_an_office(monkeypatch):
            yield start(server.url)


def ask(steno: Steno, log: list[Any], **members: Any) -> Answer:
    return post(steno.url, {"model": MODEL, "log": log, **members}, target=PATH.decode())


def test_a_log_is_compacted_once_and_its_answer_says_so(steno: Steno, simulator: Simulator) -> None:
    first = ask(steno, LOG)
    assert (first.status, first.header("x-context-status")) == (200, "summarized")
    assert (first.json["context"]["status"], first.json["end"]) == ("summarized", "sent")
    answer = {"from": "clerk", "text": first.json["text"]}
    again = ask(steno, [*LOG, answer, {"from": "sender", "text": "And then?"}])
    assert again.header("x-context-status") == "summarized"
    assert {record.status for record in simulator.log} == {200}, "strict about pairs, it refused none"
    kinds = [record.kind for record in simulator.log]
    assert kinds == [*["summary"] * (len(kinds) - 2), "chat", "chat"]
    sent, extended = (record.messages or [] for record in simulator.chats)
    assert len(sent) < len(LOG)
    assert extended[: len(sent)] == sent, "what was sent once is not changed"


def test_orders_and_deliveries_that_stay_stay_together(steno: Steno, simulator: Simulator) -> None:
    log = [*map(telegram_of, turns(16)[:-1]), *ORDERED, {"from": "sender", "text": "Sure?"}]
    assert ask(steno, log).header("x-context-status") == "summarized"
    sent = [record.messages or [] for record in simulator.chats][-1]
    assert [call["id"] for message in sent for call in message.get("tool_calls") or ()] == ["a", "b"]
    assert [message["tool_call_id"] for message in sent if message["role"] == "tool"] == ["b", "a"]


def test_a_stream_tells_of_the_compaction_before_it_opens_and_of_all_where_it_closes(steno: Steno) -> None:
    frames = ask(steno, LOG, stream=True).body.decode().split("\n\n")
    told = [json.loads(frame.removeprefix("data: ")) for frame in frames if frame.startswith("data: ")]
    comments = [frame for frame in frames if frame.startswith(":")]
    assert "compaction_started" in comments[0]
    assert any("compaction_completed" in comment for comment in comments)
    assert "open" in told[0]
    assert told[0]["context_status"] == "summarized"
    assert told[-1]["close"]["end"] == "sent"
    assert told[-1]["context"]["status"] == "summarized"
