"""Things: the records that a range of messages holds, found by code, so that no summary can lose or misspell them.

JSON says by its structure what a value is and what it belongs to: results, and the arguments of calls. In prose the
words of the clause say it. A thing that is met again is one record, brought up to date.

A value is worth the sum of its uses. Each message that holds it is one use, and counts by where it stands (an argument
of a call 4, the user's words 3, the assistant's 2, a tool's result 1), and half as much at the start of the range as at
its end. The sum is scaled by what the value is (see `_WORTH`). `ranking` says which come first.

Texts are anybody's. What is read is bounded, and so is what is found; labels are a few words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.authored_text import is_result
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
from app.core.history.messages import Kind, Message, ToolCall, calls_of
from app.core.history.ranking import ranked, words_of
from app.core.history.records import Field, Record
from app.core.history.work import tells_of_error
from app.core.quoting import word

MOST_READ = 1 << 18
"""Characters of a whole range that are read, the newest first."""
MOST_FOUND = 4_000
"""Fields of a range that are weighed, and different values, the newest first."""
DEEPEST = 6
"""Levels of JSON that are looked through."""
LONGEST_LABEL = 40
"""Characters of a label, and of a name or a state in words."""
LABEL_WORDS = 3
LABEL_REACH = 60
"""Characters before a value in which the word that says what it is is looked for."""

_WORTH = {
    "identifier": 1.0,
    "path": 1.0,
    "link": 1.0,
    "date": 0.6,
    "version": 0.5,
    "word": 0.04,
    "time": 0.04,
    "amount": 0.05,
    "symbol": 0.1,
}
_PLACES = {Kind.USER: 3.0, Kind.ASSISTANT: 2.0}
_ARGUMENT, _ELSEWHERE = 4.0, 1.0
_NAMING = frozenset({"identifier", "path", "link"})
"""Kinds of values that a thing is known by."""
_NOTED = _NAMING | {"date"}

_GENERIC = ("id", "_id", "uuid", "key", "sha", "hash", "number", "code")
_NAMES_IT = re.compile(r"(?:_|[a-z](?=[A-Z]))(?:id|number|key|code|no)$", re.IGNORECASE)
_PLACE_OF_IT = re.compile(r"(?:^|_|[a-z](?=[A-Z]))(?:path|file|filename|url|uri|email)$", re.IGNORECASE)
_ENDING = re.compile(r"(?<=[^_])(?:_?(?:ids?|number|key|code|no)|(?<=[a-z])(?:Ids?|IDs?|Number|Key|Code))$")
_DESCRIBES = re.compile(r"(?:^|_|[a-z](?=[A-Z]))(?:name|title|status|state)$", re.IGNORECASE)
_COUNTS_MONEY = re.compile(r"price|amount|total|cost|fee|balance|refund", re.IGNORECASE)
_PLAIN = re.compile(rf"\w[\w .'&+/-]{{0,{LONGEST_LABEL - 1}}}")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LABEL_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_CLAUSE_ENDS = re.compile(r"[\n\r;{}\u3002\uff01\uff1f\uff1b]|\\n|[.!?]\s")
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[T ]\d\d:.*")
_PARAGRAPH = re.compile(r"\n[ \t]*\r?\n")
_JSON_OPENS = re.compile(r"\s*[\[{]")
_UNTELLING = re.compile(
    r"an?|and|are|as|at|be|been|but|by|can|do|for|from|had|has|have|he|her|his|i|id|if|in|into|is|its?|me|my|no|not"
    r"|number|of|on|or|our|she|so|than|that|the|their|them|then|there|these|they|this|those|to|us|used?|was|we|were"
    r"|which|will|with|would|your?",
    re.IGNORECASE,
)
"""Words that say of nothing what it is."""
_BARE = "also"
"""Label of what nothing says anything of."""


class _Told(Struct, frozen=True):
    """A record that one message tells."""

    record: Record
    lists: bool = False
    """Whether its lists are whole, as a result's are."""
    in_passing: bool = False
    """Whether it is told in prose, which says less than structure, and only adds to it."""


def records_in(messages: Sequence[Message], known: Mapping[str, Record] | None = None) -> list[Record]:
    """Parts of records, to be put together, the worthiest first: at most `MOST_RANKED`.

    Of a thing that is `known` (by its key) only news. Nothing of sealed messages, of reasoning, of instructions, and
    nothing that looks like a password or a key.
    """
    told, worth = _read(messages)
    things: dict[str, Record] = {}
    for each in (each for each in told if not each.in_passing):
        held = things.get(each.record.key)
        up_to_date = each.record if held is None else held.brought_up_to_date(each.record, lists=each.lists)
        things[each.record.key] = up_to_date
    structured = {word for record in things.values() for word in words_of(record.line)}
    for record in (each.record for each in told if each.in_passing):
        held = things.get(record.key)
        own = {word for field in held.fields for word in words_of(field.value)} if held else set[str]()
        news = [field for field in record.fields if field.value not in own]
        if held is not None:
            things[record.key] = held.with_fields(dict.fromkeys(news))
        elif not {record.key, *(field.value for field in news)} <= structured:
            things[record.key] = record
    return ranked(_news(things, known or {}), worth)


