"""The marks that tie tests to their lines in checklist.md, and what proves that these tests can fail.

Seeded mutants: for each preset one wrong line, and the scenario of its checklist that must notice it. They stand as
`MUTANTS` beside the scenarios, in the test files of this folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from app.settings.presets import PresetName
from lab.simulator import Simulator
from tests.e2e.running import StartSteno

Check = Callable[[Simulator, StartSteno], None]
"""A scenario: raises AssertionError where the preset does not behave."""


@dataclass(frozen=True, slots=True)
class Mutant:
    preset: PresetName
    target: str
    """What is replaced, as `monkeypatch.setattr` takes it: where it is used, which may not be where it is defined."""
    replacement: Any
    check: Check


def checklist(line: str) -> pytest.MarkDecorator:
    """For a test of that line, such as `A1`."""
    return pytest.mark.checklist(line)
