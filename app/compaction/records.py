"""Records: lines with the known values of a thing, such as a reservation or a budget.

    reservation VA5SGQ: user raj_brown_5782; flights HAT035, HAT102 (2024-05-17); status paid (before turn 41: open)
    budget: $500 (before turn 41: $800)

Chunks store these lines. To merge the records of several chunks, Steno parses the lines: two records of one thing
become one, with the newer values.

Steno extracts records from JSON in tool results and call arguments, and from the clauses of prose. Records with the
highest worth per token come first. The worth of a value is a sum over the messages that contain it: 4 for an argument
of a call, 3 for the user's own words, 2 for the assistant's words, otherwise 1. The first message counts half as much
as the last. The sum is multiplied by a factor for the kind of value (`_WORTH`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.agent_progress import reports_error
from app.compaction.exact_values import (
    LONGEST_TEXT,
    LONGEST_VALUE,
    NAMES_SECRET,
    ExactValue,
    classify,
    exact_values,
    find_values,
    is_card_number,
    is_secret,
    readable_part,
)
from app.compaction.result_excerpts import parsed_json
from app.conversation.authored_text import authored_text
from app.conversation.messages import Kind, Message, ToolCall, calls_of
from app.conversation.quoting import word
from app.conversation.wordings import read_wordings

MOST_REPLACED = 2
"""Maximum number of replaced values that a field lists."""

_ITEM = re.compile(r"(.+?)(?: \(([^()]*)\))?(?:, |$)")
_NOTE = re.compile(r"(?:(.*), )?before(?: turn (\d+))?: (.*)")
_STATEMENT = re.compile(r"([^\W\d]\w*): (.+?)(?: \(([^()]*)\))?")
_IDENTIFIER = re.compile(r"(?=\S*\d)(?=\S*[^\W\d_])\S{3,}|\S*[^\W\d_]\S*[/@]\S+|[/~.]\S+|[A-Z]{5,}|\d{6,}")

MOST_CHARACTERS, MOST_FIELDS = 1 << 18, 4_000
"""Maximum characters read of all messages together, newest first. Maximum number of fields, and also of values."""
MOST_PARTS = 256
"""Maximum number of extracted parts. A part is a record with at most one field."""
DEEPEST = 6
LONGEST_LABEL, LABEL_WORDS, LABEL_REACH = 40, 3, 60
"""Maximum characters and words of a label, and number of characters before a value that are searched for a label."""

_WORTH, _LEAST_WORTH = {"identifier": 1.0, "path": 1.0, "link": 1.0, "date": 0.6, "version": 0.5}, 0.05
_ARGUMENT, _USER, _ASSISTANT, _ELSEWHERE = 4.0, 3.0, 2.0, 1.0
_NAMING = frozenset({"identifier", "path", "link"})
"""Kinds of values that may identify a thing."""
_REPEATED, _DESCRIBED = 0.03, 0.02
"""`_REPEATED`: factor for a value's worth if a higher-ranked part has it. `_DESCRIBED`: added to each part's worth."""

_MEMBER_WORD = r"(?:^|_|[a-z](?=[A-Z]))"
_IDS = ("id", "_id", "uuid", "key", "sha", "hash", "number", "code")
_ID_MEMBER = re.compile(r"(?:_|[a-z](?=[A-Z]))(?:id|number|key|code|no)$", re.IGNORECASE)
_VALUE_MEMBER = re.compile(
    rf"{_MEMBER_WORD}(?:id|key|name|path|file|url|uri|email|number|code|date|query|ref)s?$", re.IGNORECASE
)
_TEXT_MEMBER = re.compile(rf"{_MEMBER_WORD}(?:name|title|status|state)$", re.IGNORECASE)
_MONEY_MEMBER = re.compile(r"price|amount|total|cost|fee|balance|refund", re.IGNORECASE)
_MEMBER_ENDING = re.compile(r"(?<=[^_])(?:_?(?:ids?|number|key|code|no)|(?<=[a-z])(?:Ids?|IDs?|Number|Key|Code))$")
_SHORT_TEXT = re.compile(rf"\w[\w .'&+/-]{{0,{LONGEST_LABEL - 1}}}")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_CLAUSE_END = re.compile(r"[\n\r;{}\u3002\uff01\uff1f\uff1b]|\\n|[.!?]\s")
_PARAGRAPH = re.compile(r"\n[ \t]*\r?\n")
_JSON = re.compile(r"\s*[\[{]")
_WORDINGS = read_wordings(__package__, "records.toml")
_FUNCTION_WORD = re.compile(_WORDINGS["function_words"], re.IGNORECASE)
_STATED = re.compile(_WORDINGS["stated"], re.IGNORECASE | re.VERBOSE)
_PIECE = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|[^\w\s]|_")
"""Piece of text of about one token."""


class Field(Struct, frozen=True):
    label: str
    value: str
    note: str = ""
    """Remark on the value, such as its date."""
    replaced: tuple[str, ...] = ()
    turn: int = 0
    """Number of the turn with the value; 0 if unknown."""

    @property
    def remark(self) -> str:
        """Return the text in parentheses after the value."""
        before = f"before turn {self.turn}" if self.turn else "before"
        replaced = f"{before}: {', '.join(self.replaced)}" if self.replaced else ""
        return ", ".join(filter(None, (self.note, replaced)))


class Record(Struct, frozen=True):
    """Some or all fields of a thing. Records with the same `key` are about the same thing."""

    name: str
    """Kind and identifier, such as `reservation VA5SGQ`."""
    fields: tuple[Field, ...] = ()

    @property
    def key(self) -> str:
        """Return the identifier without its kind; the whole name if there is no identifier."""
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
        """Return the record with the values of a newer record.

        If both records have exactly one value for a label, the newer value replaces the older. Otherwise older values
        stay, except values that the newer record lists as replaced. With `lists`, newer ones replace all older values.
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
    """Return the values of one label as text. Values without a remark come last, because in the text, a remark applies
    to all values since the previous remark."""
    values: dict[str, list[str]] = {}
    for field in sorted(fields, key=lambda field: not field.remark):
        values.setdefault(field.remark, []).append(field.value)
    return ", ".join(", ".join(each) + (f" ({remark})" if remark else "") for remark, each in values.items())


