"""Charts: bars as numbers for an SVG that is stretched to its place, so labels are beside it and not in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

WIDTH, HEIGHT = 1_000, 100
"""Size of the drawing in its own units; the style sheet says what it measures on the page."""
_FILLED = 0.74
"""Share of a bar's place that it fills; the rest parts it from the next one."""


class Piece(Struct, frozen=True):
    kind: str
    """CSS class of the piece, and its name in the legend."""
    y: float
    height: float


class Bar(Struct, frozen=True):
    x: float
    label: str
    """Text that is shown when the bar is pointed at."""
    pieces: Sequence[Piece]


class Stacked(Struct, frozen=True):
    """Bars, one a place, made of kinds that stand on each other."""

    bars: Sequence[Bar]
    width: float
    """Width of each bar, in the drawing's units."""
    top: float
    """Amount of the highest bar."""
    kinds: Sequence[str]
    """Kinds that occur, the lowest first."""
    first: str
    last: str


def stacked(places: Sequence[tuple[str, str, Mapping[str, float]]], kinds: Sequence[str]) -> Stacked:
    """Chart of `places`: each one's name, its text when pointed at, and its amounts by kind."""
    top = max((sum(amounts.values()) for *_, amounts in places), default=0.0)
    step = WIDTH / max(len(places), 1)
    bars = [
        Bar(round(number * step + step * (1 - _FILLED) / 2, 2), label, _pieces(amounts, kinds, top))
        for number, (_, label, amounts) in enumerate(places)
    ]
    there = [kind for kind in kinds if any(amounts.get(kind) for *_, amounts in places)]
    return Stacked(
        bars, round(step * _FILLED, 2), top, there, places[0][0] if places else "", places[-1][0] if places else ""
    )


def _pieces(amounts: Mapping[str, float], kinds: Sequence[str], top: float) -> list[Piece]:
    pieces, reached = [], float(HEIGHT)
    for kind in kinds:
        if height := HEIGHT * amounts.get(kind, 0.0) / top if top else 0.0:
            reached -= height
            pieces.append(Piece(kind, round(reached, 2), round(height, 2)))
    return pieces
