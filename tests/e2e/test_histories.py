"""Hostile histories in four formats through every preset: nothing is refused, nothing is lost, and no tool's words
become the user's. A few in every run; `make histories` plays as many as it is told."""

from __future__ import annotations

import os

import pytest

from app.settings.presets import PRESET_NAMES
from tests.e2e import running
from tests.histories.player import Told, play, stage
from tests.histories.talks import FORMATS

HISTORIES = int(os.environ.get("HISTORIES") or len(FORMATS) * len(PRESET_NAMES))
SEED = int(os.environ.get("SEED") or 1)
ONLY = os.environ.get("ONLY")
SHARE = 15
"""Histories of one test: several processes share the work."""
SHOWN = 40


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", [int(ONLY)] if ONLY else range(0, HISTORIES, SHARE))
def test_no_hostile_history_is_refused_loses_a_message_or_gets_a_rule_that_nobody_set(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.forget_environment(monkeypatch)
    told = Told()
    with stage() as on:
        for number in [start] if ONLY else range(start, min(start + SHARE, HISTORIES)):
            play(on, SEED, number, told)
    print(f"\n{told}")  # noqa: T201 - what `make histories` shows
    assert not told.failures, "\n".join([str(told), *told.failures[:SHOWN]])
    assert ONLY or told.compacted > told.talks
