"""Records and standing rules beside a summary's text, which no model writes and no fold forgets for want of care.

A fold knows only the lists of its chunks, so a list is in order of worth: records by use, rules by age.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.core.history.exact_values import exact_values
from app.core.history.records import Record, brought_together, parts_of, put_together
from app.tokens.estimate import Count


def merged_records(lists: Sequence[Sequence[Record]]) -> list[Record]:
    """One list of several, each by worth, the lists from the oldest to the newest: a record has one field, and each
    thing its latest values.

    By reciprocal rank: a field is worth the sum of 1 / (1 + place) over the lists it stands in, so that the first of
    each come first, and what several hold before what one holds. The newer list wins where two are worth the same.
    """
    things = brought_together(record for records in lists for record in put_together(records).values())
    worth: dict[tuple[str, str], float] = {}
    for records in reversed(lists):
        for place, record in enumerate(records):
            for part in parts_of(record):
                worth[_address(part)] = worth.get(_address(part), 0.0) + 1 / (1 + place)
    parts = {_address(part): part for record in things.values() for part in parts_of(record)}
    return [parts[address] for address in sorted(worth, key=lambda address: -worth[address]) if address in parts]


def _address(part: Record) -> tuple[str, str]:
    return part.key, part.fields[0].value if part.fields else ""


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


def kept_share(lines: Sequence[str], text: str) -> float | None:
    """The share of the exact values in these lines that a text holds letter by letter; None without any."""
    values = dict.fromkeys(value for line in lines for value in exact_values(line))
    if not values:
        return None
    return sum(value in text for value in values) / len(values)
