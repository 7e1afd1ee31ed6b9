"""Exact values and standing rules beside a summary's text, which no model writes and no fold forgets for want of care.

A fold knows only the lists of its chunks, so a list is in order of worth: values by use, rules by age.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from app.core.tokens.estimate import Count

_CALL = re.compile(r"[^\s()]+\((.*)\)")
_ARGUMENT = re.compile(r"(?:^|, )[^=]*=([^,]*)")


def merged_values(lists: Sequence[Sequence[str]]) -> list[str]:
    """One list of several, each by worth, the lists from the oldest to the newest.

    By reciprocal rank: a value is worth the sum of 1 / (1 + place) over the lists it stands in, so that the first of
    each come first, and what several hold before what one holds. The newer list wins where two are worth the same.
    """
    worth: dict[str, float] = {}
    for values in reversed(lists):
        for place, value in enumerate(values):
            worth[value] = worth.get(value, 0.0) + 1 / (1 + place)
    return sorted(worth, key=lambda value: -worth[value])


def merged_rules(lists: Iterable[Sequence[str]]) -> list[str]:
    """One list of several, each newest first, the lists from the oldest to the newest. A rule that is set again is as
    new as its last time."""
    newest_first = (rule for rules in reversed([*lists]) for rule in rules)
    return [*dict.fromkeys(newest_first)]


def fitting(lines: Iterable[str], room: int, count: Count) -> tuple[str, ...]:
    """Lines that take at most `room` tokens together with a line end each, the first ones first.

    One that does not fit is left out, and smaller ones after it may.
    """
    kept = []
    for line in lines:
        if room <= 1:
            break
        size = count(line) + 1
        if size <= room:
            kept.append(line)
            room -= size
    return tuple(kept)


def fitting_values(values: Iterable[str], room: int, count: Count) -> tuple[str, ...]:
    """Values that take at most `room` tokens, likewise; what is a part of another one does not stand alone."""
    kept: dict[str, int] = {}
    for value in values:
        if any(_holds(longer, value) for longer in kept):
            continue
        size = count(value) + 1
        parts = [each for each in kept if _holds(value, each)]
        if size > room + sum(kept[each] for each in parts):
            continue
        for each in parts:
            room += kept.pop(each)
        kept[value] = size
        room -= size
    return tuple(kept)


def _holds(longer: str, value: str) -> bool:
    """Whether a value stands in another one as a word."""
    at = longer.find(value)
    return at >= 0 and not (longer[at - 1 : at].isalnum() or longer[at + len(value) :][:1].isalnum())


def kept_share(values: Sequence[str], text: str) -> float | None:
    """The share of the values that a text holds letter by letter, of a call what identifies it; None without any."""
    if not values:
        return None
    return sum(all(part in text for part in _parts(value)) for value in values) / len(values)


def _parts(value: str) -> Sequence[str]:
    call = _CALL.fullmatch(value)
    return _ARGUMENT.findall(call[1]) if call else (value,)
