"""The summariser's call: what a provider refuses in it is learnt, and a short pause is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from app.simulator import Model, Simulator
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_scenarios import LONG, RULES


def status_of(proxy: Steno, model: str) -> Any:
    messages: Any = [RULES, *LONG, {"role": "user", "content": "Which one was that?"}]
    return proxy.sdk().chat.completions.create(model=model, messages=messages).to_dict()["context"]


@pytest.mark.parametrize(
    ("model", "unsupported"),
    [("gpt-5-chat-latest", "reasoning_effort"), ("o4-mini", "max_tokens"), ("mine", "max_tokens")],
)
def test_a_parameter_the_provider_refuses_is_dropped_or_swapped_and_remembered(
    steno: StartSteno, simulator: Simulator, model: str, unsupported: str
) -> None:
    simulator.window = 128_000  # A reasoning model needs room to think, too.
    simulator.models = {model: Model(model, unsupported=frozenset({unsupported}))}
    proxy = steno()
    assert status_of(proxy, model)["status"] == "summarized"
    assert unsupported not in simulator.summaries[-1].payload
    asked = len(simulator.summaries)
    messages: Any = [RULES, *LONG[2:], {"role": "user", "content": "And that?"}]
    proxy.sdk().chat.completions.create(model=model, messages=messages)
    later = simulator.summaries[asked:]
    assert later
    assert {record.status for record in later} == {200}


def test_a_busy_summariser_is_asked_again_after_the_pause_it_names(steno: StartSteno, simulator: Simulator) -> None:
    simulator.next_summary(status=429, retry_after=0.2)
    assert status_of(steno(), "gpt-4o")["status"] == "summarized"
    assert [record.status for record in simulator.summaries] == [429, 200]


def test_a_long_pause_is_not_waited_for(steno: StartSteno, simulator: Simulator) -> None:
    simulator.next_summary(status=429, retry_after=30)
    assert status_of(steno(), "gpt-4o")["reason"] == "summariser_status_429"
    assert len(simulator.summaries) == 1