def parse_record(line: str) -> Record:
    """Parse the output of `Record.line`. Any other line becomes the name of a record without fields."""
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
    """Merge records by key, the oldest first. `Record.updated` replaces older values, `Record.joined` keeps all."""
    things: dict[str, Record] = {}
    for record in records:
        things[record.key] = merge(things[record.key], record) if record.key in things else record
    return things


def merge_ranked(lists: Sequence[Sequence[Record]]) -> list[Record]:
    """Merge ranked lists, given oldest first, by reciprocal rank fusion. The score of a part is the sum of
    1 / (1 + its rank) over all lists. For equal scores, parts of newer lists come first."""
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
    """Return the lines of the records that fit into `room` tokens. Parts that do not fit are skipped."""
    kept: dict[str, tuple[Record, int]] = {}
    for part in parts:
        before, size = kept.get(part.key, (None, 0))
        record = before.joined(part) if before else part
        tokens = count(record.line) + 1
        if tokens - size <= room:
            room -= tokens - size
            kept[part.key] = record, tokens
    return tuple(record.line for record, _ in kept.values())


class _Extracted(Struct, frozen=True):
    record: Record
    lists: bool = False
    """Whether the record has all values of each of its labels, as records from JSON have. Steno then replaces all
    earlier values of these labels."""
    is_prose: bool = False
    """Whether the record comes from prose. Such a record adds values to other records, but replaces none."""


def extract_records(
    messages: Sequence[Message], known: Mapping[str, Record] | None = None, turns: Sequence[int] = ()
) -> list[Record]:
    """Return at most `MOST_PARTS` parts of the records of these messages, the most valuable first. `known`: existing
    records by key. If a thing has an existing record, return only new values. `turns`: turn of each message."""
    extracted, worth = _read(messages, turns)
    things: dict[str, Record] = {}
    for each in sorted(extracted, key=lambda each: each.is_prose):
        record, before = each.record, things.get(each.record.key)
        if before is None:
            label, _, value = record.name.partition(" ")
            stated = things[label.lower()].fields if each.is_prose and label.lower() in things else ()
            if not any(value in (field.value, *field.replaced) for field in stated):
                things[record.key] = record
        elif each.is_prose:
            held = {word for field in before.fields for word in _words(field.value)}
            new = dict.fromkeys(field for field in record.fields if field.value not in held)
            things[record.key] = before.joined(replace(record, fields=tuple(new)))
        else:
            things[record.key] = before.updated(record, lists=each.lists)
    news: list[Record] = []
    for key, record in things.items():
        if (before := known.get(key) if known else None) is None:
            news.append(record)
            continue
        values = {field.value for field in before.fields}
        if fields := tuple(field for field in before.updated(record).fields if field.value not in values):
            news.append(replace(record, fields=fields))
    return rank(news, worth)


