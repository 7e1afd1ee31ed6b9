"""Options of a single request: its own threshold, and what its summaries are to look after."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, get, post
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
        ({"context": {"recall": "never"}}, b"x-a: b", "context.recall"),
        ({}, b"x-context-recall: no", "x-context-recall"),
        ({}, b"x-context-events: smoke", "x-context-events"),
        ({"context": {"preset": ""}}, b"x-a: b", "context.preset"),
        ({"context": {"trigger": {"tokens": 5}}}, b"x-a: b", "context.trigger"),
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


def asking() -> list[Any]:
    """About what the first summary stands for."""
    return [*turns(15)[:-1], {"role": "user", "content": "What was agreed about ORD-0002?"}]


def test_what_is_recalled_is_accounted_for(steno: StartSteno) -> None:
    proxy = steno()
    context = post(proxy.url, chat(asking(), conversation_id="kim")).json["context"]
    coverage = get(proxy.url, "/context/conversations/kim/coverage").json
    [recalled] = [part for part in coverage["parts"] if part["kind"] == "recalled"]
    assert context["actions"] == ["summarized", "recalled"]
    assert context["recalled"] == {"messages": len(recalled["messages"]), "tokens": recalled["tokens"]}
    assert {2, 3} <= set(recalled["messages"])
    assert sum(part["tokens"] for part in coverage["parts"]) == context["tokens"]["forwarded"]


@pytest.mark.parametrize(
    ("options", "header"),
    [({}, b"x-context-recall: off"), ({"context": {"recall": False}}, b"x-a: b")],
)
def test_a_request_does_without_recall(options: dict[str, Any], header: bytes, steno: StartSteno) -> None:
    context = post(steno().url, chat(asking(), **options), header).json["context"]
    assert context["actions"] == ["summarized"]
    assert "recalled" not in context


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
