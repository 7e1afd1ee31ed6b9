"""Every preset loads, and docs/policies.md describes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import load
from app.settings.presets import PRESET_NAMES

DOCUMENT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_loads_and_is_described(name: str) -> None:
    assert load(compaction={"preset": name}).compaction.preset == name
    assert f"`{name}`" in DOCUMENT