def _words(text: str) -> list[str]:
    return [text, *(word for piece in text.split(" ") if (word := piece.strip("(),;")))]


def rank(things: Iterable[Record], worth: Mapping[str, float]) -> list[Record]:
    """Rank the parts of these things by the worth that each part adds per added token."""
    parts = [part for thing in things for part in thing.parts]
    values, sizes = list[Sequence[str]](), list[int]()
    heads: list[dict[tuple[str, str], int]] = []
    """Tokens of each part's name and labels; 0 once a ranked part of the same record has the name or label."""
    sharing: dict[tuple[str, str], list[int]] = {}
    for place, part in enumerate(parts):
        texts = [text for field in part.fields for text in (field.value, field.remark)]
        values.append(sorted({word for text in (part.name, *texts) for word in _words(text) if word in worth}))
        sizes.append(1 + sum(map(_size, texts)))
        head = {"": part.name} | {field.label: field.label for field in part.fields}
        heads.append({(part.key, label): _size(text) for label, text in head.items()})
        for shared in heads[-1]:
            sharing.setdefault(shared, []).append(place)
    told = set[str]()

    def cost(place: int) -> float:
        adds = sum(worth[value] * (_REPEATED if value in told else 1.0) for value in values[place])
        return -(adds + _DESCRIBED) / (sizes[place] + sum(heads[place].values()))

    waiting = [(cost(place), place) for place in range(len(parts))]
    heapify(waiting)
    ranked: dict[int, Record] = {}
    while waiting and len(ranked) < MOST_PARTS:
        expected, place = heappop(waiting)
        if place in ranked:
            continue
        if (now := cost(place)) > expected:
            heappush(waiting, (now, place))
            continue
        ranked[place] = parts[place]
        told.update(values[place])
        for shared in heads[place]:
            for other in sharing.pop(shared, ()):
                heads[other][shared] = 0
                heappush(waiting, (cost(other), other))
    return [*ranked.values()]


def _size(text: str) -> int:
    return len(_PIECE.findall(text)) + 1 if text else 0


def _read(messages: Sequence[Message], turns: Sequence[int]) -> tuple[list[_Extracted], dict[str, float]]:
    own, reader = dict(authored_text(messages)), _MessageReader()
    extracted, worth = list[_Extracted](), dict[str, float]()
    fields = 0
    for index in reversed(range(len(messages))):
        message, calls = messages[index], calls_of(messages, index)
        results = zip(calls, message.results, strict=False)
        reader.failed |= {id(call) for call, said in results if call and (said.has_failed or reports_error(said.text))}
        if message.sealed or message.kind is Kind.INSTRUCTIONS:
            continue
        reader.uses, reader.extracted, reader.turn = {}, [], turns[index] if turns else 0
        reader.read(message, calls, own.get(index, ()))
        recency = (len(messages) + index) / (2 * len(messages))
        for value, use in reader.uses.items():
            if value in worth or len(worth) < MOST_FIELDS:
                worth[value] = worth.get(value, 0.0) + recency * use
        for each in reversed(reader.extracted):
            fields += max(1, len(each.record.fields))
            if fields <= MOST_FIELDS:
                extracted.append(each)
    return extracted[::-1], worth


