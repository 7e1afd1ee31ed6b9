"""The presets' tests can fail: each notices a wrong line."""

from __future__ import annotations

import pytest

from lab.simulator import Simulator
from tests.e2e.presets.mutants import MUTANTS, Mutant
from tests.e2e.running import StartSteno


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.preset}: {mutant.target}")
def test_a_seeded_mutant_is_caught(
    mutant: Mutant, simulator: Simulator, steno: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutant.target, mutant.replacement)
    with pytest.raises(AssertionError):
        mutant.check(simulator, steno)
