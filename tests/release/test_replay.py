"""Recorded conversations against a real Steno: nothing is lost, and the prompt's beginning stays."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.settings.presets import PRESET_NAMES
from lab.replay.player import Player
from lab.replay.recordings import Recording, chain, read_recordings
from lab.replay.stage import MAY_REFUSE, stage
from lab.replay.tally import Tally
from tests.e2e import commands, running
from tests.e2e.commands import ROOT
from tests.release import recorded
from tests.unit.conversations import shares_with

MODEL = "gpt-4o"
LIMIT = 0.95
"""Share of the window that prompts may take: the clients reserve nothing."""
COMPACTED = 0.75
"""Share of the window below which prompts are, but for what is recalled."""
RECALLED = LIMIT * (2 + 1 / 2) * shares_with().recall
"""What is quoted for the current message and for earlier ones may each take its share, exact values half of it."""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    running.forget_environment(monkeypatch)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is learnt from, as where minutes lie between the turns: what is replayed does not depend on the
    clock."""
    monkeypatch.setattr("app.providers.calibrations.PAUSE_SECONDS", 0.0)


def replayed(recordings: list[Recording], window: int, chosen: str | Mapping[str, Any] | None = None) -> Tally:
    """`chosen` is a preset, or settings of compaction."""
    settings, may_refuse = ({"preset": chosen}, chosen in MAY_REFUSE) if isinstance(chosen, str) else (chosen, False)
    with stage(MODEL, window, compaction=settings) as set_up:
        player = Player(set_up.base_url, set_up.provider, MODEL, set_up.count)
        return player.play(recordings, Tally("test", window, may_refuse))


def agents(folder: Path, number: int, length: int) -> list[Recording]:
    return chain(read_recordings(recorded.write(folder / "agents.jsonl", recorded.agents(number))), length)


# Written for the tests


@pytest.mark.parametrize(("window", "fewest", "folds"), [(8_000, 3, 1), (16_000, 1, 0)])
def test_chained_agents_lose_nothing(tmp_path: Path, window: int, fewest: int, folds: int) -> None:
    tally = replayed(agents(tmp_path, 14, 14), window)
    assert not tally.violations
    assert tally.prefix_breaks == tally.compactions >= fewest
    assert tally.folds >= folds
    assert tally.too_large > 50
    assert tally.largest_prompt < (COMPACTED + RECALLED) * window
    assert tally.tokens_forwarded + tally.summary_tokens < 0.7 * tally.tokens_direct


# Presets

SUMMARISED = frozenset({"summarised"})
PRESET_MEANS: Mapping[str, frozenset[str]] = {
    "librechat": frozenset({"summarised", "shortened"}),
    "librechat-fading": frozenset({"shortened", "pruned"}),
    "openclaw-adaptive": frozenset({"shortened"}),
    "openclaw-aggressive": frozenset({"shortened"}),
    "sliding-window": frozenset({"pruned"}),
    "off": frozenset(),
}
"""What becomes of messages; of those that are not named: they are summarised."""


@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_a_preset_does_what_it_is_for(tmp_path: Path, preset: str) -> None:
    tally = replayed(agents(tmp_path, 6, 6), 5_000, preset)
    assert not tally.violations
    assert tally.too_large > 20
    assert tally.lost == 0
    done = {kind for kind in ("summarised", "shortened", "pruned") if getattr(tally, kind)}
    assert done <= PRESET_MEANS.get(preset, SUMMARISED)
    if preset not in MAY_REFUSE:
        assert done
        assert tally.errors == 0


# The command


def test_command_prints_a_table(tmp_path: Path) -> None:
    recordings = agents(tmp_path, 9, 9)
    ended = commands.run(["replay", str(tmp_path / "agents.jsonl"), "--chain", "9", "--window", "4000"], tmp_path, ROOT)
    assert ended.returncode == 0
    assert "agents.jsonl, window 4,000" in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 80
    requests = sum(len(each.requests) for each in recordings)
    assert re.search(rf"\| requests +\| +{requests} \|", ended.stdout)
    assert re.search(r"\| violations +\| +0 \|", ended.stdout)
    assert ended.stderr == f"as set: {requests} requests\n"