def _news(things: Mapping[str, Record], known: Mapping[str, Record]) -> Iterator[Record]:
    for key, record in things.items():
        if (before := known.get(key)) is None:
            yield record
        else:
            said = {field.value for field in before.fields}
            now = before.brought_up_to_date(record)
            if news := [field for field in now.fields if field.value not in said]:
                yield replace(record, fields=tuple(news))


def _read(messages: Sequence[Message]) -> tuple[list[_Told], dict[str, float]]:
    """Records of single messages, in order of time, and the worth of each value."""
    callers, failed = _callers(messages)
    told, worth = list[_Told](), dict[str, float]()
    left, found = MOST_READ, 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message.sealed or message.kind is Kind.INSTRUCTIONS:
            continue
        recent = (len(messages) + index) / (2 * len(messages))
        reading = _Reading(failed, left)
        reading.message(message, callers.get(index, ()))
        for value, use in reading.uses.items():
            if value in worth or len(worth) < MOST_FOUND:
                worth[value] = worth.get(value, 0.0) + recent * use
        for each in reversed(reading.told):
            found += max(1, len(each.record.fields))
            if found <= MOST_FOUND:
                told.append(each)
        left = reading.left
    return told[::-1], worth


def _callers(messages: Sequence[Message]) -> tuple[Mapping[int, Callers], set[int]]:
    """The call that returned each text, by its message, and the calls that failed."""
    callers: dict[int, Callers] = {}
    failed: set[int] = set()
    for index, message in enumerate(messages):
        calls = calls_of(messages, index)
        answered = [(call, result) for call, result in zip(calls, message.results, strict=False) if call]
        failed.update(id(call) for call, result in answered if result.has_failed or tells_of_error(result.text))
        if answered:
            owners = message.owners or (0,) * len(message.texts)
            callers[index] = [calls[owner] if owner >= 0 else None for owner in owners]
    return callers, failed


Callers = Sequence[ToolCall | None]


