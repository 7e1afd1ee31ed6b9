"""Survival: which exact values of a conversation stand in its payloads after they have been compacted.

Values and their meaning are defined here and nowhere else: the measure must not read as the product does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from lab.formats.known import FORMATS
from lab.formats.sent import INSTRUCTION_ROLES, SentMessage
from lab.replay.evidence import SentMessages
from lab.replay.player import Played
from lab.replay.recordings import Recording

FAR = 12
"""A value is far where so many messages, or fewer, say it for the last time before it is used again."""
Kind = Literal["files", "ids", "amounts", "dates"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KINDS: Mapping[str, Kind] = {kind: kind for kind in KINDS}
IDENTIFIERS: Sequence[Kind] = ("files", "ids", "dates")
"""Kinds of values that mean something by what they are called and what they belong to."""
OWNERS: Sequence[Kind] = ("files", "ids")

_SUFFIXES = (
    "py|pyi|js|jsx|ts|tsx|go|rs|java|rb|php|c|h|cc|cpp|sh|sql|md|txt|csv|json|ya?ml|toml|html|css|pdf|log|xml|ini|cfg"
)
_VALUE = re.compile(
    rf"""
    (?P<files> https?://[^\s"'<>)\]}}]+ | [\w.+-]+@[\w-]+(?:\.[\w-]+)+
             | (?:[\w.~-]*/)+[\w.-]*\w\.[A-Za-z]\w{{0,4}}\b | \b[\w-]+\.(?:{_SUFFIXES})\b )
  | (?P<dates> \b\d{{4}}-\d\d-\d\d(?!\d) )
  | (?P<ids> \b(?=[\w-]*[A-Za-z])(?=[\w-]*\d)[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*\b | \b[A-Z]{{5,}}\b )
  | (?P<amounts> \b\d{{1,3}}(?:,\d{{3}})+(?:\.\d+)?\b | \b\d+\.\d+\b | \b\d{{3,}}\b )
    """,
    re.VERBOSE,
)
_ESCAPED_SPACE = re.compile(r"\\[nrt]")
"""A line end or a tab in the text of a JSON document, such as a call's arguments."""
_LEAST_ID = 4
"""Characters: `2x` and `A1` are no ids."""
_COUNTED = re.compile(r"\d{1,3}(?:st|[nr]d|th|-[a-z]+)|\d+[a-z]")
"""An ordinal, or a number and what it counts or what is done to it: `24th`, `24-hour` and `420p` are no ids."""
_AS_LETTERS = str.maketrans("0123456789", "ghijklmnop")


@dataclass(frozen=True, slots=True)
class Value:
    kind: Kind
    text: str

    def stands_in(self, text: str) -> bool:
        """True where the text has the value letter by letter, and not as a part of a longer one."""
        end = r"(?!\d)" if self.kind == "dates" else "(?![A-Za-z0-9])"  # A time may follow.
        return re.search(rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])){re.escape(self.text)}{end}", text) is not None


def values_in(text: str) -> list[Value]:
    """Paths, addresses, ids, amounts and dates, each once."""
    found = (
        Value(_KINDS[match.lastgroup or ""], match[0]) for match in _VALUE.finditer(_ESCAPED_SPACE.sub("  ", text))
    )
    return list(dict.fromkeys(value for value in found if value.kind != "ids" or _is_id(value.text)))


def _is_id(text: str) -> bool:
    return len(text) >= _LEAST_ID and _COUNTED.fullmatch(text) is None


def without_values(summary: str) -> str:
    """Summary without exact values: the simulator's own keeps all it has room for, and a model whatever it likes, and
    neither is what is measured. Other values leave other words, as the judge knows a summary by its text."""
    return _VALUE.sub(
        lambda value: f"so{blake2b(value[0].encode(), digest_size=2).hexdigest().translate(_AS_LETTERS)}", summary
    )


# Meaning: what a conversation says that an identifier is, and what it belongs to
#
# JSON says it by its structure: the names of the members that lead to a value, and the other identifiers of the objects
# around it. Prose says it by its clause.

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]+")
_CLAUSE = re.compile(r"[^.;!?\n{}]*(?:[.;!?](?!\s)[^.;!?\n{}]*)*")
_UNTELLING = frozenset(
    {"ids", "number", "value", "key", "data", "the", "and", "for", "with", "from", "into", "you", "your", "are", "was"}
    | {"has", "have", "will", "can", "this", "that", "not"}
)
"""Words that say of nothing what it is."""
_TYPE_MEMBERS = ("source", "type", "kind")
"""Members that say in words what the object around them is."""
_NAMES = ("name", "first_name", "last_name")
"""Members that name what an object without an identifier is about."""
LEAST_LABEL = 3
WORDS_BEFORE = 4
"""Words of a clause before a value that may say what it is."""
LONGEST = 200_000
"""Characters of a text that is read as JSON."""


