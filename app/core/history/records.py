"""Records: what is known of a thing by its identifiers, on one line that makes sense by itself.

    reservation VA5SGQ: user raj_brown_5782, flights HAT035 2024-05-17, HAT102 2024-05-19, status paid (was open)

A record is written as such a line wherever it is kept, and read back from it where several are to become one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest

from msgspec import Struct
from msgspec.structs import replace

_WAS = re.compile(r"(.*) \(was (.*)\)")
_TELLING = re.compile(r"[^\d]*\d|[A-Z]{2}|.+[/@]")
"""How a word begins that is a value rather than what it is called."""
_NUMBERS = re.compile(r"[\W\d]+")
_LEAST_NUMBER = 5


class Field(Struct, frozen=True):
    """What a thing has: a value, what it is called, and what it was before."""

    label: str
    """A few words, none of which looks like a value; empty where nothing says what it is."""
    value: str
    """A value, or a few with their labels, such as `HAT035 price 523`: what belongs together."""
    before: str = ""
    """Value that this one replaced; empty for none."""

    @property
    def text(self) -> str:
        return f"{self.label} {self.value}".strip()


class Record(Struct, frozen=True):
    """One thing. Of several with one `key` each holds a part: see `merged`.

    Names, labels and values have no line breaks, and neither `: ` nor `, `.
    """

    name: str
    """Kind and identifier, as the history has them: `reservation VA5SGQ`; a whole fact where it is about nothing that
    has an identifier."""
    fields: tuple[Field, ...] = ()
    """Those with one label stand together."""

    @property
    def key(self) -> str:
        """What it is known by, whatever kind it is said to be: `VA5SGQ`."""
        last = self.name.rpartition(" ")[2]
        if not _TELLING.match(last):
            return self.name
        # A small number counts things of one kind, and a date alone is none.
        is_name = not _NUMBERS.fullmatch(last) or (self.fields and len(last) >= _LEAST_NUMBER)
        return last if is_name else self.name

    @property
    def line(self) -> str:
        """The record as it stands in a payload. A label is said once for all that it has."""
        written, label = list[str](), ""
        for field, then in zip_longest(self.fields, self.fields[1:]):
            value = field.value
            first, _, rest = value.partition(" ")
            if rest and then is not None and then.label == field.label and then.value.endswith(f" {rest}"):
                value = first  # What several have in common stands behind the last of them.
            text = value if label and field.label == label else f"{field.label} {value}".strip()
            written.append(f"{text} (was {field.before})" if field.before else text)
            label = field.label
        return f"{self.name}: {', '.join(written)}" if written else self.name

    def joined(self, fields: Iterable[Field]) -> Record:
        """The record with these fields, too, each behind the last that is called alike."""
        own = list(self.fields)
        for field in fields:
            alike = [place for place, each in enumerate(own, 1) if each.label == field.label]
            rest = field.value.partition(" ")[2]
            alike = [place for place in alike if rest and own[place - 1].value.endswith(f" {rest}")] or alike
            own.insert(alike[-1] if alike else len(own) if field.label else 0, field)
        return replace(self, fields=tuple(own))


def record_of(line: str) -> Record:
    """The record that a line was written from; of any other line one without fields."""
    name, _, rest = line.partition(": ")
    fields, label = list[Field](), ""
    for text in rest.split(", ") if rest else ():
        now, before = found.groups() if (found := _WAS.fullmatch(text)) else (text, "")
        words = now.split(" ")
        at = next((place for place, word in enumerate(words) if _TELLING.match(word)), min(1, len(words) - 1))
        label = " ".join(words[:at]) or label
        fields.append(Field(label, " ".join(words[at:]), before))
    return Record(name, tuple(fields))


def merged(older: Record, newer: Record) -> Record:
    """One record of two of the same thing: of what has one label the newer values hold, and tell what they replaced.

    What the newer one has of a label may be a part of what the older one has: then it is no news.
    """
    record = older if " " in older.name else replace(older, name=newer.name)  # One word alone says no kind.
    for label in dict.fromkeys(field.label for field in newer.fields):
        now = [field for field in newer.fields if field.label == label]
        then = {field.value: field for field in record.fields if field.label == label}
        values = [field.value for field in now]
        if then.keys() >= set(values):
            continue
        said = {word for value in values for word in value.split(" ")}
        # A value that is a part of a new one was not replaced by it.
        gone = iter([value for value in then if label and not said.issuperset(value.split(" "))])
        if label:
            kept = tuple(field for field in record.fields if field.label != label)
            record = replace(record, fields=kept)
        for field in now:
            if field.value not in then:
                record = record.joined((replace(field, before=field.before or next(gone, "")),))
            elif label:
                record = record.joined((then[field.value],))
    return record


def brought_together(records: Iterable[Record]) -> dict[str, Record]:
    """Records by their keys, each thing once and brought up to date: they come in order of time."""
    things: dict[str, Record] = {}
    for record in records:
        held = things.get(record.key)
        things[record.key] = record if held is None else merged(held, record)
    return things


def put_together(parts: Iterable[Record]) -> dict[str, Record]:
    """Records by their keys, of parts that hold at one time."""
    things: dict[str, Record] = {}
    for part in parts:
        held = things.get(part.key)
        things[part.key] = part if held is None else held.joined(part.fields)
    return things


def parts_of(record: Record) -> list[Record]:
    """The record, a field each."""
    return [replace(record, fields=(field,)) for field in record.fields] or [record]


def said_once(lists: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Lists of lines, the oldest first, without what a newer one says of the same things."""
    kept: list[tuple[str, ...]] = []
    newer: dict[str, str] = {}
    for lines in reversed(lists):
        keys = {line: record_of(line).key for line in lines}
        kept.insert(0, tuple(line for line in lines if not _covers(newer.get(keys[line]), line)))
        newer = {keys[line]: line for line in lines} | newer
    return kept


def _covers(newer: str | None, line: str) -> bool:
    """Whether a line of the same thing has all that this one has, or what replaced it."""
    if newer is None:
        return False
    now = record_of(newer)
    labels, values = {field.label for field in now.fields if field.label}, set(newer.replace(",", "").split())
    return all(field.label in labels or values.issuperset(field.value.split()) for field in record_of(line).fields)


def fitting_records(
    parts: Iterable[Record], room: int, count: Callable[[str], int], freed: Mapping[str, Record] | None = None
) -> tuple[str, ...]:
    """Lines of records that take at most `room` tokens together, with a line end each: as many of the parts as fit.

    `freed`: records, by their keys, whose lines give way to these and leave their room to them.
    """
    freed = freed or {}
    kept: dict[str, tuple[Record, int]] = {}
    for part in parts:
        if part.key in kept:
            held, size = kept[part.key]
            record = held.joined(part.fields)
        else:
            record, size = part, count(freed[part.key].line) + 1 if part.key in freed else 0
        takes = count(record.line) + 1
        if takes - size <= room:
            room -= takes - size
            kept[part.key] = record, takes
    return tuple(record.line for record, _ in kept.values())