class _Reading:
    """Reader of one message."""

    def __init__(self, failed: set[int], left: int) -> None:
        """`left`: characters that may still be read."""
        self._failed = failed
        self.left = left
        self.uses: dict[str, float] = {}
        self.told: list[_Told] = []
        self._place = _ELSEWHERE

    def message(self, message: Message, callers: Callers) -> None:
        """`callers`: call that returned each of its texts; empty where none did."""
        self._place = _ARGUMENT
        for call in (*message.calls, *message.settled):
            self._call(call)
        for number, self._place, text in _placed(message):
            caller = callers[number] if callers else None
            content = self._parsed(text)
            if isinstance(content, dict | list):
                kind, owner = self._asked(caller) if caller is not None else ("", "")
                self._content(content, kind, owner, 0)
            else:
                self._prose(text, self._asked(caller)[1] if caller is not None else "")
            self.left -= len(text)

    def _parsed(self, text: str) -> Any:
        """Content of a text that is JSON; None of another, and of one that is too long."""
        if len(text) > self.left or not _JSON_OPENS.match(text):
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    def _asked(self, call: ToolCall) -> tuple[str, str]:
        """Kind of a call's result by the call's name, and the thing that it asks for: the one that its arguments
        identify, or else the call itself."""
        _, _, kind = _label(call.name).partition("_")
        arguments = self._parsed(call.arguments)
        if not isinstance(arguments, dict):
            return kind, word(call.name)
        plain = ((key, value) for key, value in arguments.items() if not OF_A_SECRET.search(key))
        asked = ((key, text) for key, value in plain for text in self._values(key, value)[:1] if "(" not in text)
        told = ", ".join(f"{_label(key)} {text}" if _is_date(text) else text for key, text in asked)
        return kind, _named(arguments, "") or (f"{word(call.name)}({told})" if told else word(call.name))

    def _call(self, call: ToolCall) -> None:
        arguments = self._parsed(call.arguments)
        if not isinstance(arguments, dict):
            self._prose(call.arguments, "")
        elif id(call) in self._failed:
            name = f"failed {word(call.name)}"
            self.told.append(_Told(Record(name, tuple(self._fields(arguments, "", 0)))))
        else:
            _, name = self._asked(call)
            if _named(arguments, ""):
                self.told.append(_Told(Record(name, tuple(self._fields(arguments, name, 0)))))
            elif name.endswith(")"):
                self.told.append(_Told(Record(name)))
        self.left -= len(call.arguments)

    def _content(self, content: Any, kind: str, owner: str, depth: int) -> None:
        """Records of JSON: of each object that has an identifier, or belongs to a thing that has one."""
        if depth > DEEPEST:
            return
        if isinstance(content, list):
            self._list(content, kind, owner, depth)
            return
        name = _named(content, kind, owner)
        fields = tuple(self._fields(content, name, depth))
        if name:
            self.told.append(_Told(Record(name, fields), lists=True))
        else:
            self.told += (_Told(Record(f"{field.label} {field.value}")) for field in fields)

    def _list(self, content: Sequence[Any], kind: str, owner: str, depth: int) -> None:
        """Records of what a list holds. Things that say no more than their names are told as the list's own."""
        label = kind or "list"
        fields = [Field(label, text) for each in content for text in self._values("", each)]
        for each in content:
            if isinstance(each, list):
                self._list(each, kind, owner, depth + 1)
            elif isinstance(each, dict) and (owner or not _named(each, _one(kind))):
                fields += self._part(_one(kind), each, depth, owner)
            elif isinstance(each, dict):
                self._content(each, _one(kind), "", depth + 1)
        if fields:
            self.told.append(_Told(Record(owner or label, tuple(fields))))

    def _fields(self, content: Mapping[str, Any], name: str, depth: int) -> Iterator[Field]:
        """Properties of a thing by the members of its object."""
        if depth > DEEPEST:
            return
        own = name.rpartition(" ")[2]
        for key, value in content.items():
            if OF_A_SECRET.search(key):
                continue
            label = _label(key)
            for each in _each_of(value):
                if isinstance(each, dict):
                    yield from self._part(label, each, depth + 1)
                elif isinstance(each, list):
                    yield from self._fields({key: each}, name, depth + 1)
                else:
                    yield from (Field(label, text) for text in self._values(key, each) if text != own)

    def _part(self, label: str, part: Mapping[str, Any], depth: int, owner: str = "") -> Iterator[Field]:
        """Property that a part of a thing is told as: its name with a note. Of a thing of its own the name alone."""
        identity = _named(part, _one(label))
        fields = [*self._fields(part, identity, depth + 1)]
        if not identity:
            named = [field.value for field in fields if _DESCRIBES.search(field.label)]
            if not named:
                yield from fields
                return
            rest = [field for field in fields if not _DESCRIBES.search(field.label)]
            yield Field(label or _BARE, " ".join(named), _noted(rest, owner))
            return
        if any(self._is_thing(field) for field in fields):
            self.told.append(_Told(Record(identity, tuple(fields)), lists=True))
            fields = []
        kind, _, key = identity.rpartition(" ")
        self._values("id", key)
        yield Field(kind if owner else label, key, _noted(fields, owner))

    def _is_thing(self, field: Field) -> bool:
        whole = classified(field.value)
        return whole is not None and whole[0] in _NAMING

    def _values(self, key: str, value: Any) -> list[str]:
        """Values in a member of JSON, as they stand there."""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return []
        if not isinstance(value, str):
            written = str(value)
            if type(value) is int and IDENTIFIES.search(key) and not is_card(written):
                return [self._used("word", written)]
            return [written] if _COUNTS_MONEY.search(key) else []
        if is_word(value):
            whole = classified(value)
            if whole and whole[1] == value:
                whole = whole[0], _MOMENT.sub(r"\1", value)
                return [self._used(*whole)] if whole[0] != "symbol" or self._place > _ELSEWHERE else []
            if (IDENTIFIES.search(key) or value.isupper()) and not is_secret(value):
                return [self._used("word", value)]
        if _DESCRIBES.search(key) and _PLAIN.fullmatch(value) and not is_secret(value):
            return [value]
        if len(value) > LONGEST_VALUE:
            self._text(value)
            return []
        found = spotted(read_of(value, LONGEST_VALUE))
        return [self._used(each.kind, each.value) for each in found if self._counts(each)]

    def _text(self, text: str) -> None:
        """Read a long value: a text that somebody wrote, such as the content of a file."""
        place, self._place = self._place, min(self._place, _PLACES[Kind.ASSISTANT])
        self._prose(text, "")
        self._place = place

    def _used(self, kind: str, value: str) -> str:
        self.uses[value] = max(self.uses.get(value, 0.0), self._place * _WORTH[kind])
        return value

    def _counts(self, each: Spotted) -> bool:
        """Whether it counts: names from code are in every result, and of use where somebody speaks of them."""
        return each.kind != "symbol" or self._place > _ELSEWHERE

    def _prose(self, text: str, owner: str) -> None:
        """Records of a text: what stands in one clause belongs to the first in it that is an identifier, or else to the
        `owner`, if there is one."""
        text, asked, end = read_of(text, min(self.left, LONGEST_TEXT)), owner, 0
        for clause in _clauses(text, [each for each in spotted(text) if self._counts(each)]):
            for _, each in clause:
                self._used(each.kind, each.value)
            if _PARAGRAPH.search(text, end, clause[0][1].start):
                owner = asked
            end = clause[-1][1].stop
            first = next((place for place, (_, each) in enumerate(clause) if each.kind in _NAMING), None)
            fields = [
                Field(label or each.kind, each.value) for place, (label, each) in enumerate(clause) if place != first
            ]
            if first is not None:
                label, each = clause[first]
                owner = f"{label or each.kind} {each.value}"
            told = (
                [Record(owner, tuple(fields))] if owner else [Record(f"{each.label} {each.value}") for each in fields]
            )
            self.told += (_Told(record, in_passing=True) for record in told)


