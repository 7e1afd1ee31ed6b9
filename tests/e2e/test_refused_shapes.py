"""Shapes: a changed payload that is refused for how its messages stand goes one step down the ladder, once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Fault, Simulator
from tests.e2e.histories import chat, long_history, turns, used
from tests.e2e.raw import Answer, post, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno
from tests.e2e.test_overflow import OVERFLOW

WORDS = "messages with role 'tool' must be a response to a preceding message with 'tool_calls'."
SAID = "payload_refused: messages with role tool must be a response to a preceding message"
ERROR: Any = {"message": WORDS, "type": "invalid_request_error", "param": "messages.[3].role", "code": None}
MISSHAPEN = Fault(status=400, error=ERROR)
TOO_LONG: Any = turns(22)
"""About 9,000 tokens: over the window."""
KNOWN: Any = {"models": [{"match": "*", "context_window": WINDOW}], "compaction": {"background": {"enabled": False}}}
WITHOUT_SUMMARIES: Any = {**KNOWN, "compaction": {"strategy": "none"}}


def documents(number: int) -> list[Any]:
    """Answered tool results, about 1,400 tokens each, that masks take away."""
    talk: list[Any] = [{"role": "user", "content": "Read the reports."}]
    for n in range(number):
        talk += used(f"c{n}", "the report says that all is well " * 200)
        talk.append({"role": "assistant", "content": f"Report {n} is well."})
    return [*talk, {"role": "user", "content": "Sure?"}]


def told(answered: Answer) -> tuple[int, str | None, str | None]:
    return answered.status, answered.header("x-context-status"), answered.header("x-context-reason")


def statuses(simulator: Simulator) -> list[int | None]:
    return [record.status for record in simulator.chats]


def test_what_was_refused_with_a_summary_goes_without_one_and_the_next_request_at_once(
    simulator: Simulator, steno: StartSteno, capfd: pytest.CaptureFixture[str]
) -> None:
    url = steno(**KNOWN).url
    simulator.next_chat(MISSHAPEN)
    answered = post(url, chat(TOO_LONG))
    assert told(answered) == (200, "trimmed", SAID)
    assert statuses(simulator) == [400, 200]
    logged = "".join(capfd.readouterr())
    assert "provider refused" in logged
    assert "This is a fault in Steno" in logged
    said = {"role": "assistant", "content": "Yes."}
    answered = post(url, chat([*TOO_LONG, said, {"role": "user", "content": "Really?"}]))
    assert told(answered) == (200, "trimmed", SAID)
    assert statuses(simulator) == [400, 200, 200]


def test_what_the_window_holds_goes_as_it_came(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(MISSHAPEN)
    answered = post(steno(**KNOWN).url, chat(long_history()))
    assert told(answered) == (200, "full", SAID)
    assert statuses(simulator) == [400, 200]
    assert simulator.chats[-1].messages == long_history()


def test_what_was_refused_without_a_summary_goes_as_it_came_where_the_window_holds_it(
    simulator: Simulator, steno: StartSteno
) -> None:
    url = steno(**KNOWN).url
    simulator.next_chat(MISSHAPEN)
    answered = post(url, chat(documents(5)))
    assert told(answered) == (200, "full", SAID)
    refused, taken = simulator.chats
    assert len(refused.body) < len(taken.body)
    assert taken.messages == documents(5)
    assert not simulator.summaries


def test_where_nothing_stands_below_the_refusal_is_the_answer(simulator: Simulator, steno: StartSteno) -> None:
    simulator.chat_default = MISSHAPEN
    answered = post(steno(**WITHOUT_SUMMARIES).url, chat(TOO_LONG))
    assert answered.status == 400
    assert answered.json["error"]["message"] == WORDS
    assert statuses(simulator) == [400]


def test_it_goes_one_step_down_and_not_two(simulator: Simulator, steno: StartSteno) -> None:
    url = steno(**KNOWN).url
    simulator.chat_default = MISSHAPEN
    answered = post(url, chat(TOO_LONG))
    assert (answered.status, answered.json["error"]["message"]) == (400, WORDS)
    assert answered.header("x-context-status") == "summarized"
    assert statuses(simulator) == [400, 400]


def test_a_payload_that_came_so_is_the_clients_own(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(MISSHAPEN)
    answered = post(steno(**KNOWN).url, chat())
    assert told(answered) == (400, "full", None)
    assert statuses(simulator) == [400]


def test_what_was_sent_a_second_time_for_its_size_is_not_sent_a_third_for_its_shape(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.next_chat(Fault(status=400, error=OVERFLOW))
    simulator.next_chat(MISSHAPEN)
    answered = post(steno(models=[{"match": "*", "context_window": 2 * WINDOW}]).url, chat(long_history()))
    assert answered.status == 400
    assert answered.json["error"]["code"] == "context_length_exceeded"
    assert statuses(simulator) == [400, 400]


def test_what_was_sent_a_second_time_for_its_shape_is_not_sent_a_third_for_its_size(
    simulator: Simulator, steno: StartSteno
) -> None:
    simulator.next_chat(MISSHAPEN)
    simulator.next_chat(Fault(status=400, error=OVERFLOW))
    answered = post(steno(**KNOWN).url, chat(TOO_LONG))
    assert (answered.status, answered.json["error"]["message"]) == (400, WORDS)
    assert statuses(simulator) == [400, 400]


@pytest.mark.slow
def test_a_stream_that_has_begun_goes_on(simulator: Simulator, steno: StartSteno) -> None:
    simulator.next_chat(MISSHAPEN)
    answered = post(steno(**KNOWN).url, chat(TOO_LONG, stream=True))
    assert answered.status == 200
    assert statuses(simulator) == [400, 200]
    assert b'"error"' not in answered.body
    assert b'"context_status":"trimmed"' in answered.body
    assert answered.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("target", "body", "words", "status"),
    [
        (
            "/v1/messages",
            {"messages": TOO_LONG, "max_tokens": 100},
            "roles must alternate between user and assistant",
            "summarized",
        ),
        ("/v1/responses", {"input": TOO_LONG}, "No tool output found for function call call_1.", "trimmed"),
    ],
    ids=["messages", "responses"],
)
def test_so_it_is_in_every_format(
    simulator: Simulator, steno: StartSteno, target: str, body: dict[str, Any], words: str, status: str
) -> None:
    simulator.next_chat(Fault(status=400, error={"type": "invalid_request_error", "message": words}))
    headers = b"content-type: application/json", b"authorization: Bearer sk-test"
    sent = json.dumps({"model": "claude-sonnet-4-6", **body}).encode()
    answered = send(steno(**KNOWN).url, request_bytes(sent, *headers, target=target, usual=False), timeout=30.0)
    assert (answered.status, answered.header("x-context-status")) == (200, status)
    assert statuses(simulator) == [400, 200]
