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
ASKED = (
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a summary of the conversation."
)
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


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "native_compaction"),
        ({"compaction": {"type": "summarize"}}, "native_compaction"),
        ({"thread": {"id": "thread_1"}}, "server_state"),
        (
            {
                "messages": [
                    *long_history(),
                    {"role": "assistant", "content": "Yes."},
                    {"role": "user", "content": ASKED},
                ]
            },
            "client_compaction",
        ),
    ],
)
def test_what_somebody_else_keeps_or_compacts_passes_as_it_came(
    steno: StartSteno, scripted: ScriptedProvider, members: dict[str, Any], reason: str
) -> None:
    answered = ask(steno(), body(**members), target=f"{PATH}?beta=true")
    assert {request.target for request in scripted.requests} == {f"{PATH}?beta=true".encode()}
    told = answered.header("x-context-status"), answered.header("x-context-reason")
    assert told == ("bypassed", reason)
    assert [json.loads(request.body) for request in scripted.requests] == [body(**members)]


MARK = {"type": "ephemeral"}
BETAS = b"anthropic-beta: claude-code-20250219,context-management-2025-06-27"


def marks_in(sent: Any) -> int:
    return json.dumps(sent).count('"cache_control"')


def sent_to(scripted: ScriptedProvider) -> dict[str, Any]:
    """The last request that the provider got."""
    told: dict[str, Any] = json.loads(scripted.requests[-1].body)
    return told


def test_to_clear_thinking_and_results_is_no_compaction(steno: StartSteno, scripted: ScriptedProvider) -> None:
    """Claude Code asks for the first always."""
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}, {"type": "clear_tool_uses_20250919"}]
    answered = ask(steno(), body(context_management={"edits": edits}), BETAS, b"anthropic-version: 2023-06-01")
    assert answered.header("x-context-status") == "summarized"
    assert sent_to(scripted)["context_management"] == {"edits": edits}


def test_marks_of_the_cache_are_the_clients_and_one_of_a_summarised_message_goes_to_the_summary(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    """Four of them: on the instructions, on something old, on the second last question and on the last one."""
    history = long_history()
    for place in (4, len(history) - 3, len(history) - 1):
        text = {"type": "text", "text": history[place]["content"], "cache_control": MARK}
        history[place] = {"role": history[place]["role"], "content": [text]}
    ask(steno(), body(history))
    sent = sent_to(scripted)
    assert marks_in(body(history)) == marks_in(sent) == 4
    [summary] = [said for said in sent["messages"] if "</notes" in json.dumps(said)]
    assert marks_in(summary) == 1
    assert sent["messages"][-3:] == history[-3:]
    assert sent["system"] == SYSTEM


def test_tenants_are_told_apart_by_their_keys_in_whichever_header(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    """Another key gets nothing of the first one's; the same key is the same caller in another header, too."""
    running = steno()

    def asks_for_summaries(key: bytes) -> bool:
        before, raw = len(scripted.requests), json.dumps(body()).encode()
        headers = b"content-type: application/json", key
        send(running.url, request_bytes(raw, *headers, target=PATH, usual=False), timeout=30.0)
        return len(scripted.requests) - before > 1

    keys = b"x-api-key: sk-1", b"x-api-key: sk-2", b"authorization: Bearer sk-3", b"authorization: Bearer sk-1"
    assert [asks_for_summaries(key) for key in keys] == [True, True, True, False]


THINKING = {"type": "thinking", "thinking": "What was it?", "signature": "c2lnbmVk"}
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


def test_a_clients_own_compaction_says_so_where_its_history_holds_thinking_too(
    steno: StartSteno, scripted: ScriptedProvider
) -> None:
    """Such a history is looked through, as some of it may have been thought behind our summaries."""
    thought = {"role": "assistant", "content": [THINKING, {"type": "text", "text": "It was on time."}]}
    asked = body([*long_history(), thought, {"role": "user", "content": OWN_COMPACTION}])
    answered = ask(steno(), asked)
    assert answered.header("x-context-reason") == "client_compaction"
    assert [json.loads(request.body) for request in scripted.requests] == [asked]
