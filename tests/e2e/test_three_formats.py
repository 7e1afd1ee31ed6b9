"""One conversation under three formats: an id names it in all of them, each has summaries of its own, and all of
`/context` shows them and takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.compactions import statuses
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno

LONG: Any = turns(15)
RULES = "Answer as the clerk."
ID = "mine"


@dataclass(frozen=True, slots=True)
class Written:
    """The same history as a format has it."""

    name: str
    path: str
    history: str
    """The member that holds it."""
    instructions: dict[str, Any]
    """Beside it; empty where they are its first message."""
    model: str

    def body(self, messages: list[Any], **members: Any) -> dict[str, Any]:
        leading = [] if self.instructions else [{"role": "system", "content": RULES}]
        return {"model": self.model, self.history: [*leading, *messages], **self.instructions, **members}


CHAT = Written("chat_completions", "/v1/chat/completions", "messages", {}, "gpt-x")
MESSAGES = Written("messages", "/v1/messages", "messages", {"system": RULES, "max_tokens": 400}, "claude-x")
RESPONSES = Written("responses", "/v1/responses", "input", {"instructions": RULES}, "gpt-y")
ALL = (CHAT, MESSAGES, RESPONSES)


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    """All three formats at one provider. Nothing is made ahead, so that calls can be counted."""
    return steno(upstream={"formats": [each.name for each in ALL]}, compaction={"background": {"enabled": False}})


def call(running: Steno, target: str, sent: Any = None, *headers: bytes, method: str = "POST") -> Answer:
    raw = None if sent is None else json.dumps(sent).encode()
    usual = b"content-type: application/json", b"authorization: Bearer sk-test", *headers
    return send(running.url, request_bytes(raw, *usual, target=target, method=method, usual=False), timeout=30.0)


def ask(running: Steno, written: Written, messages: list[Any] = LONG, *headers: bytes, **members: Any) -> Answer:
    named = f"x-context-conversation-id: {ID}".encode()
    return call(running, written.path, written.body(messages, **members), named, *headers)


def shown(running: Steno, path: str, method: str = "GET", sent: Any = None) -> Any:
    answered = call(running, f"/context{path}", sent, method=method)
    assert answered.status == 200, answered.body
    return answered.json


def test_each_format_has_summaries_of_its_own_under_one_id(simulator: Simulator, running: Steno) -> None:
    for _ in range(2):
        for written in ALL:
            answered = ask(running, written)
            assert (answered.status, answered.header("x-context-status")) == (200, "summarized")
            assert answered.header("x-context-conversation-id") == ID
    assert len({record.body for record in simulator.summaries}) == len(simulator.summaries), "none was made twice"
    assert {record.path for record in simulator.summaries} == {written.path for written in ALL}
    assert statuses(simulator) == {200}
    summaries = shown(running, f"/conversations/{ID}/summaries")["data"]
    assert sorted(summary["text"] for summary in summaries) == sorted(str(each.text) for each in simulator.summaries)
    assert [each["id"] for each in shown(running, "/conversations")["data"]] == [ID]


@pytest.mark.parametrize("written", ALL, ids=lambda written: written.name)
def test_rest_shows_what_was_done_in_each_format(simulator: Simulator, running: Steno, written: Written) -> None:
    other = next(each for each in ALL if each is not written)
    ask(running, other)
    ask(running, written)
    parts = shown(running, f"/conversations/{ID}/coverage")["parts"]
    assert [part["kind"] for part in parts][:2] == ["instructions", "summarized"]
    covered = [index for part in parts[1:] for index in range(part["first_index"], part["last_index"] + 1)]
    assert covered == list(range(len(LONG)))
    totals = shown(running, f"/conversations/{ID}/usage")["totals"]
    assert (totals["requests"], totals["summary"]["calls"]) == (2, len(simulator.summaries))
    assert totals["prompt"] == sum(record.prompt_tokens or 0 for record in simulator.chats)
    found = shown(running, "/search?q=ORD-0002")["data"]
    assert [each["conversation_id"] for each in found] == [ID] * 2
    assert {each["text"] for each in found} <= {record.text for record in simulator.summaries}


@pytest.mark.parametrize("written", ALL, ids=lambda written: written.name)
def test_plan_and_compact_take_each_format(simulator: Simulator, running: Steno, written: Written) -> None:
    asked = {**written.body(LONG), "format": written.name}
    planned = shown(running, "/plan", "POST", asked)
    assert planned["format"] == written.name
    assert planned["summaries_to_make"] > 0
    assert not simulator.log
    compacted = shown(running, "/compact", "POST", asked)
    assert (compacted["format"], compacted["context_status"]) == (written.name, "summarized")
    forwarded = call(running, written.path, {**written.body([]), written.history: compacted["messages"]})
    assert (forwarded.status, forwarded.header("x-context-status")) == (200, "full"), forwarded.body
    ask(running, written)
    by_hand = call(running, f"/context/conversations/{ID}/compact", {**asked, "instructions": "Keep the numbers."})
    assert (by_hand.status, by_hand.json["format"]) == (200, written.name), by_hand.body


@pytest.mark.parametrize("written", ALL, ids=lambda written: written.name)
def test_pins_hold_by_index_in_each_format(simulator: Simulator, running: Steno, written: Written) -> None:
    """In a request it counts all that stands in the history, over REST what is behind the instructions."""
    ask(running, written, context={"pin": [2 + (written is CHAT)]})
    pinned = LONG[2]["content"]
    assert pinned in json.dumps(simulator.chats[-1].payload[written.history])
    ask(running, written)
    assert pinned not in json.dumps(simulator.chats[-1].payload[written.history])
    shown(running, f"/conversations/{ID}/pins", "PUT", {"indexes": [2]})
    ask(running, written)
    assert pinned in json.dumps(simulator.chats[-1].payload[written.history])
