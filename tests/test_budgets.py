"""The sizes that the tree may have. A step that makes a part smaller lowers its number here; a step that raises one
says why in the same commit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from app.store.tables import metadata
from scripts.generate_settings import count

ROOT = Path(__file__).parents[1]

LINES = {
    "app": 37_251,
    "app/cli": 1_460,
    "app/compaction": 9_002,
    "app/conversation": 1_925,
    "app/http": 2_600,
    "app/inspector": 1_800,
    "app/providers": 1_461,
    "app/proxy": 2_736,
    "app/api": 1_890,
    "app/runtime": 462,
    "app/settings": 1_389,
    "app/store": 3_500,
    "app/telemetry": 475,
    "app/tokens": 1_884,
    "app/formats": 5_998,
    "tests": 45_000,
    "lab": 8_000,
}
"""Lines of Python by folder, at most."""
FILES = 160
"""Python files in `app`, at most."""
SETTINGS = 60
TABLES = 12
WORDS = 38_000
"""Words of `docs`, at most."""
EXCHANGE_BYTES = 3_000_000
"""Bytes of the exchanges' cases and recordings, at most."""


def size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


@pytest.mark.parametrize(("folder", "most"), LINES.items(), ids=LINES)
def test_a_folder_has_no_more_lines_than_its_budget(folder: str, most: int) -> None:
    lines = sum(len(path.read_bytes().splitlines()) for path in (ROOT / folder).rglob("*.py"))
    assert lines <= most, f"{folder} has {lines} lines of Python, {lines - most} more than LINES allows"


def test_there_are_no_more_files_settings_and_tables_than_their_budgets() -> None:
    assert len([*(ROOT / "app").rglob("*.py")]) <= FILES
    assert count() <= SETTINGS
    assert len(metadata.tables) <= TABLES


def test_the_pages_have_no_more_words_than_their_budget() -> None:
    words = sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md"))
    assert words <= WORDS, f"docs has {words} words, {words - WORDS} more than WORDS allows"


def test_the_exchanges_take_no_more_bytes_than_their_budget() -> None:
    folder = ROOT / "tests" / "exchanges"
    assert size((folder / "cases").rglob("*")) + size((folder / "recorded").rglob("*")) <= EXCHANGE_BYTES
