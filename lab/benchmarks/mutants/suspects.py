"""Tests that could notice a change: those that ran its lines, as coverage recorded it for each test."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from coverage.numbits import numbits_to_nums

GROUPS = {
    "unit": ("tests/unit", "tests/conformance"),
    "integration": ("tests/integration",),
    "e2e": ("tests/e2e", "tests/browser"),
}
"""Folders of tests that are recorded together, in the order in which they are asked."""
CONFIGURATION = "[run]\nbranch = false\n"
"""Configuration of coverage: lines suffice, and cost less."""
ROWS = """
select context.context, line_bits.numbits
from line_bits join context on context.id = line_bits.context_id join file on file.id = line_bits.file_id
where :module is null or file.path = :module
"""


class Suspects:
    """Lines that each test ran, read from these recordings."""

    def __init__(self, recordings: Sequence[Path], root: Path) -> None:
        self._recordings = recordings
        self._root = root
        self._weights = [self._read_weights(file) for file in self._recordings]

    def of(self, module: str, lines: Iterable[int]) -> list[list[str]]:
        """Tests that ran one of these lines, for each recording; the most special ones first.

        With no line: tests that ran anything of the module.
        """
        wanted = set(lines)
        found = []
        for file, weights in zip(self._recordings, self._weights, strict=True):
            ran = self._read_module(file, module)
            tests = {test for test, there in ran.items() if not wanted or not wanted.isdisjoint(there)}
            found.append(sorted(tests, key=lambda test: (weights[test], test)))
        return found

    def _read_module(self, file: Path, module: str) -> dict[str, set[int]]:
        ran = defaultdict[str, set[int]](set)
        for test, numbits in _rows(file, str(self._root / module)):
            ran[test].update(numbits_to_nums(numbits))
        return ran

    def _read_weights(self, file: Path) -> dict[str, int]:
        """How many lines each test ran."""
        weights = defaultdict[str, int](int)
        for test, numbits in _rows(file):
            weights[test] += sum(byte.bit_count() for byte in numbits)
        return weights


def _rows(file: Path, module: str | None = None) -> list[tuple[str, bytes]]:
    """A test and the lines that it ran in the module, or in each of them."""
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute(ROWS, {"module": module})
        # A context is `test|setup`, `test|run` or `test|teardown`; what is imported before any test has none.
        return [(context.rpartition("|")[0], numbits) for context, numbits in found if context]


def recording(folder: Path, group: str) -> Path:
    """The file with what a group's tests ran."""
    return folder / f"{group}.coverage"
