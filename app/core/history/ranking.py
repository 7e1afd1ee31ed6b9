"""Ranking: which parts of records come first, where there is not room for all.

A part is worth what it adds behind those before it, for the room that it takes: the worth of values that are not told
yet, and a share of that for saying for the first time what something belongs to. The first part of a thing takes the
room of its name, too, and the first one with a label that of the label.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from msgspec import Struct

from app.core.history.records import Record, parts_of

MOST_RANKED = 256
SIZE_POWER = 0.8
TOLD_SHARE = 0.03
"""Share of its worth that a value has where it is told a second time."""
OWNED_SHARE = 0.3
"""Share of its worth that it has where it is told for the first time to what it belongs, or what belongs to it."""
DESCRIBED = 0.02
"""Worth of a part without a value, such as a state."""
NEGLIGIBLE = 1e-9

_PIECE = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|[^\w\s]|_")


def ranked(things: Iterable[Record], worth: Mapping[str, float]) -> list[Record]:
    """Parts of these things, at most `MOST_RANKED`. `worth` is that of each value."""
    ranking = _Ranking(things, worth)
    return ranking.ranked()


def words_of(text: str) -> list[str]:
    """Pieces of a record's text of which a value may be one."""
    return [text, *(word for piece in text.split(" ") if (word := piece.strip("(),;")))]


def _size(text: str) -> int:
    """About how many tokens it is."""
    return len(_PIECE.findall(text))


class _Part(Struct, eq=False):
    record: Record
    label: str
    values: frozenset[str]
    """Values of its fields that are worth something."""
    named: frozenset[str]
    """Values of its name."""
    is_owner: bool
    """Whether its thing may belong to its value, as there is one only."""
    is_done: bool = False


class _Ranking:
    def __init__(self, things: Iterable[Record], worth: Mapping[str, float]) -> None:
        self._worth = worth
        self._told: set[str] = set()
        self._owned: set[str] = set()
        self._begun: set[tuple[str, str]] = set()
        self._of: dict[str, list[_Part]] = {}
        for thing in things:
            labels = [field.label for field in thing.fields]
            named = self._valued(thing.name)
            for part in parts_of(thing):
                field = part.fields[0] if part.fields else None
                values = self._valued(f"{field.value} {field.note}", field.value) if field else frozenset[str]()
                label = field.label if field else ""
                alone = labels.count(label) == 1
                self._of.setdefault(part.key, []).append(_Part(part, label, values, named, alone))

    def _valued(self, *texts: str) -> frozenset[str]:
        return frozenset(word for text in texts for word in words_of(text) if word in self._worth)

    def ranked(self) -> list[Record]:
        parts = [part for parts in self._of.values() for part in parts]
        waiting = [(-self._gain(part), place, part) for place, part in enumerate(parts)]
        heapify(waiting)
        chosen, number = list[Record](), len(waiting)
        while waiting and len(chosen) < MOST_RANKED:
            promised, place, part = heappop(waiting)
            if part.is_done:
                continue
            if (now := -self._gain(part)) > promised + NEGLIGIBLE:
                heappush(waiting, (now, place, part))
                continue
            part.is_done = True
            chosen.append(part.record)
            self._told |= part.values | part.named
            if part.named:
                self._owned |= part.values | (part.named if part.is_owner else frozenset())
            if (begun := (part.record.key, part.label)) not in self._begun:
                self._begun |= {begun, (part.record.key, "")}
                for other in self._of[part.record.key]:  # They have the name, or the label, for nothing now.
                    if not other.is_done:
                        number += 1
                        heappush(waiting, (-self._gain(other), number, other))
        return chosen

    def _gain(self, part: _Part) -> float:
        key = part.record.key
        is_named = (key, "") in self._begun
        values = part.values if is_named else part.values | part.named
        adds = sum(self._worth[value] * (TOLD_SHARE if value in self._told else 1.0) for value in sorted(values))
        if part.named and part.values:
            owned = part.values | (part.named if part.is_owner else frozenset())
            adds += OWNED_SHARE * sum(self._worth[value] for value in sorted(owned - self._owned))
        fields = part.record.fields
        size = sum(_size(field.value) + _size(field.note) + 1 for field in fields)
        size += 0 if (key, part.label) in self._begun else _size(part.label) + 1
        size += 0 if is_named else _size(part.record.name) + 1
        return float((adds + DESCRIBED) / max(1, size) ** SIZE_POWER)
