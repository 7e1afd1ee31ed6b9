"""Things: the records that a range of messages holds, found by code, so that no summary can lose or misspell them.

JSON says by its structure what a value is and what it belongs to: results, and the arguments of calls. In prose the
words of the clause say it. A thing that is met again is one record, brought up to date.

A value is worth the sum of its uses. Each message that holds it is one use, and counts by where it stands (an argument
of a call 4, the user's words 3, the assistant's 2, a tool's result 1), and half as much at the start of the range as at
its end. The sum is scaled by what the value is (see `_WORTH`). `ranking` says which come first.

Texts are anybody's. What is read is bounded, and so is what is found; names and labels are a few words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from app.core.history.exact_values import (
    IDENTIFIES,
    LONGEST_TEXT,
    LONGEST_VALUE,
    OF_A_SECRET,
    Spotted,
    classified,
    is_card,
    is_secret,
    is_word,
    read_of,
    spotted,
)
from app.core.history.messages import Kind, Message, ToolCall
from app.core.history.own_words import before_results
from app.core.history.ranking import ranked
from app.core.history.records import Field, Record, brought_together, merged
from app.core.history.work import tells_of_error
from app.core.quoting import word

MOST_READ = 1 << 18
"""Characters of a whole range that are read, the newest first."""
MOST_FOUND = 4_000
"""Fields of a range that are weighed, and different values, the newest first."""
DEEPEST = 6
"""Levels of JSON that are looked through."""
LONGEST_NAME = 40
"""Characters of a label, and of a name or a state in words."""
LABEL_WORDS = 3
LABEL_REACH = 60
"""Characters before a value in which the words that say what it is are looked for."""
MOST_TOGETHER = 6
"""Values that one field holds of an object that is a part of another."""

_WORTH = {
    "identifier": 1.0,
    "path": 1.0,
    "link": 1.0,
    "date": 0.6,
    "version": 0.5,
    "word": 0.15,
    "time": 0.2,
    "amount": 0.15,
    "symbol": 0.1,
}
_PLACES = {Kind.USER: 3.0, Kind.ASSISTANT: 2.0}
_ARGUMENT, _ELSEWHERE = 4.0, 1.0
_NAMING = frozenset({"identifier", "path", "link"})
"""Kinds of values that a thing is known by."""

_GENERIC = ("id", "_id", "uuid", "key", "sha", "hash", "number", "code")
_NAMES_IT = re.compile(r"(?:_|[a-z](?=[A-Z]))(?:id|number|key|code|no)$", re.IGNORECASE)
_PLACE_OF_IT = re.compile(r"(?:^|_|[a-z](?=[A-Z]))(?:path|file|filename|url|uri|email)$", re.IGNORECASE)
_ENDING = re.compile(r"(?<=[^_])(?:_?(?:ids?|number|key|code|no)|(?<=[a-z])(?:Ids?|IDs?|Number|Key|Code))$")
_DESCRIBES = re.compile(r"(?:^|_|[a-z](?=[A-Z]))(?:name|title|status|state)$", re.IGNORECASE)
_COUNTS_MONEY = re.compile(r"price|amount|total|cost|fee|balance|refund", re.IGNORECASE)
_PLAIN = re.compile(rf"\w[\w .'&+/-]{{0,{LONGEST_NAME - 1}}}")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LABEL_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_CLAUSE_ENDS = re.compile(r"[\n\r;{}\u3002\uff01\uff1f\uff1b]|\\n|[.!?]\s")
_ANSWERING = re.compile(r"\s*[\[{]")


def records_in(messages: Sequence[Message], known: Mapping[str, Record] | None = None) -> list[Record]:
    """Parts of records, to be put together, the worthiest first: at most `MOST_RANKED`.

    `known`: records that are kept elsewhere, by their keys. Where there is news of one, the first part of it has all of
    it, and takes its place. Nothing of sealed
    messages, of reasoning, of instructions, and nothing that looks like a password or a key.
    """
    told, said, worth = _read(messages)
    things = brought_together(reversed(told))
    values = {value for record in things.values() for field in record.fields for value in _values(field)}
    for key, record in brought_together(reversed(said)).items():
        held = things.get(key)
        if held is None and (record.fields or key not in values):
            things[key] = record
        elif held is not None:
            own = {value for field in held.fields for value in _values(field)}
            news = tuple(field for field in record.fields if own.isdisjoint(_values(field)))
            things[key] = merged(held, replace(record, name=held.name, fields=news))
    return ranked(things, worth, known or {})


def _values(field: Field) -> tuple[str, ...]:
    return (field.value, *field.value.split(" ")) if " " in field.value else (field.value,)


def _read(messages: Sequence[Message]) -> tuple[list[Record], list[Record], dict[str, float]]:
    """Records by structure and by prose, the newest first, and what each value is worth."""
    callers, failed = _callers(messages)
    told, said, worth = list[Record](), list[Record](), dict[str, float]()
    left, found = MOST_READ, 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message.sealed or message.kind is Kind.INSTRUCTIONS:
            continue
        recent = (len(messages) + index) / (2 * len(messages))
        reading = _Reading(failed, left)
        reading.message(message, callers.get(index))
        for value, use in reading.uses.items():
            if value in worth or len(worth) < MOST_FOUND:
                worth[value] = worth.get(value, 0.0) + recent * use
        for records, new in ((told, reading.told), (said, reading.said)):
            for record in reversed(new):
                found += max(1, len(record.fields))
                if found <= MOST_FOUND:
                    records.append(record)
        left = reading.left
    return told, said, worth


def _callers(messages: Sequence[Message]) -> tuple[Mapping[int, ToolCall], set[int]]:
    """The call that each result answers, by the result's place, and the calls that failed."""
    made: dict[str, ToolCall] = {}
    callers: dict[int, ToolCall] = {}
    failed: set[int] = set()
    for index, message in enumerate(messages):
        caller = next((made[id_] for id_ in message.answers if id_ in made), None)
        if caller is not None:
            callers[index] = caller
            if message.texts and tells_of_error(message.texts[0]):
                failed.add(id(caller))
        made.update((call.id, call) for call in (*message.calls, *message.settled))
    return callers, failed


