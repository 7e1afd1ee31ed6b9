"""The grid: what fills the context window, as shares that add up to it and as cells to look at.

Every token of the latest payload is in exactly one share. What is left of the window is what the answer may take, and
what is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

Filling = Literal[
    "instructions", "tools", "summaries", "pinned", "recalled", "masked", "verbatim", "over", "reserve", "free"
]

COLUMNS, ROWS = 20, 10
CELLS = COLUMNS * ROWS

LABELS: Mapping[Filling, str] = {
    "instructions": "Instructions",
    "tools": "Tools and format",
    "summaries": "Summaries",
    "pinned": "Pinned copies",
    "recalled": "Recalled",
    "masked": "Masked or cut",
    "verbatim": "Verbatim",
    "over": "Over the window",
    "reserve": "Kept for the answer",
    "free": "Free",
}
"""Labels of the fillings, in the order of the payload, and then of what is left."""
_OF_PART: Mapping[str, Filling] = {
    "instructions": "instructions",
    "summarized": "summaries",
    "stub": "summaries",
    "user_words": "summaries",
    "pinned": "pinned",
    "client_instructions": "instructions",
    "recalled": "recalled",
    "exact_values": "recalled",
    "state": "recalled",
    "verbatim": "verbatim",
    "carried": "verbatim",
}
"""Filling by the kind of a coverage part; every other kind leaves something out of a message."""


class Share(NamedTuple):
    """Share of the window that one kind of content takes."""

    filling: Filling
    tokens: int
    percent: float

    @property
    def label(self) -> str:
        return LABELS[self.filling]


class Grid(Struct, frozen=True):
    window: int
    """Size of the window in tokens."""
    shares: tuple[Share, ...]
    """Shares that are not empty. Their tokens add up to the window, without `over`, which is what exceeds it."""
    cells: tuple[Filling, ...]
    """Cells row by row; a filling that occurs has at least one."""

    @property
    def runs(self) -> Sequence[tuple[Share, Sequence[tuple[int, int]]]]:
        """Columns and rows of each share's cells."""
        places: dict[Filling, list[tuple[int, int]]] = {}
        for number, filling in enumerate(self.cells):
            places.setdefault(filling, []).append((number % COLUMNS, number // COLUMNS))
        return [(share, places.get(share.filling, [])) for share in self.shares]


def grid_of(parts: Sequence[Mapping[str, Any]], window: int, limit: int | None) -> Grid:
    """Grid of a payload. `parts` as in the coverage, with the provider's tokens. `limit`: what the prompt may use,
    where that is known."""
    used = payload_shares(parts)
    total = sum(used.values())
    left = max(0, window - total)
    reserve = min(left, max(0, window - limit)) if limit is not None else 0
    shown = _within(used, window) | {"reserve": reserve, "free": left - reserve}
    if total > window:
        shown["over"] = total - window
    shares = tuple(
        Share(filling, shown[filling], 100 * shown[filling] / window if window else 0.0)
        for filling in LABELS
        if shown.get(filling)
    )
    inside: dict[Filling, int] = {share.filling: share.tokens for share in shares if share.filling != "over"}
    return Grid(window, shares, _cells(inside))


def payload_shares(parts: Sequence[Mapping[str, Any]]) -> dict[Filling, int]:
    """Tokens of a payload by what they are; they add up to the payload's."""
    found: dict[Filling, int] = {}
    for part in parts:
        filling = _OF_PART.get(part["kind"], "masked")
        tokens = part["tokens"]
        if filling == "instructions":
            tools = max(0, min(part.get("tools_tokens", 0), tokens))
            found["tools"] = found.get("tools", 0) + tools
            tokens -= tools
        found[filling] = found.get(filling, 0) + tokens
    # The instructions bear what a calibration adds, which may be less than nothing.
    if (missing := min(0, found.get("instructions", 0))) and len(found) > 1:
        largest = max(found, key=lambda filling: found[filling])
        found["instructions"] = 0
        found[largest] = max(0, found[largest] + missing)
    return {filling: max(0, tokens) for filling, tokens in found.items()}


def _within(used: Mapping[Filling, int], window: int) -> dict[Filling, int]:
    """Part of the shares that lies inside the window: the payload's end is what does not fit."""
    room, shown = window, dict[Filling, int]()
    for filling in LABELS:
        if filling in used:
            shown[filling] = min(room, used[filling])
            room -= shown[filling]
    return shown


def _cells(shares: Mapping[Filling, int]) -> tuple[Filling, ...]:
    """Number of cells for each share, by largest remainders, so that they add up."""
    total = sum(shares.values())
    if not total:
        shares, total = {"free": 1}, 1
    counts = {filling: CELLS * tokens // total for filling, tokens in shares.items()}
    by_remainder = sorted(shares, key=lambda filling: -(CELLS * shares[filling] % total))
    for filling in by_remainder[: CELLS - sum(counts.values())]:
        counts[filling] += 1
    for filling in (filling for filling, count in counts.items() if not count):
        counts[max(counts, key=lambda each: counts[each])] -= 1
        counts[filling] = 1
    cells: list[Filling] = []
    for filling in LABELS:
        cells.extend([filling] * counts.get(filling, 0))
    return tuple(cells)