class _MessageReader:
    def __init__(self) -> None:
        self.left = MOST_CHARACTERS
        self.failed = set[int]()
        self.turn = 0
        self.uses: dict[str, float] = {}
        self.extracted: list[_Extracted] = []

    def read(self, message: Message, calls: Sequence[ToolCall | None], own: Iterable[str]) -> None:
        """Read one message. `calls`: calls that the message's results answer. `own`: texts that the user wrote."""
        self._place = _ARGUMENT
        for call in (*message.calls, *message.settled):
            self._call(call)
        self._place = _USER
        for piece in own:
            self._prose(piece, "")
        self._place = _ASSISTANT if message.kind is Kind.ASSISTANT else _ELSEWHERE
        for text, number in zip(message.texts, message.owners or (0,) * len(message.texts), strict=False):
            caller = calls[number] if calls and number >= 0 else None
            owner = self._name_of_call(caller) if caller else ""
            if (content := self._parsed(text)) is None:
                self._prose(text, owner)
            else:
                self._content(content, owner)
            self.left -= len(text)

    def _parsed(self, text: str) -> Any:
        """Return the object or list of a JSON text; None for other texts, and for texts that are too long."""
        return parsed_json(text) if len(text) <= self.left and _JSON.match(text) else None

    def _name_of_call(self, call: ToolCall) -> str:
        """Return the name of the thing that a call's arguments identify, or a name for the call."""
        arguments = self._parsed(call.arguments)
        if not isinstance(arguments, dict):
            return word(call.name)
        plain = ((key, value) for key, value in arguments.items() if not NAMES_SECRET.search(key))
        asked = [
            f"{_label(key)} {text}" for key, value in plain for text in self._values(key, value)[:1] if "(" not in text
        ]
        return _name(arguments) or (f"{word(call.name)}({', '.join(asked)})" if asked else word(call.name))

    def _call(self, call: ToolCall) -> None:
        arguments = self._parsed(call.arguments)
        if not isinstance(arguments, dict):
            self._prose(call.arguments, "")
        elif id(call) not in self.failed and (name := self._name_of_call(call)) != word(call.name):
            self._add(name, self._fields(arguments, name, 0) if _name(arguments) else ())
        self.left -= len(call.arguments)

    def _add(self, name: str, fields: Iterable[Field] = (), *, lists: bool = False, is_prose: bool = False) -> None:
        self.extracted.append(_Extracted(Record(name, tuple(fields)), lists, is_prose))

    def _content(self, content: Any, owner: str) -> None:
        """Add the records of JSON content: one for each object with an identifier. `owner` gets the other values."""
        if isinstance(content, dict):
            name = _name(content) or owner
            fields = [*self._fields(content, name, 0)]
            if name:
                self._add(name, fields, lists=True)
            for field in () if name else fields:
                self._add(f"{field.label} {field.value}")
            return
        others: list[Field] = []
        for each in content:
            if isinstance(each, dict) and not owner and _name(each):
                self._content(each, "")
            else:
                others += self._member("", "item", each, 0, owner)
        if others:
            self._add(owner or "list", others)

    def _field(self, label: str, value: str, note: str = "") -> Field:
        return Field(label, value, note, turn=self.turn)

    def _fields(self, content: Mapping[str, Any], name: str, depth: int) -> Iterator[Field]:
        own = _words(name)
        for key, value in content.items():
            if not NAMES_SECRET.search(key):
                yield from (field for field in self._member(key, _label(key), value, depth) if field.value not in own)

    def _member(self, key: str, label: str, value: Any, depth: int, owner: str = "") -> Iterator[Field]:
        """Yield the fields of one member. An object with an identifier or name becomes one field, with a note."""
        if depth > DEEPEST:
            return
        if isinstance(value, dict) and value and all(_identifier(k) and isinstance(v, dict) for k, v in value.items()):
            value = [{"id": each, **value[each]} for each in value]  # An object with identifiers as keys.
        if isinstance(value, list):
            for each in value:
                yield from self._member(key, label, each, depth + 1, owner)
        elif isinstance(value, dict):
            yield from self._part(label, value, depth + 1, owner)
        else:
            yield from (self._field(label, text) for text in self._values(key, value))

    def _part(self, label: str, part: Mapping[str, Any], depth: int, owner: str) -> Iterator[Field]:
        identity = _name(part)
        fields = [*self._fields(part, identity, depth)]
        if identity:
            if any((value := classify(field.value)) and value[0] in _NAMING for field in fields):
                self._add(identity, fields, lists=True)
                fields = []
            kind, _, key = identity.rpartition(" ")
            self._values("id", key)
            yield self._field(kind if owner else label, key, _note(fields, owner))
        elif names := [field.value for field in fields if _TEXT_MEMBER.search(field.label)]:
            rest = [field for field in fields if not _TEXT_MEMBER.search(field.label)]
            yield self._field(label, " ".join(names), _note(rest, owner))
        else:
            yield from fields

    def _values(self, key: str, value: Any) -> list[str]:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return []
        if not isinstance(value, str):
            written = str(value)
            if type(value) is int and _VALUE_MEMBER.search(key) and not is_card_number(written):
                return [self._use("word", written)]
            return [written] if _MONEY_MEMBER.search(key) else []
        if _is_word(value):
            whole = classify(value)
            if whole and whole[1] == value:
                return [self._use(*whole)]
            if (_VALUE_MEMBER.search(key) or value.isupper()) and not is_secret(value):
                return [self._use("word", value)]
        if _TEXT_MEMBER.search(key) and _SHORT_TEXT.fullmatch(value) and not is_secret(value):
            return [value]
        if len(value) > LONGEST_VALUE:
            place, self._place = self._place, min(self._place, _ASSISTANT)
            self._prose(value, "")
            self._place = place
            return []
        return [self._use(each.kind, each.text) for each in find_values(readable_part(value, LONGEST_VALUE))]

    def _use(self, kind: str, value: str) -> str:
        self.uses[value] = max(self.uses.get(value, 0.0), self._place * _WORTH.get(kind, _LEAST_WORTH))
        return value

    def _prose(self, text: str, owner: str) -> None:
        """Add records of prose. The values of a clause belong to its first identifier, or to the identifier of an
        earlier clause of the paragraph, or to `owner`. Without any of these, each value gets its own record. A value
        that the user states with a label replaces earlier values that were stated with this label."""
        text, given, end = readable_part(text, min(self.left, LONGEST_TEXT)), owner, 0
        for clause in _clauses(text):
            for each in clause:
                self._use(each.kind, each.text)
            if _PARAGRAPH.search(text, end, clause[0].start):
                owner = given
            end = clause[-1].start
            naming = next((each for each in clause if each.kind in _NAMING), None)
            owner = f"{naming.label} {naming.text}" if naming else owner
            if owner:
                fields = (self._field(each.label, each.text) for each in clause if each is not naming)
                self._add(owner, fields, is_prose=True)
            for each in () if owner else clause:
                if each.is_stated and self._place == _USER:
                    self._use("identifier", each.text)  # A statement is as important as an identifier.
                    self._add(each.label.lower(), [self._field("", each.text)])
                else:
                    self._add(f"{each.label} {each.text}", is_prose=True)