class _Reading:
    """What one message says."""

    def __init__(self, failed: set[int], left: int) -> None:
        """`left`: characters that may still be read."""
        self._failed = failed
        self.left = left
        self.uses: dict[str, float] = {}
        self.told: list[Record] = []
        self.said: list[Record] = []
        self._place = _ELSEWHERE

    def message(self, message: Message, caller: ToolCall | None) -> None:
        self._place = _ARGUMENT
        for call in (*message.calls, *message.settled):
            self._call(call)
        hint, owner = self._asked(caller) if caller is not None else ("", "")
        for self._place, text in _placed(message):
            content = self._parsed(text)
            if isinstance(content, dict | list):
                self._things(content, hint, owner, 0)
            else:
                self._prose(text, owner)
            self.left -= len(text)

    def _parsed(self, text: str) -> Any:
        """Content of a text that is JSON; None of another, and of one that is too long."""
        if len(text) > self.left or not _ANSWERING.match(text):
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def _asked(self, call: ToolCall) -> tuple[str, str]:
        """What a call's name says that its result is, and the thing that its arguments name; empty without."""
        words = _words_of(call.name)
        hint = " ".join(words[1:] or words)
        arguments = self._parsed(call.arguments)
        return hint, _named(arguments, "") if isinstance(arguments, dict) else ""

    def _call(self, call: ToolCall) -> None:
        arguments = self._parsed(call.arguments)
        if not isinstance(arguments, dict):
            self._prose(call.arguments, "")
        else:
            name = _named(arguments, "") or word(call.name)
            fields = self._fields(arguments, name, 0)
            if id(call) in self._failed:
                self.said.append(Record(name, tuple(replace(each, label=f"tried {each.label}") for each in fields)))
            elif fields:
                self.told.append(Record(name, tuple(fields)))
        self.left -= len(call.arguments)

    def _things(self, content: Any, hint: str, owner: str, depth: int) -> None:
        """Records of JSON: of each object that has an identifier, or belongs to a thing that has one."""
        if depth > DEEPEST:
            return
        if isinstance(content, list):
            if values := [text for each in content if (text := self._kept("", each))]:
                listed = tuple(Field(hint if owner else "", text) for text in values)
                self.told.append(Record(owner or hint or "list", listed))
            for each in content:
                if isinstance(each, dict | list):
                    self._things(each, _one(hint), owner if len(content) == 1 else "", depth + 1)
            return
        name = _named(content, hint, owner)
        if name:
            fields = self._fields(content, name, depth)
            self.told.append(Record(name, tuple(fields)))
            return
        plain = {key: value for key, value in content.items() if not isinstance(value, dict | list)}
        if fields := self._fields(plain, "", depth):
            self.told.append(Record(hint or fields[0].label, tuple(fields)))
        for key, value in content.items():
            if isinstance(value, dict | list) and not OF_A_SECRET.search(key):
                self._things(value, _label(key), "", depth + 1)

    def _fields(self, content: Mapping[str, Any], name: str, depth: int) -> list[Field]:
        """What a thing has by the members of its object."""
        fields: list[Field] = []
        if depth > DEEPEST:
            return fields
        own = name.rpartition(" ")[2]
        for key, value in content.items():
            if OF_A_SECRET.search(key):
                continue
            label = _label(key)
            if isinstance(value, list):
                for each in value:
                    fields += self._part(label, each, name, depth)
            elif isinstance(value, dict) and value and all(isinstance(each, dict) for each in value.values()):
                for inner, each in value.items():
                    fields += self._part(label, {"id": inner, **each}, name, depth)
            elif isinstance(value, dict):
                fields += self._part(label, value, name, depth)
            elif (text := self._kept(key, value)) and text != own:
                fields.append(Field(label, text))
        return fields

    def _part(self, label: str, part: Any, name: str, depth: int) -> Iterator[Field]:
        """What a part of a thing is told as: together, if it is small, or as a thing of its own."""
        if isinstance(part, list):
            for each in part[:MOST_TOGETHER]:
                yield from self._part(label, each, name, depth + 1)
            return
        if not isinstance(part, dict):
            if text := self._kept(label, part):
                yield Field(label, text)
            return
        identity = _named(part, _one(label))
        if identity and any(isinstance(each, dict | list) and each for each in part.values()):
            self._things(part, _one(label), "", depth + 1)
            yield Field(label, identity.rpartition(" ")[2])
            return
        inner = self._fields(part, identity, depth + 1)
        if not identity and len(inner) > MOST_TOGETHER // 2:
            yield from inner
            return
        values = []
        if identity:
            values.append(self._kept("id", identity.rpartition(" ")[2]))
            inner = [field for field in inner if _is_exact(field)] or [each for each in inner if _is_money(each)]
        for field in inner[:MOST_TOGETHER]:
            is_plain = field.label in _SILENT or (not identity and len(inner) == 1)
            values.append(field.value if is_plain else field.text)
        if values:
            yield Field(label, " ".join(values))

    def _kept(self, key: str, value: Any) -> str:
        """What of a JSON value is kept, as it stands there; empty for nothing."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        if not isinstance(value, str):
            written = str(value)
            if type(value) is int and IDENTIFIES.search(key) and not is_card(written):
                return self._used("word", written)
            return written if _COUNTS_MONEY.search(key) else ""
        if is_word(value):
            whole = classified(value)
            if whole and whole[1] == value:
                return self._used(*whole) if whole[0] != "symbol" or self._place > _ELSEWHERE else ""
            if (IDENTIFIES.search(key) or value.isupper()) and not is_secret(value):
                return self._used("word", value)
        if _DESCRIBES.search(key) and _PLAIN.fullmatch(value) and not is_secret(value):
            return value
        if len(value) > LONGEST_VALUE:
            self._text(value)
            return ""
        found = [
            self._used(each.kind, each.value) for each in spotted(read_of(value, LONGEST_VALUE)) if self._counts(each)
        ]
        return " ".join(dict.fromkeys(found))

    def _text(self, text: str) -> None:
        """A long one is a text that somebody wrote, such as the content of a file."""
        place, self._place = self._place, min(self._place, _PLACES[Kind.ASSISTANT])
        self._prose(text, "")
        self._place = place

    def _used(self, kind: str, value: str) -> str:
        self.uses[value] = max(self.uses.get(value, 0.0), self._place * _WORTH[kind])
        return value

    def _counts(self, each: Spotted) -> bool:
        """What programs call their parts is in every result, and of use where somebody speaks of it."""
        return each.kind != "symbol" or self._place > _ELSEWHERE

    def _prose(self, text: str, owner: str) -> None:
        """Records of a text: what stands in one clause belongs to the first in it that is an identifier, or else to the
        `owner`, if there is one."""
        text = read_of(text, min(self.left, LONGEST_TEXT))
        for clause in _clauses(text, [each for each in spotted(text) if self._counts(each)]):
            for _, each in clause:
                self._used(each.kind, each.value)
            first = next((place for place, (_, each) in enumerate(clause) if each.kind in _NAMING), None)
            fields = [Field(label, each.value) for place, (label, each) in enumerate(clause) if place != first]
            if first is not None:
                label, each = clause[first]
                self.said.append(Record(f"{label} {each.value}".strip(), tuple(fields)))
            elif owner:
                self.said.append(Record(owner, tuple(fields)))
            else:
                self.said += (Record(field.text) for field in fields if field.label)


def _placed(message: Message) -> Iterator[tuple[float, str]]:
    """A message's texts, each with what a use in it counts: in the user's those that hold results count as results."""
    place = _PLACES.get(message.kind, _ELSEWHERE)
    if message.kind is not Kind.USER:
        yield from ((place, text) for text in message.texts)
        return
    said = iter(before_results(message.own_texts))
    for number, text in enumerate(message.texts):
        own = "" if number in message.passed_on else next(said)
        yield place, own
        yield _ELSEWHERE, text[len(own) :]


def _clauses(text: str, values: Sequence[Spotted]) -> Iterator[list[tuple[str, Spotted]]]:
    """Values by the clauses that they stand in, each behind the words before it."""
    clause: list[tuple[str, Spotted]] = []
    end = 0
    for each in values:
        if _CLAUSE_ENDS.search(text, end, each.start) and clause:
            yield clause
            clause = []
        before = _CLAUSE_ENDS.split(text[max(end, each.start - LABEL_REACH) : each.start])[-1]
        words = [_plain(found) for found in _LABEL_WORD.findall(before)]
        clause.append((" ".join(words[-LABEL_WORDS:])[-LONGEST_NAME:].strip(), each))
        end = each.stop
    if clause:
        yield clause


_SILENT = frozenset({"name", "first name", "last name", "date", "path", "title"})
"""Labels that say no more than the value behind them does."""


def _named(content: Mapping[str, Any], hint: str, owner: str = "") -> str:
    """Kind and identifier of an object, as a record is named, or else the thing that it belongs to; empty without."""
    for key in (f"{hint}_id", *_GENERIC):
        if key in content and (value := _identifier(content[key])):
            return f"{_one(hint) or _label(key)} {value}"
    for shape in (_NAMES_IT, _PLACE_OF_IT):
        for key, value in content.items():
            if shape.search(key) and not OF_A_SECRET.search(key) and isinstance(value, str) and _identifier(value):
                return f"{_label(key)} {value}"
        if owner:
            return owner
    return ""


def _is_exact(field: Field) -> bool:
    """Whether a field of a part says more than a word, a code or a number."""
    return any(map(classified, field.value.split(" "))) or _DESCRIBES.search(field.label) is not None


def _is_money(field: Field) -> bool:
    return _COUNTS_MONEY.search(field.label) is not None


def _identifier(value: Any) -> str:
    """An identifier as it is written; empty for what is none."""
    if type(value) is int:
        return "" if is_card(str(value)) else str(value)
    if not isinstance(value, str) or not is_word(value) or is_secret(value) or "," in value:
        return ""
    return value if not value.isalpha() or value.isupper() else ""


def _words_of(name: str) -> list[str]:
    """Words of the name of a member or a tool."""
    return [_plain(each) for each in _LABEL_WORD.findall(_CAMEL.sub(" ", name[:LONGEST_NAME].replace("_", " ")))]


def _label(key: str) -> str:
    return " ".join(_words_of(_ENDING.sub("", key))) or " ".join(_words_of(key))


def _one(label: str) -> str:
    """The name of one of several."""
    if label.endswith("ies"):
        return f"{label[:-3]}y"
    return label[:-1] if label.endswith("s") and not label.endswith("ss") else label


def _plain(found: str) -> str:
    """A word that does not look like a value."""
    return found.lower() if found[:2].isupper() else found
