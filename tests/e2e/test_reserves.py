"""A request that reserves nearly the whole window for its answer is compacted as any other, in each format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lab.simulator import Simulator
from lab.simulator.rules import Model
from tests.e2e.compactions import statuses
from tests.e2e.conftest import TABLES
from tests.e2e.histories import turns
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno, Steno

RULES = "Answer as the clerk. " * 60
"""About 300 tokens."""
TURNS = 30
MODEL = "claude-opus-4-6"
FORMATS = {
    "chat_completions": ("/v1/chat/completions", "messages", "max_tokens"),
    "messages": ("/v1/messages", "messages", "max_tokens"),
    "responses": ("/v1/responses", "input", "max_output_tokens"),
}


@pytest.fixture
def simulator() -> Simulator:
    """It begins an answer in whatever room is left, as newer models do."""
    return Simulator(models=[Model(MODEL, counts_answer=False), Model("gpt-4o")], window=WINDOW, tables=TABLES)


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(upstream={"formats": [*FORMATS]}, compaction={"background": {"enabled": False}})


def ask(running: Steno, format_: str, history: list[Any], output: int, model: str = MODEL) -> Answer:
    path, member, reserve = FORMATS[format_]
    body: dict[str, Any] = {"model": model, reserve: output}
    if format_ == "messages":
        body["system"] = RULES
    else:
        history = [{"role": "developer" if format_ == "responses" else "system", "content": RULES}, *history]
    raw = json.dumps({**body, member: history}).encode()
    usual = b"content-type: application/json", b"authorization: Bearer sk-test", b"anthropic-version: 2023-06-01"
    return send(running.url, request_bytes(raw, *usual, target=path, usual=False), timeout=30.0)


@pytest.mark.slow
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("output", [WINDOW - 400, WINDOW, 4 * WINDOW])
def test_the_reserve_gives_way_and_compaction_goes_on(
    simulator: Simulator, running: Steno, format_: str, output: int
) -> None:
    kept: list[str] = []
    for number in range(TURNS):
        answered = ask(running, format_, turns(number), output)
        assert answered.status == 200, answered.body
        kept.append(str(answered.header("x-context-status")))
        if number > 2:
            assert (answered.header("x-context-reason") or "").startswith("reserve_gave_way: ")
    assert statuses(simulator) == {200}
    assert kept[:10] == ["full"] * 10, "what fits the window goes"
    assert set(kept[-10:]) == {"summarized"}
    prompts = [record.prompt_tokens or 0 for record in simulator.chats]
    assert max(prompts) <= WINDOW * 0.95
    # The first request has one message less than what is compared.
    starts = [json.dumps(record.payload[FORMATS[format_][1]][:2]) for record in simulator.chats[1:]]
    assert len(set(starts)) <= 1 + len(simulator.summaries), "one new beginning for each compaction"


def test_what_can_be_kept_free_is_kept_for_a_provider_that_counts_it(simulator: Simulator, running: Steno) -> None:
    for number in range(TURNS):
        answered = ask(running, "chat_completions", turns(number, words=60), WINDOW - 2_000, "gpt-4o")
        assert answered.status == 200, answered.body
        assert "reserve_gave_way" not in (answered.header("x-context-reason") or "")
    assert statuses(simulator) == {200}
    assert max(record.prompt_tokens or 0 for record in simulator.chats) <= 2_000
    assert simulator.summaries