@dataclass
class Meaning:
    """Words for a value and what it was said to belong to, in all of a conversation up to some message."""

    labels: set[str] = field(default_factory=set)
    """Words, in lower case; by structure if there is one, else by clauses."""
    owners: set[str] = field(default_factory=set)
    """Other identifiers, or names: one of them is enough."""
    is_structured: bool = False

    def is_labelled_by(self, line: str) -> bool:
        parts = {part.lower() for part in _PARTS.findall(line)}
        return any(_is_alike(label, part) for label in self.labels for part in parts)

    def is_owned_by(self, line: str) -> bool:
        return any(_stands(owner, line) for owner in self.owners)


class Meanings:
    """Reads messages in order, and knows then what their values mean."""

    def __init__(self) -> None:
        self._found: dict[str, Meaning] = {}
        self._called: dict[str, tuple[str, ...]] = {}
        """Identifiers among the arguments of each call, by its id."""

    def of(self, value: str) -> Meaning:
        return self._found.get(value, Meaning())

    def read(self, message: SentMessage) -> None:
        calls = message.pieces[message.texts :]
        for id_, piece in zip(message.calls, calls[1::2], strict=False):
            self._called[id_] = tuple(self._owning(piece))
        around = tuple(owner for id_ in message.answers for owner in self._called.get(id_, ()))
        for piece in message.pieces:
            content = _parsed(piece)
            if isinstance(content, dict | list):
                self._read_json(content, (), around)
            else:
                self._read_prose(piece)

    def _read_json(self, content: Any, path: Sequence[str], around: tuple[str, ...]) -> None:
        match content:
            case dict():
                plain = {name: value for name, value in content.items() if isinstance(value, str | int)}
                own = tuple(
                    each for value in plain.values() if not _is_prose(value) for each in _texts_of(OWNERS, str(value))
                )
                own += tuple(str(value) for name, value in plain.items() if name in _NAMES)
                kinds = tuple(str(plain[name]) for name in _TYPE_MEMBERS if name in plain)
                for name, value in content.items():
                    self._note(name, (*path, *kinds), (*own, *around), is_structured=True)
                    self._read_json(value, (*path, *kinds, name), (*own, *around))
            case list():
                for value in content:
                    self._read_json(value, path, around)
            case str() if _is_prose(content):
                self._read_prose(content, around)
            case str() | int():
                self._note(str(content), path, around, is_structured=True)

    def _read_prose(self, text: str, around: tuple[str, ...] = ()) -> None:
        for clause in _CLAUSE.findall(text):
            own = (*self._owning(clause), *around)
            for value in _texts_of(IDENTIFIERS, clause):
                before = _PARTS.findall(clause[: clause.index(value)])[-WORDS_BEFORE:]
                self._note(value, before, own, is_structured=False)

    def _owning(self, text: str) -> Iterator[str]:
        """Identifiers of a text but words in capitals, which may be of an output or of SQL."""
        return (owner for owner in _texts_of(OWNERS, text) if not owner.isalpha())

    def _note(self, text: str, words: Iterable[str], around: Sequence[str], *, is_structured: bool) -> None:
        labels = {part.lower() for word in words for part in _PARTS.findall(word)} - _UNTELLING
        for value in _texts_of(IDENTIFIERS, text):
            meaning = self._found.setdefault(value, Meaning())
            if meaning.is_structured and not is_structured:
                continue
            if is_structured and not meaning.is_structured:
                meaning.labels, meaning.owners, meaning.is_structured = set(), set(), True
            meaning.labels |= {label for label in labels if len(label) >= LEAST_LABEL}
            meaning.owners |= {owner for owner in around if owner != value}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") and len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        return None


def _is_prose(value: str | int) -> bool:
    """Whether a member holds a text, such as a command or a thought, and no value alone."""
    return " " in str(value).strip()


def _is_alike(label: str, part: str) -> bool:
    """Whether two words are the same, or one and several of the same."""
    return label == part or label.rstrip("s") == part.rstrip("s")


