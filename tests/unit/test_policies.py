"""The checklist of tests/e2e/presets and its tests: each line has a test, each test a line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.settings import load
from app.settings.presets import PRESET_NAMES

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "policies.md").read_text()
CHECKLIST = (ROOT / "tests" / "e2e" / "presets" / "checklist.md").read_text()
LINES = re.findall(r"^- `([A-F]\d+)` ", CHECKLIST, re.MULTILINE)
MARKED = {
    line
    for path in (ROOT / "tests" / "e2e" / "presets").glob("test_*.py")
    for line in re.findall(r'^@checklist\("([A-F]\d+)"\)', path.read_text(), re.MULTILINE)
}


def test_no_line_stands_twice() -> None:
    assert len(LINES) == len(set(LINES))


def test_every_line_has_a_test() -> None:
    assert set(LINES) - MARKED == set()


def test_every_test_has_its_line() -> None:
    assert MARKED - set(LINES) == set()


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_preset_loads_and_is_described(name: str) -> None:
    assert load(compaction={"preset": name}).compaction.preset == name
    assert f"`{name}`" in DOCUMENT
