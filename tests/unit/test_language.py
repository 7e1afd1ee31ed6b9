"""Plain English: turns of phrase that crept in once and are odd to a native reader stay out."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")]
CODE = [path for folder in ("app", "examples", "lab") for path in (ROOT / folder).rglob("*.py")]
TEXTS = [*PAGES, *(ROOT / "config").rglob("*.yaml"), *CODE]

ODD = re.compile(
    r"\bTrap:|\b(of late|all the same|goes by|in force|so-many-th|keeps? \w+ inside)\b"
    r"|\b(refusal|error|answer|provider) told\b"
)
NOT_OURS = {"rule_patterns.py"}  # what users say


def test_no_text_has_an_odd_turn_of_phrase() -> None:
    lines = (
        f"{path.relative_to(ROOT)}:{number}: {line}"
        for path in TEXTS
        if path.name not in NOT_OURS
        for number, line in enumerate(path.read_text().splitlines(), 1)
    )
    assert [line for line in lines if ODD.search(line)] == []
