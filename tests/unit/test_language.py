"""Plain English: turns of phrase that crept in once and are odd to a native reader stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
TEXTS = [*PAGES, *(ROOT / "config").rglob("*.yaml"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "app").rglob("*.py")]

ODD = re.compile(
    r"\bTrap:|\b(of late|all the same|goes by|in force|so-many-th|keeps? \w+ inside)\b"
    r"|\b(refusal|error|answer|provider) told\b"
)
NOT_OURS = {"rule_patterns.py"}  # what users say


@pytest.mark.parametrize("text", sorted(TEXTS), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_text_has_an_odd_turn_of_phrase(text: Path) -> None:
    lines = text.read_text().splitlines() if text.name not in NOT_OURS else []
    assert [line for line in lines if ODD.search(line)] == []
