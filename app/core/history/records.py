"""Records: what is known of a thing by its identifiers, on one line that makes sense by itself.

    reservation VA5SGQ: user raj_brown_5782; flights HAT035, HAT102 (2024-05-17); status paid (was open)

A record is kept as such a line, and read back from it where several are to become one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

WAS = "was "
"""Beginning of a note on what a value took the place of."""
MOST_GONE = 2
"""Values that a note names as gone."""

_ITEM = re.compile(r"(.+?)(?: \(([^()]*)\))?(?:, |$)")
_KNOWN_BY = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\S{3,}|\S*[^\W\d_]\S*[/@]\S+|[/~.]\S+|[A-Z]{5,}|\d{6,}")


class Field(Struct, frozen=True):
    """Property of a thing."""

    label: str
    """One word."""
    value: str
    note: str = ""
    """Text that belongs to the value, such as its date, and what it replaced; empty for nothing."""

    @property
    def gone(self) -> Sequence[str]:
        """Values that this one took the place of."""
        _, was, gone = self.note.rpartition(WAS)
        return gone.split(", ") if was else ()

    def instead_of(self, values: Sequence[str]) -> Field:
        note = self.note if not self.gone else self.note.rpartition(WAS)[0].rstrip(", ")
        said = f"{WAS}{', '.join(values[:MOST_GONE])}" if values else ""
        return replace(self, note=", ".join(filter(None, (note, said))))


class Record(Struct, frozen=True):
    """One thing, or a part of what is known of it. Those of one `key` are about one thing."""

    name: str
    """Kind and identifier, as the history has them: `reservation VA5SGQ`."""
    fields: tuple[Field, ...] = ()

    @property
    def key(self) -> str:
        """Identifier, whatever kind it is said to be; the whole name where it has none, such as a call's."""
        last = self.name.rpartition(" ")[2]
        return last if _KNOWN_BY.fullmatch(last) and not last.endswith(")") else self.name

    @property
    def line(self) -> str:
        """The record as it stands in a payload. A label is said once for all that it has, and so is a note."""
        groups: dict[str, list[Field]] = {}
        for field in self.fields:
            groups.setdefault(field.label, []).append(field)
        told = "; ".join(f"{label} {_listed(fields)}" for label, fields in groups.items())
        return f"{self.name}: {told}" if told else self.name

    def with_fields(self, fields: Iterable[Field]) -> Record:
        return replace(self, fields=(*self.fields, *fields))

    def brought_up_to_date(self, newer: Record, *, lists: bool = False) -> Record:
        """The record with what a newer one says of the same thing.

        A value that stands alone under its label takes the place of the one that stood alone there. Of several with
        one label nothing goes, but what the newer one says is gone; with `lists` all go that are not there any more.
        """
        record = replace(self, name=newer.name) if newer.name.endswith(f" {self.name}") else self
        for label, group in groupby(sorted(newer.fields, key=lambda field: field.label), lambda field: field.label):
            now = [*group]
            then = [field for field in record.fields if field.label == label]
            values = {field.value for field in now}
            gone = {value for field in now for value in field.gone}
            if lists or len(now) == len(then) == 1:
                gone |= {field.value for field in then}
            gone -= values
            left = [field for field in then if field.value not in gone | values]
            kept = {field.value: field for field in then if field.value in values}
            told = [_newer_of(kept.get(field.value), field) for field in now]
            if replaced := [field.value for field in then if field.value in gone]:
                told[-1] = told[-1].instead_of(replaced)
            others = [field for field in record.fields if field.label != label]
            place = next((at for at, field in enumerate(record.fields) if field.label == label), len(others))
            record = replace(record, fields=(*others[:place], *left, *told, *others[place:]))
        return record


def _newer_of(then: Field | None, now: Field) -> Field:
    return now if now.note or then is None else then


def _listed(fields: Sequence[Field]) -> str:
    """Values of one label: those with a note first, so that each stands for those before it that have none."""
    by_note: dict[str, list[str]] = {}
    for field in sorted(fields, key=lambda field: not field.note):
        by_note.setdefault(field.note, []).append(field.value)
    return ", ".join(", ".join(values) + (f" ({note})" if note else "") for note, values in by_note.items())


def record_of(line: str) -> Record:
    """The record that a line was written from; of any other line one without fields."""
    name, _, told = line.partition(": ")
    fields: list[Field] = []
    for group in told.split("; ") if told else ():
        label, _, items = group.partition(" ")
        waiting: list[str] = []
        for value, note in _ITEM.findall(items):
            waiting.append(value)
            if note:
                fields += (Field(label, each, note) for each in waiting)
                waiting = []
        fields += (Field(label, each) for each in waiting)
    record = Record(name, tuple(fields))
    return record if record.line == line else Record(line)


def brought_together(records: Iterable[Record]) -> dict[str, Record]:
    """Each thing once, by its key. The records come in order of time."""
    things: dict[str, Record] = {}
    for record in records:
        held = things.get(record.key)
        things[record.key] = record if held is None else held.brought_up_to_date(record)
    return things


def put_together(parts: Iterable[Record]) -> dict[str, Record]:
    """Records by their keys, of parts that hold at one time."""
    things: dict[str, Record] = {}
    for part in parts:
        held = things.get(part.key)
        things[part.key] = part if held is None else held.with_fields(part.fields)
    return things


def parts_of(record: Record) -> list[Record]:
    """The record, a field each."""
    return [replace(record, fields=(field,)) for field in record.fields] or [record]


def fitting_records(parts: Iterable[Record], room: int, count: Callable[[str], int]) -> tuple[str, ...]:
    """Lines of records that take at most `room` tokens together, with a line end each: as many of the parts as fit."""
    kept: dict[str, tuple[Record, int]] = {}
    for part in parts:
        held, size = kept.get(part.key, (None, 0))
        record = part if held is None else held.with_fields(part.fields)
        takes = count(record.line) + 1
        if takes - size <= room:
            room -= takes - size
            kept[part.key] = record, takes
    return tuple(record.line for record, _ in kept.values())
