"""Half a surrogate pair, wherever a history has one: the history is compacted like any other, in every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.simulator import Simulator
from tests.e2e.histories import turns
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_three_formats import ALL, Written, call

HALF = "\ud83d"
AGENTS: dict[str, list[Any]] = json.loads(Path(__file__).with_name("lone_surrogates.json").read_text("ascii"))
"""What an agent does between a question and its answer, by format."""


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(upstream={"formats": [each.name for each in ALL]}, compaction={"background": {"enabled": False}})


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
