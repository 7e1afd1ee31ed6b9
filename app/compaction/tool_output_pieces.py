"""Pieces: lines of a text with their ranks, of which the best are taken until the room is full."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import log, sqrt
from typing import NamedTuple

MOST_HEAD = 150_000
MOST_TAIL = 50_000
"""Characters at a text's beginning and end that are read; what is between is left unread."""
MOST_LINES = 8_000
LONGEST_LINE = 400
"""Characters of a line that are read."""
LONGEST_PIECE = 120
"""Characters of a line that are shown."""
LONGEST_WORD = 40
"""Characters of a word that count."""
LEAST_ROOM = 4

KEY, GOOD, FAIR, FILL = range(4)
"""Ranks: what makes the shape, what says most beside it, what else is telling, and all the rest."""

CLOSING = re.compile(r"\s*|</\w+>\s*")
"""Line that only ends what a tool put around its output."""
_WORD = re.compile(r"\w[\w./@+-]*+")
_PLAIN = re.compile(r"[A-Za-z]?[a-z]*\.?|\d")


class Piece(NamedTuple):
    rank: float
    text: str


class Found(NamedTuple):
    """Shape of a text."""

    size: str
    """Number of what it has, such as "12 paths"."""
    fitting: Callable[[int], str]
    """Function that returns what is left of it in so many characters."""


def found(size: str, pieces: Sequence[Piece]) -> Found:
    return Found(size, partial(filled, pieces))


def lines_of(text: str) -> list[str]:
    """Lines of a text, as far as it is read."""
    if len(text) > MOST_HEAD + MOST_TAIL:
        text = f"{text[:MOST_HEAD]}\n{text[-MOST_TAIL:]}"
    lines = [line[:LONGEST_LINE] for line in text.split("\n")]
    return lines if len(lines) <= MOST_LINES else [*lines[: MOST_LINES // 2], *lines[-MOST_LINES // 2 :]]


def identifiers(text: str) -> list[str]:
    """Words that are more than a plain word: paths, symbols, ids, numbers."""
    return [word for word in _WORD.findall(text) if not _PLAIN.fullmatch(word)]


def filled(pieces: Sequence[Piece], room: int) -> str:
    """The best pieces for which there is room, in their order, a line each; equal ones once.

    Those that only fill the room are taken by the identifiers that they add for their length: names that a text has
    often count more.
    """
    lines = [clipped(piece.text) for piece in pieces]
    ranks = _ranks(pieces, lines)
    taken: dict[str, int] = {}
    for place in sorted(range(len(pieces)), key=ranks.__getitem__):
        text = lines[place]
        if text and text not in taken and len(text) + bool(taken) <= room:
            room -= len(text) + bool(taken)
            taken[text] = place
        if room < LEAST_ROOM:
            break
    return "\n".join(sorted(taken, key=taken.__getitem__))


def _ranks(pieces: Sequence[Piece], lines: Sequence[str]) -> list[float]:
    names = list(map(identifiers, lines))
    often = Counter(name for found in names for name in found)
    seen = {name for piece, found in zip(pieces, names, strict=True) if piece.rank < FILL for name in found}
    ranks = []
    for piece, line, found in zip(pieces, lines, names, strict=True):
        rank = piece.rank
        if rank >= FILL:
            new = set(found) - seen
            seen |= new
            weight = sum(sqrt(min(len(name), LONGEST_WORD)) * (1 + log(often[name])) for name in sorted(new))
            rank += 1 - weight / (weight + len(line) + 1)
        ranks.append(rank)
    return ranks


def clipped(line: str) -> str:
    """A line without the blanks around it, of bounded length."""
    line = line.strip()
    return line if len(line) <= LONGEST_PIECE else f"{line[: LONGEST_PIECE - 1]}…"
