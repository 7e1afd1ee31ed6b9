"""Standing rules beside a summary's text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.tokens.estimate import Count


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
