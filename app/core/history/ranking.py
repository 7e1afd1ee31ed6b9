"""Ranking: which parts of records come first, where there is not room for all.

A part is worth what it adds behind those before it: the worth of its values, and a share of that of the thing that it
belongs to. A value that is told already adds little in another record. The sum is divided by a power of the room that
the part takes, and the first part of a thing takes that of its name, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.records import Record, merged, parts_of

MOST_RANKED = 256
SIZE_POWER = 0.7
TOLD_SHARE = 0.03
"""Share of its worth that a value has where it is told a second time."""
THING_SHARE = 0.1
"""Share of the worth of its thing that each part adds which has something new."""
DESCRIBED = 0.02
"""Worth of a part without a value, such as a state."""
NEGLIGIBLE = 1e-9


def ranked(things: Mapping[str, Record], worth: Mapping[str, float], known: Mapping[str, Record]) -> list[Record]:
    """Parts of these things, at most `MOST_RANKED`.

    `known`: records that are told elsewhere, by their keys. Where there is news of one, the first part has all that is
    told of it, and takes the place of that.
    """
    ranking = _Ranking(worth, known.values())
    for key, record in things.items():
        if key not in known:
            ranking.add(key, parts_of(record))
        elif news := _news(known[key], record):
            ranking.add(key, news[:1], news[1:])
    return ranking.ranked()


def _news(known: Record, record: Record) -> list[Record]:
    """The known record brought up to date, with the first field that is new to it, and then the other new ones."""
    whole = merged(known, record)
    labels = {field.label for field in known.fields}
    more = [field for field in whole.fields if field not in known.fields and field.label not in labels]
    told = tuple(field for field in whole.fields if field not in more[1:])
    is_news = any(field not in known.fields for field in told)
    return [replace(whole, fields=told), *(replace(whole, fields=(field,)) for field in more[1:])] if is_news else []


class _Part(Struct):
    key: str
    record: Record
    values: frozenset[str]
    """Words of its fields that are worth something."""
    size: int
    """Characters of its fields."""
    is_done: bool = False


class _Ranking:
    def __init__(self, worth: Mapping[str, float], known: Iterable[Record]) -> None:
        self._worth = worth
        self._told = {value for record in known for value in (record.key, *record.line.replace(",", "").split())}
        self._begun: set[str] = set()
        self._waiting: list[tuple[float, int, _Part]] = []
        self._of: dict[str, list[_Part]] = {}

    def add(self, key: str, first: Sequence[Record], then: Sequence[Record] = ()) -> None:
        """Parts of a thing: those that it may begin with, and those that only follow."""
        begins = [self._part(key, record) for record in first]
        self._waiting += [(-self._gain(part), len(self._waiting) + place, part) for place, part in enumerate(begins)]
        self._of[key] = [*begins, *(self._part(key, record) for record in then)]

    def ranked(self) -> list[Record]:
        waiting, chosen, number = self._waiting, list[Record](), len(self._waiting)
        heapify(waiting)
        while waiting and len(chosen) < MOST_RANKED:
            promised, place, part = heappop(waiting)
            if part.is_done:
                continue
            if (now := -self._gain(part)) > promised + NEGLIGIBLE:
                heappush(waiting, (now, place, part))
                continue
            part.is_done = True
            chosen.append(part.record)
            self._told.update((part.key, *part.values))
            if part.key not in self._begun:
                self._begun.add(part.key)  # The others have the name for nothing now.
                for other in self._of[part.key]:
                    if not other.is_done:
                        number += 1
                        heappush(waiting, (-self._gain(other), number, other))
        return chosen

    def _part(self, key: str, record: Record) -> _Part:
        words = (word for field in record.fields for word in (field.value, *field.value.split(" ")))
        values = frozenset(word for word in words if word in self._worth)
        return _Part(key, record, values, sum(len(field.text) + 2 for field in record.fields))

    def _gain(self, part: _Part) -> float:
        name = (part.key,) if part.key not in self._begun else ()
        adds = sum(
            self._worth.get(value, 0.0) * (TOLD_SHARE if value in self._told else 1.0)
            for value in sorted(part.values.union(name))
        )
        if not part.values <= self._told:
            adds += THING_SHARE * self._worth.get(part.key, 0.0)
        size = part.size + (len(part.record.name) + 2 if name else 0)
        return float((adds + DESCRIBED) / size**SIZE_POWER)
