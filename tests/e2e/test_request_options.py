"""Options of a single request: its own threshold, and what its summaries are to look after."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import StartSteno

WIDE: Any = {"models": [{"match": "*", "context_window": 128_000}]}


def status(answered: Answer) -> str:
    assert answered.status == 200, answered.body
    found: str = json.loads(answered.body)["context_status"]
    return found


def managed(threshold: object) -> dict[str, Any]:
    return {"context_management": [{"type": "compaction", "compact_threshold": threshold}]}


def test_a_request_is_compacted_from_its_own_threshold_on(simulator: Simulator, steno: StartSteno) -> None:
    simulator.window = 128_000
    proxy = steno(**WIDE)
    assert status(post(proxy.url, chat(turns(15)))) == "full"
    assert status(post(proxy.url, chat(turns(15), **managed(7_000)))) == "full"
    assert status(post(proxy.url, chat(turns(15), **managed(6_000)))) == "summarized"
    assert (simulator.chats[-1].prompt_tokens or 0) <= 6_000 * 5 / 7
    assert all("context_management" not in record.payload for record in simulator.chats)


@pytest.mark.parametrize("threshold", [0, "6000", None])
def test_a_threshold_that_is_none_is_refused_with_the_reason(
    threshold: object, simulator: Simulator, steno: StartSteno
) -> None:
    answered = post(steno().url, chat(**managed(threshold)))
    error = json.loads(answered.body)["error"]
    assert (answered.status, error["param"]) == (400, "context_management")
    assert "at least 1" in error["message"]
    assert not simulator.chats


@pytest.mark.parametrize(
    ("options", "header", "param"),
    [
        ({"context": {"presett": "off"}}, b"x-a: b", "context.presett"),
        ({"context": "off"}, b"x-a: b", "context"),
        ({}, b"x-context-compaction: no", "x-context-compaction"),
        ({}, b"x-context-preset: libre", "x-context-preset"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused_by_name(
    options: dict[str, Any], header: bytes, param: str, simulator: Simulator, steno: StartSteno
) -> None:
    proxy = steno()
    for target in ("/v1/chat/completions", "/context/plan", "/context/compact"):
        answered = post(proxy.url, chat(**options), header, target=target)
        error = json.loads(answered.body)["error"]
        assert (answered.status, error["code"], error["param"]) == (400, "invalid_request", param)
    assert not simulator.chats


@pytest.mark.parametrize(("value", "expected"), [(b"on", "summarized"), (b"TRUE", "summarized"), (b"Off", "full")])
def test_a_header_switches_compaction(value: bytes, expected: str, steno: StartSteno) -> None:
    assert status(post(steno().url, chat(turns(15)), b"x-context-compaction: " + value)) == expected


def test_the_summariser_is_told_what_to_look_after(simulator: Simulator, steno: StartSteno) -> None:
    answered = post(steno().url, chat(turns(15), context={"instructions": "every price, to the cent"}))
    assert status(answered) == "summarized"
    told = simulator.summaries[0].payload["messages"]
    assert all("every price, to the cent" in message["content"] for message in told)
    assert "context" not in simulator.chats[0].payload


def test_a_summary_with_a_focus_is_none_for_a_request_without(simulator: Simulator, steno: StartSteno) -> None:
    proxy = steno()
    for options in ({"instructions": "prices"}, {}, {"instructions": "dates"}, {"instructions": "prices"}):
        post(proxy.url, chat(turns(15), context=options))
    assert len(simulator.summaries) == 3