def _each_of(value: Any) -> Sequence[Any]:
    """Parts of a member: of a list, or of an object whose members are things by their names."""
    if isinstance(value, dict) and value and all(_identifier(key) and isinstance(value[key], dict) for key in value):
        return [{"id": inner, **each} for inner, each in value.items()]
    return value if isinstance(value, list) else (value,)


def _noted(fields: Sequence[Field], name: str = "") -> str:
    """Note on a part, without what the name of its thing says: an exact value, or else a name or a state."""
    exact = (field.value for field in fields if (found := classified(field.value)) and found[0] in _NOTED)
    described = (field.value for field in fields if _DESCRIBES.search(field.label))
    return next((value for value in (*exact, *described) if "(" not in value and value not in name), "")


def _placed(message: Message) -> Iterator[tuple[int, float, str]]:
    """A message's texts, each with its number and what a use in it counts: in the user's those that hold results count
    as results."""
    place = _PLACES.get(message.kind, _ELSEWHERE)
    if message.kind is not Kind.USER:
        yield from ((number, place, text) for number, text in enumerate(message.texts))
        return
    is_result_text = is_result(message.own_texts)
    for number, text in enumerate(message.texts):
        yield number, _ELSEWHERE if is_result_text or number in message.passed_on else place, text


def _clauses(text: str, values: Sequence[Spotted]) -> Iterator[list[tuple[str, Spotted]]]:
    """Values by the clauses that they stand in, each behind the word that says what it is."""
    clause: list[tuple[str, Spotted]] = []
    end = 0
    for each in values:
        if _CLAUSE_ENDS.search(text, end, each.start) and clause:
            yield clause
            clause = []
        before = _CLAUSE_ENDS.split(text[max(end, each.start - LABEL_REACH) : each.start])[-1]
        words = [_plain(found) for found in _LABEL_WORD.findall(before)]
        # A value is spotted and tells nothing of another: what looks like one is a slice of something such as base64.
        telling = (found for found in reversed(words) if not _UNTELLING.fullmatch(found) and not classified(found))
        clause.append((next(telling, "")[:LONGEST_LABEL], each))
        end = each.stop
    if clause:
        yield clause


def _named(content: Mapping[str, Any], kind: str, owner: str = "") -> str:
    """Kind and identifier of an object, as a record is named, or else the thing that it belongs to; empty without."""
    for key in (f"{kind}_id", *_GENERIC):
        if key in content and (value := _identifier(content[key])):
            return f"{_one(kind) or _label(key)} {value}"
    for shape in (_NAMES_IT, _PLACE_OF_IT):
        for key, value in content.items():
            if shape.search(key) and not OF_A_SECRET.search(key) and isinstance(value, str) and _identifier(value):
                return f"{_label(key)} {value}"
        if owner:
            return owner
    return ""


def _identifier(value: Any) -> str:
    """An identifier as it is written; empty for what is none."""
    if type(value) is int:
        return "" if is_card(str(value)) else str(value)
    if not isinstance(value, str) or not is_word(value) or is_secret(value) or "," in value:
        return ""
    return value if not value.isalpha() or value.isupper() else ""


def _is_date(text: str) -> bool:
    """Whether it is a date, which says nothing of what it is the date of."""
    return (found := classified(text)) is not None and found[0] == "date"


def _label(key: str) -> str:
    """A few words of the name of a member or a tool, as one word."""
    return _words(_ENDING.sub("", key)) or _words(key) or _BARE


def _words(name: str) -> str:
    found = _LABEL_WORD.findall(_CAMEL.sub(" ", name[:LONGEST_LABEL].replace("_", " ")))
    return "_".join(_plain(each) for each in found[:LABEL_WORDS])


def _one(label: str) -> str:
    """The name of one of several."""
    if label.endswith("ies"):
        return f"{label[:-3]}y"
    return label[:-1] if label.endswith("s") and not label.endswith("ss") else label


def _plain(found: str) -> str:
    """A word that does not look like a value."""
    return found.lower() if found[:2].isupper() else found
