"""A table over presets is as wide as the output, and no figure is broken or missing."""

from __future__ import annotations

import re

import pytest

from lab.replay.tables import Grid

NAMES = tuple(f"preset-{number}" for number in range(6))
MEASURES = "requests", "tokens of all summary calls", "messages in refused requests", "violations", "share", "lost"
GRID = Grid(
    "six.jsonl, window 8,000",
    ("preset", *MEASURES),
    [(name, *(f"{line + 1},{column}00,000" for column in range(len(MEASURES)))) for line, name in enumerate(NAMES)],
    "What was measured, and how: " + "every figure is a whole number of tokens. " * 3,
)
"""85 wide as it is."""


@pytest.mark.parametrize("width", [60, 80, 84, 85, 200])
def test_whatever_the_width_every_figure_is_shown_once(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    GRID.show()
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    words = re.findall(r"[\w,-]+", shown)
    for word in (*NAMES, *(cell for row in GRID.rows for cell in row)):
        assert words.count(word) == 1, word
    if width < GRID.width:
        assert all(measure in shown for measure in MEASURES)  # The names of lines are not wrapped.


def test_the_lines_of_a_wide_output_are_the_presets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(GRID.width))
    GRID.show()
    shown = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"│ {name} ") for line in shown) for name in NAMES)
