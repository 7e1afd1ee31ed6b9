"""Records: what is known of each thing, one line a thing.

    reservation VA5SGQ: user raj_brown_5782; flights HAT035, HAT102 (2024-05-17); status paid (before turn 41: open)
    budget: $500 (before turn 41: $800)

Chunks store these lines. They are read back where records of several chunks are merged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.exact_values import exact_values

MOST_REPLACED = 2
"""Replaced values that a field names."""

_ITEM = re.compile(r"(.+?)(?: \(([^()]*)\))?(?:, |$)")
_NOTE = re.compile(r"(?:(.*), )?before(?: turn (\d+))?: (.*)")
_STATEMENT = re.compile(r"([^\W\d]\w*): (.+?)(?: \(([^()]*)\))?")
_IDENTIFIER = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\S{3,}|\S*[^\W\d_]\S*[/@]\S+|[/~.]\S+|[A-Z]{5,}|\d{6,}")


class Field(Struct, frozen=True):
    label: str
    """One word; empty where the record's name is the label."""
    value: str
    note: str = ""
    """Text that belongs to the value, such as its date."""
    replaced: tuple[str, ...] = ()
    """Values that this one replaced."""
    turn: int = 0
    """Turn in which the value was said; 0 if unknown."""

    @property
    def remark(self) -> str:
        """Text in parentheses behind the value."""
        before = f"before turn {self.turn}" if self.turn else "before"
        replaced = f"{before}: {', '.join(self.replaced)}" if self.replaced else ""
        return ", ".join(filter(None, (self.note, replaced)))


class Record(Struct, frozen=True):
    """One thing, or a part of what is known of it. Records with the same `key` are about the same thing."""

    name: str
    """Kind and identifier: `reservation VA5SGQ`."""
    fields: tuple[Field, ...] = ()

    @property
    def key(self) -> str:
        """Identifier without its kind; the name of a thing without identifier."""
        last = self.name.rpartition(" ")[2]
        return last if _IDENTIFIER.fullmatch(last) and not last.endswith(")") else self.name

    @property
    def parts(self) -> list[Record]:
        return [replace(self, fields=(field,)) for field in self.fields] or [self]

    @property
    def line(self) -> str:
        groups = "; ".join(f"{label} {_written(fields)}".lstrip() for label, fields in _by_label(self.fields).items())
        return f"{self.name}: {groups}" if groups else self.name

    def joined(self, part: Record) -> Record:
        return replace(self, fields=self.fields + part.fields)

    def updated(self, newer: Record, *, lists: bool = False) -> Record:
        """The record with the newer one's values.

        A single value of a label replaces the single one there. Of several only those go that the newer record names as
        replaced; with `lists` all that it does not hold.
        """
        labels = _by_label(self.fields)
        for label, said in sorted(_by_label(newer.fields).items()):
            then = labels.get(label, [])
            before, values = {field.value: field for field in then}, {field.value for field in said}
            gone = {value for field in said for value in field.replaced}
            if lists or len(said) == len(then) == 1:
                gone |= before.keys()
            gone -= values
            now = [before[field.value] if field.value in before and not field.remark else field for field in said]
            replaced = tuple(field.value for field in then if field.value in gone)[:MOST_REPLACED]
            if replaced and not any(field.replaced for field in now):
                now[-1] = replace(now[-1], replaced=replaced, turn=said[-1].turn)
            labels[label] = [*(field for field in then if field.value not in gone | values), *now]
        name = newer.name if newer.name.endswith(f" {self.name}") else self.name
        return Record(name, tuple(field for fields in labels.values() for field in fields))


def _by_label(fields: Iterable[Field]) -> dict[str, list[Field]]:
    labels: dict[str, list[Field]] = {}
    for field in fields:
        labels.setdefault(field.label, []).append(field)
    return labels


def _written(fields: Sequence[Field]) -> str:
    """Values of one label. Those with a remark come first, as a remark counts for all values since the last one."""
    values: dict[str, list[str]] = {}
    for field in sorted(fields, key=lambda field: not field.remark):
        values.setdefault(field.remark, []).append(field.value)
    return ", ".join(", ".join(each) + (f" ({remark})" if remark else "") for remark, each in values.items())


def parse_record(line: str) -> Record:
    """Inverse of `Record.line`; a record without fields for any other line."""
    if (found := _STATEMENT.fullmatch(line)) and exact_values(found[2]) == [found[2]]:
        return Record(found[1], (_field("", found[2], found[3] or ""),))
    name, _, rest = line.partition(": ")
    fields: list[Field] = []
    for group in filter(None, rest.split("; ")):
        label, _, items = group.partition(" ")
        place, remark = len(fields), ""
        for value, own_remark in reversed(_ITEM.findall(items)):
            remark = own_remark or remark
            fields.insert(place, _field(label, value, remark))
    record = Record(name, tuple(fields))
    return record if record.line == line else Record(line)


def _field(label: str, value: str, remark: str) -> Field:
    if found := _NOTE.fullmatch(remark):
        return Field(label, value, found[1] or "", tuple(found[3].split(", ")), int(found[2] or 0))
    return Field(label, value, remark)


def merge_records(
    records: Iterable[Record], merge: Callable[[Record, Record], Record] = Record.updated
) -> dict[str, Record]:
    """Things by their keys, of records in order of time; with `Record.joined` of parts that hold at the same time."""
    things: dict[str, Record] = {}
    for record in records:
        things[record.key] = merge(things[record.key], record) if record.key in things else record
    return things


def merge_ranked(lists: Sequence[Sequence[Record]]) -> list[Record]:
    """One ranked list of parts, of several, the oldest list first.

    By reciprocal rank: a part is worth the sum of 1 / (1 + place) over the lists that hold it. Of equal ones that of
    the newest list comes first.
    """
    things = merge_records(record for records in lists for record in merge_records(records, Record.joined).values())
    worth: dict[tuple[str, str], float] = {}
    for records in reversed(lists):
        for place, record in enumerate(records):
            for part in record.parts:
                worth[_address(part)] = worth.get(_address(part), 0.0) + 1 / (1 + place)
    parts = {_address(part): part for record in things.values() for part in record.parts}
    return [parts[address] for address in sorted(worth, key=lambda address: -worth[address]) if address in parts]


def _address(part: Record) -> tuple[str, str]:
    return part.key, part.fields[0].value if part.fields else ""


def fit_records(parts: Iterable[Record], room: int, count: Callable[[str], int]) -> tuple[str, ...]:
    """Lines of as many of these parts as fit into `room` tokens, with a line end each."""
    kept: dict[str, tuple[Record, int]] = {}
    for part in parts:
        before, size = kept.get(part.key, (None, 0))
        record = before.joined(part) if before else part
        tokens = count(record.line) + 1
        if tokens - size <= room:
            room -= tokens - size
            kept[part.key] = record, tokens
    return tuple(record.line for record, _ in kept.values())
