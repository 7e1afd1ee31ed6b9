"""Messages through Steno, in front of a provider that answers in it: what goes up, where, and with which headers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.histories import long_history
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
SAID = "The customer asked about orders ORD-0001 to ORD-0015, and each was answered as it is in the notes."
ANSWERED = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": SAID}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1_000, "output_tokens": 20},
}
SYSTEM = [{"type": "text", "text": "You are the shop's clerk.", "cache_control": {"type": "ephemeral"}}]


@pytest.fixture
def steno(before_scripted: StartSteno, scripted: ScriptedProvider) -> StartSteno:
    scripted.default = (answer(json.dumps(ANSWERED).encode()),)
    return before_scripted


def body(messages: list[Any] | None = None, **members: Any) -> dict[str, Any]:
    history = long_history() if messages is None else messages
    return {"model": "claude-sonnet-4-5", "max_tokens": 500, "system": SYSTEM, "messages": history, **members}


def ask(running: Steno, sent: dict[str, Any], *headers: bytes, target: str = PATH) -> Answer:
    usual = b"content-type: application/json", b"x-api-key: sk-callers", *headers
    return send(running.url, request_bytes(json.dumps(sent).encode(), *usual, target=target, usual=False), timeout=30.0)


def test_a_long_conversation_is_summarised_in_messages(steno: StartSteno, scripted: ScriptedProvider) -> None:
    answered = ask(steno(), body())
    assert (answered.status, answered.header("x-context-status")) == (200, "summarized")
    summary, forwarded = scripted.requests
    assert [request.target for request in scripted.requests] == [PATH.encode()] * 2
    assert summary.all(b"anthropic-version") == [b"2023-06-01"]
    assert [request.all(b"x-api-key") for request in scripted.requests] == [[b"sk-callers"]] * 2
    sent = json.loads(forwarded.body)
    assert sent["system"] == SYSTEM
    assert len(sent["messages"]) < len(long_history())


def test_counting_is_about_what_would_be_forwarded(steno: StartSteno, scripted: ScriptedProvider) -> None:
    running, counted = steno(), body()
    del counted["max_tokens"]
    ask(running, body())
    forwarded = json.loads(scripted.requests[-1].body)
    scripted.then(answer(b'{"input_tokens":1234}'))
    answered = ask(running, counted, b"x-context-count: forwarded", target=f"{COUNT}?beta=true")
    assert answered.json == {"input_tokens": 1234}
    assert scripted.requests[-1].target == f"{COUNT}?beta=true".encode()
    assert json.loads(scripted.requests[-1].body) == {key: forwarded[key] for key in counted}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "native_compaction"),
        ({"thread": {"id": "thread_1"}}, "server_state"),
    ],
)
def test_what_somebody_else_keeps_or_compacts_passes_as_it_came(
    steno: StartSteno, scripted: ScriptedProvider, members: dict[str, Any], reason: str
) -> None:
    answered = ask(steno(), body(**members))
    told = answered.header("x-context-status"), answered.header("x-context-reason")
    assert told == ("bypassed", reason)
    assert [json.loads(request.body) for request in scripted.requests] == [body(**members)]


def test_a_window_that_a_beta_asks_for_is_gone_by(steno: StartSteno) -> None:
    running = steno(models=[])
    wide = ask(running, body(), b"anthropic-beta: context-1m-2025-08-07")
    assert (wide.header("x-context-window"), wide.header("x-context-status")) == ("1000000", "full")
    assert ask(running, body()).header("x-context-window") == "200000"


def test_that_nobody_speaks_it_is_told_in_it(steno: StartSteno, scripted: ScriptedProvider) -> None:
    refused = ask(steno(upstream={"formats": ["chat_completions"]}), body())
    assert (refused.status, refused.json["type"]) == (404, "error")
    assert "No upstream speaks messages" in refused.json["error"]["message"]
    assert scripted.requests == []


def test_plan_and_compact_show_it(steno: StartSteno) -> None:
    running = steno()
    plan = ask(running, body(format="messages"), target="/context/plan").json
    assert (plan["format"], plan["context_status"], plan["summaries_to_make"]) == ("messages", "summarized", 1)
    made = ask(running, body(format="messages"), b"x-context-conversation-id: mine", target="/context/compact").json
    assert (made["format"], made["context_status"]) == ("messages", "summarized")
    assert {message["role"] for message in made["messages"]} == {"user", "assistant"}
    covered = send(
        running.url,
        request_bytes(
            None, b"x-api-key: sk-callers", method="GET", target="/context/conversations/mine/coverage", usual=False
        ),
    )
    assert [part["kind"] for part in covered.json["parts"]][:2] == ["instructions", "summarized"]


OWN_COMPACTION = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools. Your task is to create a detailed summary."


@pytest.mark.parametrize(("times", "status", "reason"), [(1, "bypassed", "client_compaction"), (2, "summarized", None)])
def test_a_clients_own_compaction_is_left_alone_unless_it_would_overflow(
    steno: StartSteno, scripted: ScriptedProvider, times: int, status: str, reason: str | None
) -> None:
    asked = body([*long_history() * times, {"role": "user", "content": OWN_COMPACTION}])
    answered = ask(steno(), asked)
    assert (answered.status, answered.header("x-context-status")) == (200, status)
    assert answered.header("x-context-reason") == reason
    assert (json.loads(scripted.requests[-1].body) == asked) == (times == 1)