def _stands(value: str, line: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", line) is not None


def _texts_of(kinds: Sequence[Kind], text: str) -> list[str]:
    return [value.text for value in values_in(text) if value.kind in kinds]


# Payloads


@dataclass(frozen=True, slots=True)
class Used:
    """A value that an answer uses, and that was last said long before."""

    conversation: str
    request: int
    value: Value
    ago: int
    """How many messages ago it was said for the last time."""
    stands: bool
    """The payload that the answer was made from has it."""


@dataclass(frozen=True, slots=True)
class Needed:
    """An identifier that an answer uses, said before, but by no message that is whole in the answer's payload."""

    conversation: str
    request: int
    value: Value
    stands: bool
    """The payload has it."""
    labelled: bool | None
    """True where it stands on a line that says what it is; None where the conversation never said that."""
    owned: bool | None
    """True where it stands on a line with something that it belongs to; None where nothing was said of that."""


@dataclass
class _Conversation:
    """How far one has come."""

    recording: Recording
    messages: list[SentMessage]
    last_said: dict[Value, int] = field(default_factory=dict)
    read: int = 0
    meanings: Meanings = field(default_factory=Meanings)


class Survival:
    """Sees the requests of conversations in order."""

    def __init__(self) -> None:
        self.used: list[Used] = []
        self.needed: list[Needed] = []
        self._readers = {name: SentMessages(written) for name, written in FORMATS.items()}
        self._conversation: _Conversation | None = None

    def as_json(self) -> Mapping[str, Any]:
        return {
            "used": len(self.used),
            "in_the_payload": sum(each.stands for each in self.used),
            "absent": msgspec.to_builtins([each for each in self.used if not each.stands]),
            "needed": msgspec.to_builtins(self.needed),
        }

    def see(self, played: Played) -> None:
        conversation = self._of(played.recording)
        end = played.recording.requests[played.request - 1]
        _read_on(conversation, end)
        payload = _text(played.verdict.payload) if played.verdict.accepted else ""
        answer = [*_answer(conversation.messages, end)]
        self.needed += _needed(played, conversation, end, payload, _values_of(answer))
        for value in _values_of(answer):
            ago = end - conversation.last_said.get(value, end)
            if ago > FAR:
                stands = value.stands_in(payload)
                self.used.append(Used(played.recording.name, played.request, value, ago, stands))

    def _of(self, recording: Recording) -> _Conversation:
        if self._conversation is None or self._conversation.recording is not recording:
            reader = self._readers[recording.format.name]
            messages = [reader.read(msgspec.json.encode(message)) for message in recording.messages]
            self._conversation = _Conversation(recording, messages)
        return self._conversation


def _read_on(conversation: _Conversation, end: int) -> None:
    """Notes where each value was said last; what the instructions say is in every payload, and no matter of memory."""
    for index in range(conversation.read, end):
        conversation.meanings.read(conversation.messages[index])
        if conversation.messages[index].role not in INSTRUCTION_ROLES:
            conversation.last_said.update(dict.fromkeys(_values_of([conversation.messages[index]]), index))
    conversation.read = end


def _answer(messages: Sequence[SentMessage], start: int) -> Iterator[SentMessage]:
    """Elements of an answer: one message, or in some formats several elements."""
    for message in messages[start:]:
        if message.role != "assistant":
            return
        yield message


def _values_of(messages: Iterable[SentMessage]) -> list[Value]:
    return list(dict.fromkeys(value for message in messages for piece in message.pieces for value in values_in(piece)))


def _whole(messages: Sequence[SentMessage], played: Played) -> set[int]:
    """Indexes of the messages that stand whole in the payload."""
    beside = played.verdict.messages - len(messages)  # What some formats have before their first element.
    places = played.verdict.places.items()
    return {index - beside for index, place in places if place.pieces == messages[index - beside].pieces}


def _needed(
    played: Played, conversation: _Conversation, end: int, payload: str, values: Iterable[Value]
) -> Iterator[Needed]:
    """Identifiers of an answer that no whole message of its payload has, though the conversation has."""
    messages = conversation.messages[:end]
    whole = _whole(messages, played)
    visible = _text(messages[index] for index in whole)
    lines = payload.split("\n")
    for value in values:
        is_said = value in conversation.last_said and not value.stands_in(visible)
        if value.kind not in IDENTIFIERS or not is_said:
            continue
        meaning = conversation.meanings.of(value.text)
        if value.text.isalpha() and not meaning.is_structured:
            continue  # Any word in capitals, such as one of SQL or of an output.
        beside = [
            line.replace(value.text, " ") for line in lines if value.stands_in(line)
        ]  # It is no label of its own.
        labelled = any(map(meaning.is_labelled_by, beside)) if meaning.labels else None
        owned = any(map(meaning.is_owned_by, beside)) if meaning.owners else None
        yield Needed(played.recording.name, played.request, value, bool(beside), labelled, owned)


def _text(messages: Iterable[SentMessage]) -> str:
    return "\n".join(piece for message in messages for piece in message.pieces)
