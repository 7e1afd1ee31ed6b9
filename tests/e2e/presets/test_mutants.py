"""The presets' tests can fail: each notices a wrong line."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from app.settings.presets import PRESET_NAMES
from lab.simulator import Simulator
from tests.e2e.presets.checklist import Mutant
from tests.e2e.running import StartSteno

FILES = sorted(file.stem for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__))
MUTANTS: list[Mutant] = [
    mutant for name in FILES for mutant in getattr(import_module(f"tests.e2e.presets.{name}"), "MUTANTS", ())
]


def test_every_preset_has_a_mutant() -> None:
    assert {mutant.preset for mutant in MUTANTS} == set(PRESET_NAMES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.preset}: {mutant.target}")
def test_a_seeded_mutant_is_caught(
    mutant: Mutant, simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutant.target, mutant.replacement)
    with pytest.raises(AssertionError):
        mutant.check(simulator, steno)