class _Mention(ExactValue, frozen=True):
    """Value in a text, with a label: the last meaningful word before the value in its clause, else the value's kind."""

    label: str
    is_stated: bool
    """Whether the value follows its label, as in `the budget is $500` or `budget: $500`."""


def _clauses(text: str) -> Iterator[list[_Mention]]:
    clause: list[_Mention] = []
    end = 0
    for value in find_values(text):
        if clause and _CLAUSE_END.search(text, end, value.start):
            yield clause
            clause = []
        before = _CLAUSE_END.split(text[max(end, value.start - LABEL_REACH) : value.start])[-1]
        words = (_lowered(found)[:LONGEST_LABEL] for found in reversed(_WORD.findall(before)))
        # A word that looks like a value or a name in code may be part of base64.
        tells = (
            each for each in words if not (_FUNCTION_WORD.fullmatch(each) or _CAMEL.search(each) or classify(each))
        )
        label = next(tells, "")
        is_stated = bool(label) and label.isalpha() and _STATED.search(before) is not None
        clause.append(_Mention(value.start, value.stop, value.kind, value.text, label or value.kind, is_stated))
        end = value.stop
    if clause:
        yield clause


def _note(fields: Sequence[Field], owner: str) -> str:
    """Return the first identifier, path, link or date that is not in `owner`, else the object's name or state."""
    exact = (f.value for f in fields if (found := classify(f.value)) and found[0] in {*_NAMING, "date"})
    texts = (field.value for field in fields if _TEXT_MEMBER.search(field.label))
    return next((value for value in (*exact, *texts) if "(" not in value and value not in owner), "")


def _name(content: Mapping[str, Any]) -> str:
    """Return the name of an object's record: its kind and identifier. Empty without an identifier."""
    members = [key for key, value in content.items() if _ID_MEMBER.search(key) and isinstance(value, str)]
    for key in (*_IDS, *members):
        if key in content and not NAMES_SECRET.search(key) and (value := _identifier(content[key])):
            return f"{_label(key)} {value}"
    return ""


def _identifier(value: Any) -> str:
    """Return the value as text; empty if it is no identifier."""
    if type(value) is int:
        return "" if is_card_number(str(value)) else str(value)
    if not isinstance(value, str) or not _is_word(value) or is_secret(value) or "," in value:
        return ""
    return value if not value.isalpha() or value.isupper() else ""


def _is_word(text: str) -> bool:
    is_long = not 1 < len(text) <= LONGEST_VALUE
    return not is_long and text.isprintable() and not any(sign.isspace() or sign == "<" for sign in text)


def _label(key: str) -> str:
    return _label_words(_MEMBER_ENDING.sub("", key)) or _label_words(key) or "also"


def _label_words(name: str) -> str:
    found = _WORD.findall(_CAMEL.sub(" ", name[:LONGEST_LABEL].replace("_", " ")))
    return "_".join(_lowered(each) for each in found[:LABEL_WORDS])


def _lowered(found: str) -> str:
    """Return a word such as `TOTAL` in lower case, but a word such as `Total` unchanged."""
    return found.lower() if found[:2].isupper() else found
