"""Charts of the pages beside that of tokens: bars by day or hour, and the grid of what fills the context window.

Each token of the latest payload is in one share of the grid. What is left of the window is what the answer may take,
and what is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

Filling = Literal[
    "instructions", "tools", "summaries", "pinned", "recalled", "masked", "verbatim", "over", "reserve", "free"
]

COLUMNS, CELLS = 20, 200
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


class Bar(NamedTuple):
    name: str
    label: str
    """Text that is shown when the bar is pointed at."""
    amounts: Mapping[str, float]
    """Amounts by their kind, the lowest first."""

    @property
    def total(self) -> float:
        return sum(self.amounts.values())


class Share(NamedTuple):
    """Share of the window that one kind of content takes."""

    filling: Filling
    label: str
    tokens: int
    of_window: float


class Grid(Struct, frozen=True):
    shares: tuple[Share, ...]
    """Shares that are not empty. Without `over`, which is what exceeds the window, their tokens add up to it."""
    cells: tuple[Filling, ...]
    """Cells row by row; a filling that occurs has at least one."""


def grid_of(parts: Sequence[Mapping[str, Any]], window: int, limit: int | None) -> Grid:
    """Grid of a payload. `parts` as in the coverage, with the provider's tokens. `limit`: what the prompt may use,
    where that is known."""
    used = payload_shares(parts)
    total = sum(used.values())
    room, inside = window, dict[Filling, int]()
    for filling in LABELS:  # The payload's end is what does not fit.
        inside[filling] = min(room, used.get(filling, 0))
        room -= inside[filling]
    inside["reserve"] = min(room, max(0, window - limit)) if limit is not None else 0
    inside["free"] = room - inside["reserve"]
    shown = inside | {"over": max(0, total - window)}
    return Grid(
        tuple(Share(each, LABELS[each], shown[each], shown[each] / (window or 1)) for each in LABELS if shown[each]),
        _cells({each: tokens for each, tokens in inside.items() if tokens}),
    )


def payload_shares(parts: Sequence[Mapping[str, Any]]) -> dict[Filling, int]:
    """Tokens of a payload by what they are; they add up to the payload's."""
    found: dict[Filling, int] = {}
    for part in parts:
        filling, tokens = _OF_PART.get(part["kind"], "masked"), part["tokens"]
        if filling == "instructions":
            tools = max(0, min(part.get("tools_tokens", 0), tokens))
            found["tools"] = found.get("tools", 0) + tools
            tokens -= tools
        found[filling] = found.get(filling, 0) + tokens
    # The instructions bear what a calibration adds, which may be less than nothing.
    if (missing := min(0, found.get("instructions", 0))) and len(found) > 1:
        largest = max(found, key=lambda filling: found[filling])
        found["instructions"] = 0
        found[largest] += missing
    return {filling: max(0, tokens) for filling, tokens in found.items()}


def _cells(shares: Mapping[Filling, int]) -> tuple[Filling, ...]:
    """Cells of the shares by largest remainders, so that they add up."""
    shares = shares or {"free": 1}
    total = sum(shares.values())
    counts = {filling: CELLS * tokens // total for filling, tokens in shares.items()}
    by_remainder = sorted(shares, key=lambda filling: -(CELLS * shares[filling] % total))
    for filling in by_remainder[: CELLS - sum(counts.values())]:
        counts[filling] += 1
    for filling in (filling for filling, count in counts.items() if not count):
        counts[max(counts, key=lambda each: counts[each])] -= 1
        counts[filling] = 1
    return tuple(filling for filling in LABELS for _ in range(counts.get(filling, 0)))
