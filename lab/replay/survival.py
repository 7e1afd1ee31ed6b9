"""Survival: which exact values of a conversation stand in its payloads after they have been compacted.

What a value is, is defined here and nowhere else: the measure must not look for what the product happens to keep.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from lab.formats.known import FORMATS
from lab.formats.sent import INSTRUCTION_ROLES, SentMessage
from lab.replay.evidence import SentMessages
from lab.replay.player import Played
from lab.replay.recordings import Recording
from lab.replay.survival_meaning import Meanings

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
    meanings: Meanings = field(default_factory=lambda: Meanings(_of_kinds(IDENTIFIERS), _of_kinds(OWNERS)))


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


def _of_kinds(kinds: Sequence[Kind]) -> Callable[[str], Sequence[str]]:
    return lambda text: [value.text for value in values_in(text) if value.kind in kinds]


def _text(messages: Iterable[SentMessage]) -> str:
    return "\n".join(piece for message in messages for piece in message.pieces)
