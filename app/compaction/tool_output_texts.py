"""Diffs, pages and tables, each by its lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.compaction.tool_output_pieces import FILL, GOOD, KEY, Found, Piece, found

_FILE = ("+++ ", "rename to ", "deleted file", "Binary files ")
_HUNK = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@")
_HEADING = re.compile(r"#{1,6} \S|<(?:title|h[1-6])\b", re.IGNORECASE)
_PAGE = re.compile(r"#{2,6} \S|<(?:title|h[1-6])\b", re.IGNORECASE)
_SIGNS = "\t,;|"


def changes(lines: Sequence[str], _: str) -> Found | None:
    """Files and heads of hunks, then what changed."""
    hunks = sum(_HUNK.match(line) is not None for line in lines)
    if not hunks:
        return None
    return found(
        f"{hunks} hunks",
        [Piece(_change(line), line) for line in lines if line.startswith(("+", "-", "@", "r", "d", "B"))],
    )


def _change(line: str) -> float:
    if line.startswith(_FILE):
        return KEY
    if _HUNK.match(line):
        return GOOD
    return FILL if line.startswith(("+", "-")) and not line.startswith("--- ") else FILL + 1


def headings(lines: Sequence[str], _: str) -> Found | None:
    """Title and headings, then the rest."""
    if not any(map(_PAGE.match, lines)):
        return None
    pieces = [Piece(KEY if _HEADING.match(line) else FILL, line) for line in lines]
    return found(f"{len(lines)} lines", pieces)


def rows(lines: Sequence[str], _: str) -> Found | None:
    """The header, then the first rows."""
    written = [line for line in lines if line.strip()]
    if not any(_is_even([line.count(sign) for line in written]) for sign in _SIGNS):
        return None
    return found(
        f"{len(written) - 1} rows", [Piece(KEY + number / len(written), line) for number, line in enumerate(written)]
    )


def _is_even(counts: Sequence[int]) -> bool:
    """Whether all rows have about as many columns, and at least three."""
    return len(counts) >= 4 and counts[0] >= 2 and sum(count == counts[0] for count in counts) >= 0.9 * len(counts)
