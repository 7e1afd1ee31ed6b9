"""One conversation under three formats: an id names it in all of them, and each has summaries of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.compactions import statuses
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import StartSteno, Steno

ID = "mine"
HALF = "\ud83d"
BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"model": "gpt-x", "messages": turns(15)},
    "/v1/messages": {"model": "claude-x", "messages": turns(15), "system": "Be brief.", "max_tokens": 400},
    "/v1/responses": {"model": "gpt-y", "input": turns(15), "instructions": "Be brief."},
}


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    """All three formats at one provider. Nothing is made ahead, so that calls can be counted."""
    formats = {"formats": ["chat_completions", "messages", "responses"]}
    return steno(upstream=formats, compaction={"background": {"enabled": False}})


def test_each_format_has_summaries_of_its_own_under_one_id(simulator: Simulator, running: Steno) -> None:
    for _ in range(2):
        for path, body in BODIES.items():
            answered = post(running.url, body, f"x-context-conversation-id: {ID}".encode(), target=path, timeout=30.0)
            assert (answered.status, answered.header("x-context-status")) == (200, "summarized")
            assert answered.header("x-context-conversation-id") == ID
    assert len({record.body for record in simulator.summaries}) == len(simulator.summaries), "none was made twice"
    assert {record.path for record in simulator.summaries} == set(BODIES)
    assert statuses(simulator) == {200}
    summaries = get(running.url, f"/context/conversations/{ID}/summaries").json["data"]
    assert sorted(summary["text"] for summary in summaries) == sorted(str(each.text) for each in simulator.summaries)
    assert [each["id"] for each in get(running.url, "/context/conversations").json["data"]] == [ID]


def test_a_history_with_halves_of_pairs_is_compacted_and_its_summary_call_has_none(
    running: Steno, simulator: Simulator
) -> None:
    """The provider is one that refuses them; what it is sent holds none, as they were all summarised."""
    plain: Any = turns(15)
    body = chat([*({**each, "content": f"{HALF}{each['content']} \ude00{HALF}"} for each in plain[:16]), *plain[16:]])
    for _ in range(2):
        answered = post(running.url, body, timeout=30.0)
        assert (answered.status, answered.header("x-context-status")) == (200, "summarized"), answered.body
    assert {record.status for record in simulator.log} == {200}
    assert any("\ufffd" in json.dumps(call.payload, ensure_ascii=False) for call in simulator.summaries)
    assert len({call.body for call in simulator.summaries}) == len(simulator.summaries), "digests are the same"
