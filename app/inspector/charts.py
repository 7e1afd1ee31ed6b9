"""Charts: bars as numbers for an SVG that is stretched to its place, so labels are beside it and not in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

WIDTH, HEIGHT = 1_000, 100
"""Of the drawing. What it measures on the page is the style sheet's."""
_FILLED = 0.74
"""Of a bar's place; the rest parts it from the next one."""


class Piece(Struct, frozen=True):
    kind: str
    """Its class, and in the legend."""
    y: float
    height: float


class Bar(Struct, frozen=True):
    x: float
    label: str
    """What it says when it is pointed at."""
    pieces: Sequence[Piece]


class Stacked(Struct, frozen=True):
    """A bar for each place, made of kinds that stand on each other."""

    bars: Sequence[Bar]
    width: float
    """Of each bar."""
    top: float
    """What the highest bar comes to."""
    kinds: Sequence[str]
    """Those that are there at all, the lowest first."""
    first: str
    last: str


def stacked(places: Sequence[tuple[str, str, Mapping[str, float]]], kinds: Sequence[str]) -> Stacked:
    """`places`: each one's name, what it says when it is pointed at, and its amounts by kind."""
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
