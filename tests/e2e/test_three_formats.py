"""One conversation under three formats: an id names it in all of them, each has summaries of its own, and all of
`/context` shows them and takes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.compactions import statuses
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno

LONG: Any = turns(15)
RULES = "Answer as the clerk."
HALF = "\ud83d"
AGENTS: dict[str, list[Any]] = json.loads(Path(__file__).with_name("lone_surrogates.json").read_text("ascii"))
"""What an agent does between a question and its answer, by format; with halves of a surrogate pair."""
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


# Halves of a surrogate pair


def history(written: Written) -> list[Any]:
    """Each of its older messages has halves."""
    plain: list[Any] = turns(15)
    old = [{**message, "content": f"{HALF}{message['content']} \ude00{HALF}"} for message in plain[:16]]
    return [old[0], *AGENTS[written.name], *old[1:], *plain[16:]]


@pytest.mark.parametrize("written", ALL, ids=lambda each: each.name)
def test_a_history_with_halves_is_compacted_and_its_summary_call_has_none(
    running: Steno, simulator: Simulator, written: Written
) -> None:
    """The provider is one that refuses them; what it is sent holds none, as they were all summarised."""
    headers = (b"x-api-key: sk-test",)
    answered = call(running, written.path, written.body(history(written)), *headers)
    assert (answered.status, answered.header("x-context-status")) == (200, "summarized"), answered.body
    calls = len(simulator.summaries)
    assert calls
    assert {record.status for record in simulator.log} == {200}
    assert any("\ufffd" in json.dumps(call.payload, ensure_ascii=False) for call in simulator.summaries)
    again = call(running, written.path, written.body(history(written)), *headers)
    assert again.header("x-context-status") == "summarized"
    assert len(simulator.summaries) == calls  # The same history, so the same digests.
    shown = call(running, "/context/search?q=order", None, method="GET")
    assert shown.status == 200
