"""`make rivals`: Steno and the rules of others before the same provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.benchmarks import talks
from lab.benchmarks.rivals.__main__ import BASE, play, table
from lab.replay.recordings import Recording

pytestmark = pytest.mark.slow

WINDOW = 4_000


@pytest.fixture(scope="module")
def recording() -> Recording:
    return talks.agent(2 * WINDOW, lambda text: len(text) // 4)


def test_the_rules_are_played_beside_steno(recording: Recording) -> None:
    grid = table(Path("agents.jsonl"), [recording], ("default+prices", BASE, "keep-last", "full-summary"), WINDOW)
    cells = {row[0]: dict(zip(grid.header, row, strict=True)) for row in grid.rows}
    assert cells[BASE]["cost"] == "1.00"
    assert {name: row["invalid"] for name, row in cells.items()} == dict.fromkeys(cells, "0")
    assert [cells[name]["too large"] for name in ("default+prices", "full-summary")] == ["0", "0"]
    assert int(cells["default+prices"]["summaries"]) > 0
    assert int(cells["full-summary"]["summaries"]) > 0
    assert cells["keep-last"]["summaries"] == "0"


def test_what_is_never_compacted_breaks_nothing_and_keeps_everything(recording: Recording) -> None:
    bill = play([recording], BASE, WINDOW)
    assert (bill.breaks, bill.summaries, bill.too_large, bill.invalid) == (0, 0, 0, 0)
    assert bill.kept.far.found == bill.kept.far.sought
    assert bill.kept.views.found == bill.kept.views.sought
