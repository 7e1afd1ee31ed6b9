"""Which policy decides about a request, and what the operator adds to it."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from app.settings import policies
from app.settings.presets import PRESETS
from lab.simulator import Simulator
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import Answer, post
from tests.e2e.running import StartSteno


def actions(answered: Answer) -> list[str]:
    done: list[str] = json.loads(answered.body)["context"]["actions"]
    return done


# What the operator adds


@pytest.fixture
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    default = replace(PRESETS["default"], source_tokens=4_000)
    monkeypatch.setattr(policies, "PRESETS", {**PRESETS, "default": default})


@pytest.mark.usefixtures("_small_parts")
def test_a_history_far_too_long_is_summarised_in_parts_side_by_side(simulator: Simulator, steno: StartSteno) -> None:
    """Eight at a time: the ninth call waits for one of the first."""
    simulator.summary_default = type(simulator.summary_default)(delay=0.3)
    proxy = steno(summary={"max_tokens": 256})
    answered = post(proxy.url, chat(turns(90)))
    assert actions(answered)[0] == "summarized"
    began = sorted(record.at for record in simulator.summaries)
    assert len(began) > 8
    assert began[7] - began[0] < 0.3
    assert began[8] - began[0] >= 0.3


@pytest.mark.slow
@pytest.mark.usefixtures("_small_parts")
def test_a_long_history_whose_parts_fail_together_pauses_the_summariser_for_nobody_else(
    simulator: Simulator, steno: StartSteno
) -> None:
    working = simulator.summary_default
    simulator.summary_default = type(working)(status=500)
    proxy = steno(summary={"max_tokens": 256})
    assert "summarized" not in actions(post(proxy.url, chat(turns(90))))
    assert len(simulator.summaries) > 8
    simulator.summary_default = working
    assert actions(post(proxy.url, chat(long_history()))) == ["summarized", "user_words"]
