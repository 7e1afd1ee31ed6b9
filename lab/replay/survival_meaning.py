"""Meaning: what a conversation says that an identifier is, and what it belongs to, read by the judge itself.

JSON says it by its structure: the names of the members that lead to a value, and the other identifiers of the objects
around it. Prose says it by its clause. The measure must not read as the product does, so nothing of that is used here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lab.formats.sent import SentMessage

_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|[^\W\d_]+")
_CLAUSE = re.compile(r"[^.;!?\n{}]*(?:[.;!?](?!\s)[^.;!?\n{}]*)*")
_UNTELLING = frozenset(
    {"ids", "number", "value", "key", "data", "the", "and", "for", "with", "from", "into", "you", "your", "are", "was"}
    | {"has", "have", "will", "can", "this", "that", "not"}
)
"""Words that say of nothing what it is."""
_KINDS = ("source", "type", "kind")
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

    def __init__(self, values_in: Callable[[str], Sequence[str]], owners_in: Callable[[str], Sequence[str]]) -> None:
        """`values_in` finds what may mean something in a text, `owners_in` to what a value may belong."""
        self._values_in = values_in
        self._owners_in = owners_in
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
                    each for value in plain.values() if not _is_prose(value) for each in self._owners_in(str(value))
                )
                own += tuple(str(value) for name, value in plain.items() if name in _NAMES)
                kinds = tuple(str(plain[name]) for name in _KINDS if name in plain)
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
            for value in self._values_in(clause):
                before = _PARTS.findall(clause[: clause.index(value)])[-WORDS_BEFORE:]
                self._note(value, before, own, is_structured=False)

    def _owning(self, text: str) -> Iterator[str]:
        """Identifiers of a text but words in capitals, which may be of an output or of SQL."""
        return (owner for owner in self._owners_in(text) if not owner.isalpha())

    def _note(self, text: str, words: Iterable[str], around: Sequence[str], *, is_structured: bool) -> None:
        labels = {part.lower() for word in words for part in _PARTS.findall(word)} - _UNTELLING
        for value in self._values_in(text):
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
