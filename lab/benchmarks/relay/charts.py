"""The charts of the documentation, as SVG: figures on logarithmic scales, as multiples of nginx's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from lab.benchmarks.relay.report import MEASURES, SIZES, Figures
from lab.benchmarks.relay.subjects import TITLES

BASE = "nginx"
COLOURS = ("#0072b2", "#000000", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b")
"""Okabe and Ito's, which most kinds of colour blindness can tell apart."""
WIDTH, LEFT, RIGHT, TOP, ROW = 860, 290, 20, 60, 26
HEIGHT = 360

Scale = Callable[[float], float]


def dots(found: Figures, subjects: Sequence[str]) -> str:
    """A line for each measure, a dot for each subject."""
    rows = [measure.title for measure in MEASURES if not measure.is_ratio and BASE in found[measure.title]]
    shares = {row: _relative(found[row], found[row][BASE]) for row in rows}
    low, high = _decades([share for row in rows for name, share in shares[row].items() if name in subjects])
    bottom = TOP + ROW * len(rows)
    x = _logarithmic(low, high, LEFT, WIDTH - RIGHT)
    parts = [*_legend(subjects), *_grid(low, high, lambda value: _vertical(x(value), bottom, value))]
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        parts.append(_text(LEFT - 10, y + 4, row, "end"))
        parts.append(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#e8e8e8"/>')
        for subject, colour in zip(subjects, COLOURS, strict=False):
            if subject in shares[row]:
                parts.append(f'<circle cx="{x(shares[row][subject]):.1f}" cy="{y}" r="5.5" fill="{colour}"/>')
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, "multiple of nginx's", "middle"))
    return _drawing(bottom + 46, parts)


def sizes(found: Figures, subjects: Sequence[str]) -> str:
    """Time that each subject adds to a request, by the size of its body, as a multiple of what nginx adds to 4 KB."""
    base = found[SIZES[4_096]].get(BASE)
    lines = {
        subject: {size: found[row][subject] / base for size, row in SIZES.items() if subject in found[row]}
        for subject in subjects
        if base
    }
    low, high = _decades([value for line in lines.values() for value in line.values()])
    x = _logarithmic(min(SIZES), max(SIZES), 70, WIDTH - RIGHT)
    y = _logarithmic(low, high, HEIGHT - 50, TOP)
    parts = [*_legend(subjects), *_grid(low, high, lambda value: _horizontal(y(value), value))]
    for size, label in zip(SIZES, ("300 B", "4 KB", "40 KB", "400 KB", "4 MB"), strict=True):
        parts.append(_text(x(size), HEIGHT - 30, label, "middle"))
    for subject, colour in zip(subjects, COLOURS, strict=False):
        places = [(x(size), y(value)) for size, value in lines.get(subject, {}).items()]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += (f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{colour}"/>' for left, top in places)
    parts.append(
        _text(WIDTH / 2, HEIGHT - 8, "added p50 by size of the body, as a multiple of nginx's at 4 KB", "middle")
    )
    return _drawing(HEIGHT, parts)


def _relative(values: Mapping[str, float], base: float) -> dict[str, float]:
    return {name: value / base for name, value in values.items()}


def _decades(values: Sequence[float]) -> tuple[float, float]:
    """The powers of ten around them."""
    logs = [log10(value) for value in values] or [0.0]
    return 10.0 ** floor(min(logs)), 10.0 ** max(ceil(max(logs)), floor(min(logs)) + 1)


def _logarithmic(low: float, high: float, first: float, last: float) -> Scale:
    span = log10(high) - log10(low)
    return lambda value: first + (log10(value) - log10(low)) / span * (last - first)


def _grid(low: float, high: float, line: Callable[[float], str]) -> list[str]:
    return [line(10.0**power) for power in range(round(log10(low)), round(log10(high)) + 1)]


def _vertical(x: float, bottom: float, value: float) -> str:
    line = f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_shade(value)}"/>'
    return line + _text(x, bottom + 16, _label(value), "middle")


def _horizontal(y: float, value: float) -> str:
    line = f'<line x1="70" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{_shade(value)}"/>'
    return line + _text(60, y + 4, _label(value), "end")


def _shade(value: float) -> str:
    return "#999" if value == 1 else "#ddd"


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"1/{1 / value:,.0f}"


def _legend(subjects: Sequence[str]) -> list[str]:
    parts, x = [], 20.0
    for subject, colour in zip(subjects, COLOURS, strict=False):
        title = TITLES.get(subject, subject)
        parts.append(f'<circle cx="{x}" cy="24" r="5.5" fill="{colour}"/>' + _text(x + 10, 28, title, "start"))
        x += 34 + 7.2 * len(title)
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif"'
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
    return "\n".join((f'{head} font-size="13">', ground, *parts, "</svg>\n"))
