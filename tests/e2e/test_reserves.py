"""An output cap as large as the window takes nothing from the prompt, in each format."""

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
FORMATS = {
    "chat_completions": ("/v1/chat/completions", "messages", "max_tokens"),
    "messages": ("/v1/messages", "messages", "max_tokens"),
    "responses": ("/v1/responses", "input", "max_output_tokens"),
}
ADDING, FILLING = "gpt-4o", "claude-opus-4-6"


@pytest.fixture
def simulator() -> Simulator:
    """One model's provider adds the output cap to the prompt, the other's begins an answer in whatever is left."""
    models = [Model(FILLING, counts_answer=False), Model(ADDING, counts_answer=True)]
    return Simulator(models=models, window=WINDOW, tables=TABLES)


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return steno(upstream={"formats": [*FORMATS]}, compaction={"background": {"enabled": False}})


def ask(running: Steno, format_: str, history: list[Any], output: int, model: str, **more: Any) -> Answer:
    path, member, cap = FORMATS[format_]
    body: dict[str, Any] = {"model": model, cap: output, **more}
    if format_ == "messages":
        body["system"] = RULES
    else:
        history = [{"role": "developer" if format_ == "responses" else "system", "content": RULES}, *history]
    raw = json.dumps({**body, member: history}).encode()
    usual = b"content-type: application/json", b"authorization: Bearer sk-test", b"anthropic-version: 2023-06-01"
    return send(running.url, request_bytes(raw, *usual, target=path, usual=False), timeout=30.0)


@pytest.mark.parametrize("format_", ["chat_completions", "messages"])  # OpenAI's Responses never adds it.
@pytest.mark.parametrize("stream", [False, True])
def test_a_history_below_the_trigger_stays_whole_and_the_cap_is_lowered_where_the_provider_adds_it(
    simulator: Simulator, running: Steno, format_: str, stream: bool
) -> None:
    for number in range(2, 8):
        answered = ask(running, format_, turns(number), WINDOW - 200, ADDING, stream=stream)
        assert answered.status == 200, answered.body
        assert answered.header("x-context-status") == "full"
        assert (answered.header("x-context-actions") or "").startswith("output_capped")
    assert [record.status for record in simulator.chats] == [400, 200, *[200] * 5]
    assert not simulator.summaries
    caps = [record.payload[FORMATS[format_][2]] for record in simulator.chats]
    assert caps[0] == WINDOW - 200
    for cap, record in zip(caps[1:], simulator.chats[1:], strict=True):
        assert WINDOW // 4 <= cap <= WINDOW - (record.prompt_tokens or 0)
        assert cap > 0.95 * (WINDOW - (record.prompt_tokens or 0))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("output", [WINDOW - 200, 4 * WINDOW])
def test_a_provider_that_does_not_add_the_cap_gets_it_as_it_is(
    simulator: Simulator, running: Steno, format_: str, output: int
) -> None:
    for number in range(2, 30, 3):
        answered = ask(running, format_, turns(number), output, FILLING)
        assert answered.status == 200, answered.body
    assert statuses(simulator) == {200}
    assert {record.payload[FORMATS[format_][2]] for record in simulator.chats} == {output}
    assert 1 <= len(simulator.summaries) <= 4
