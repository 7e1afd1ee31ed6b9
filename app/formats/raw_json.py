"""Raw JSON: read and replace single values of a document while all other bytes stay unchanged.

1. The decoder returns the values of an object as slices. Steno finds the position of each value if it edits the
   object, or if the object has unusual spaces.
2. An object with a repeated key is unreadable, because parsers differ on which value counts.
3. Before decoding, Steno estimates the number of values by counting marks: the bytes `,`, `[` and `{`.
4. A client that cuts a text inside an emoji sends half a surrogate pair, which the decoder refuses. Steno then decodes
   a copy with the escape of U+FFFD in place of this half. Both escapes have the same length, so all positions stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from app.conversation.messages import lazy
from app.conversation.reasons import Code

T = TypeVar("T")

_LONE = re.compile(
    # Skip escaped backslashes and whole pairs.
    rb"(?:\\\\)++|(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})++"
    rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
BLOCK = 65_536
"""Bytes processed in one step, during which other threads wait."""
ESCAPE = 6
"""Length of an escape in bytes. Searched blocks overlap by this length, because an escape may be in two of them."""
_ANY = re.compile(rb"\\u[dD][89a-fA-F]")


def decoded(json: bytes | msgspec.Raw, decode: Callable[[bytes | msgspec.Raw], T]) -> T:
    """Return `decode(json)`, with U+FFFD in place of lone surrogates. Raises the exceptions of `decode`."""
    try:
        return decode(json)
    except msgspec.DecodeError:
        given = bytes(json)
        if (whole := replaced(given)) is given:
            raise
        return decode(whole)


def replaced(json: bytes) -> bytes:
    """Return JSON with U+FFFD in place of each lone surrogate. Return the same object if there is none."""
    blocks = range(0, len(json), BLOCK) if b"\\u" in json else ()
    if not any(_ANY.search(json, start, start + BLOCK + ESCAPE) for start in blocks):
        return json
    made = _LONE.sub(lambda found: found[0] if found["lone"] is None else rb"\ufffd", json)
    return json if made == json else made


LONGEST_KEY = 65_536
"""Maximum bytes of a key, including the whitespace around it."""
MOST_MEMBERS = 2_000
FIRST_KEY = 64
"""Number of bytes at the beginning of an object within which Steno expects the first key."""
# Possessive quantifiers prevent backtracking.
_KEY = re.compile(rb'[ \t\n\r,]*+("(?:[^"\\]++|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_SPACE = b" \t\n\r"
_BEFORE_KEY = b' \t\n\r,"'

_decode_any = msgspec.json.Decoder().decode
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode

_MARKS = b",[{"
"""Bytes that precede a member or an element."""


STATUS_MEMBERS = ("context_status", "context")
"""Members that Steno adds to an answer. If the upstream is another Steno, the answer may already have them."""


class Unreadable(ValueError):
    """Raised for bytes that Steno cannot read. Steno forwards such a body unchanged."""

    reason: ClassVar[Code] = Code.UNREADABLE
    """Code of the reason in the answer and the log."""


class RepeatedKey(Unreadable):
    """Raised for a repeated top-level key: parsers differ on which value counts."""


class KeyTooLong(Unreadable):
    """Raised for a key longer than `LONGEST_KEY`."""

    reason = Code.KEY_TOO_LONG


class TooManyMembers(Unreadable):
    """Raised for more than `MOST_MEMBERS` members: finding their positions would delay other requests."""

    reason = Code.TOO_MANY_MEMBERS


class TooManyValues(Unreadable):
    """Raised for a body with so many values that decoding would delay other requests and take many times its memory."""

    reason = Code.TOO_MANY_VALUES


class Member(Struct, frozen=True):
    key_start: int
    start: int
    stop: int


class RawObject:
    raws: Mapping[str, bytes | msgspec.Raw]
    """JSON of each member, in order."""

    def __init__(self, text: bytes) -> None:
        """Raises `Unreadable`."""
        self.text = text
        try:
            self.raws = _decode_members(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if (readable := replaced(text)) is text:
                raise Unreadable(str(error)) from error
            self._place(RawObject(readable).members)
        if len(self.raws) > MOST_MEMBERS:
            raise TooManyMembers(f"An object has {len(self.raws)} members; at most {MOST_MEMBERS} are looked at.")
        # The decoder drops all but one value of a repeated key. So a text with all values has no such key.
        if len(text) > BLOCK or not _is_usual(text, self.raws):
            _ = self.members  # Raises `RepeatedKey` and `KeyTooLong`.

    @lazy
    def members(self) -> dict[str, Member]:
        """Positions of the members, by name."""
        text, members = self.text, dict[str, Member]()
        position = text.index(b"{") + 1
        # If a key is repeated, the decoder keeps only its last value. Bytes then differ, or some are left at the end.
        for name, value in self.raws.items():
            key, raw = _KEY.match(text, position, position + LONGEST_KEY), memoryview(value)
            start = position if key is None else key.end()
            if (key is None and text[position] in _BEFORE_KEY) or start == position + LONGEST_KEY:
                raise KeyTooLong(f"A key, with the space around it, is longer than {LONGEST_KEY} bytes.")
            if key is None or not text.startswith(raw, start):
                raise RepeatedKey(f"A key stands more than once, perhaps {name!r:.100}.")
            position = start + len(raw)
            members[name] = Member(key.start(1), start, position)
        if text[position : text.rindex(b"}")].strip(_SPACE):
            raise RepeatedKey("A key stands more than once.")
        return members

    def _place(self, members: dict[str, Member]) -> None:
        self.members = members
        text = memoryview(self.text)  # Its slices copy no bytes.
        self.raws = {name: msgspec.Raw(text[member.start : member.stop]) for name, member in members.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.raws

    def raw(self, name: str) -> bytes | None:
        raw = self.raws.get(name)
        return None if raw is None else bytes(raw)

    def elements(self, name: str) -> Sequence[bytes]:
        """Return the elements of the array `name` as slices. Raises `Unreadable` if the member is no array."""
        return split_array(self.raws[name])

    def value(self, name: str) -> object:
        if (raw := self.raws.get(name)) is None:
            return None
        try:
            return decoded(raw, _decode_any)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def values(self) -> dict[str, Any]:
        """Return all members' values; None for a value that cannot be decoded."""
        try:
            return decoded(self.text, _decode_object)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {name: self.value(name) for name in self.raws}

    def spliced(
        self, replace: Mapping[str, bytes] | None = None, remove: Iterable[str] = (), add: bytes = b""
    ) -> bytes:
        """Return the object with values replaced, members removed, and members (`"a":1,"b":2`) added at its end."""
        removed = [name for name in remove if name in self.raws]
        edits = [(*self._with_comma(name, removed), b"") for name in removed] if removed else []
        if replace:
            edits += [(self.members[name].start, self.members[name].stop, value) for name, value in replace.items()]
        if add:
            left = len(self.raws) - len(removed)
            end = self.text.rindex(b"}")  # After the last value, or after the opening brace.
            last = len(self.text[:end].rstrip(_SPACE)) if self.text[end - 1] in _SPACE else end
            edits.append((last, last, b"," + add if left else add))
        pieces, position = [], 0
        for start, stop, value in sorted(edits):
            pieces += [self.text[position:start], value]
            position = stop
        return b"".join((*pieces, self.text[position:]))

    def with_status(self, members: bytes) -> bytes:
        """Return the object with `members` at its end, in place of any `STATUS_MEMBERS` that it had."""
        return self.spliced(remove=STATUS_MEMBERS, add=members)

    def _with_comma(self, name: str, removed: list[str]) -> tuple[int, int]:
        """Return the span of a member and one comma: the comma after it; or before it if no later member stays."""
        names = list(self.members)
        index = names.index(name)
        following = [n for n in names[index + 1 :] if n not in removed]
        if following or index == 0:
            after = self.members[names[index + 1]].key_start if index + 1 < len(names) else self.members[name].stop
            return self.members[name].key_start, after
        return self.members[names[index - 1]].stop, self.members[name].stop


def _is_usual(text: bytes, raws: Mapping[str, bytes | msgspec.Raw]) -> bool:
    """Return whether the text consists of these members in one of the usual spellings: without spaces, or with a space
    after each comma and colon."""
    colon, comma = (b'": ', b', "') if b'": ' in text[:FIRST_KEY] else (b'":', b',"')
    return text == b'{"%b}' % comma.join([name.encode() + colon + raw for name, raw in raws.items()])


class LengthenedObject(RawObject):
    """Object with an array whose first elements Steno has parsed before. Steno does not parse these elements again."""

    def __init__(self, text: bytes, start: int, stop: int, known: Sequence[bytes]) -> None:
        """`known`: the elements between the indexes `start` and `stop` of `text`. Raises `Unreadable`."""
        # An empty string replaces the known elements. Otherwise a number could merge with the bytes after it.
        members, longer = RawObject(b'%b""%b' % (text[:start], text[stop:])).members, stop - start - len(b'""')
        self.text, self._start, self._stop, self._known = text, start, stop, known
        self._place(
            {
                name: Member(*(position + longer * (position > start) for position in astuple(member)))
                for name, member in members.items()
            }
        )

    def elements(self, name: str) -> Sequence[bytes]:
        member = self.members[name]
        if not member.start < self._start < member.stop:
            return super().elements(name)
        return (*self._known, *split_array(b'[""' + self.text[self._stop : member.stop])[1:])


def holds_more_values(body: bytes, most: int, start: int = 0, counted: int = 0) -> bool:
    """Return whether JSON has more than `most` values, without decoding it. An empty object or list counts twice.

    Steno first counts all marks. If there are too many, Steno counts only the marks outside of strings. For bytes that
    are no JSON the result is arbitrary. `counted`: number of marks before `start`.
    """
    if len(body) <= 2 * most:  # JSON has at most about one value in two bytes.
        return False
    anywhere = counted
    for place in range(start, len(body), BLOCK):
        anywhere += _marks(body[place : place + BLOCK])
        if anywhere > most:
            break
    return anywhere > most and _holds_more_outside_strings(body, most)


def count_marks(body: bytes, start: int, stop: int) -> int:
    """Count the marks in a part of a body, including those in strings."""
    return sum(_marks(body[place : min(stop, place + BLOCK)]) for place in range(start, stop, BLOCK))


def _holds_more_outside_strings(body: bytes, most: int) -> bool:
    marks = quotes = 0
    left = b""
    for start in range(0, len(body), BLOCK):
        block = left + body[start : start + BLOCK]
        # Without escapes, each quote begins or ends a string. An odd backslash at the end goes to the next block.
        held = block.rstrip(b"\\")
        left = b"\\" * ((len(block) - len(held)) % 2)
        pieces = held.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        marks += _marks(b"".join(pieces[quotes % 2 :: 2]))
        quotes += len(pieces) - 1
        # Each string has two quotes and is a value or a key.
        if marks > most or quotes > 4 * (most + 1):
            return True
    return False


def _marks(text: bytes) -> int:
    return len(text) - len(text.translate(None, _MARKS))


def split_array(raw: bytes | msgspec.Raw) -> list[bytes]:
    try:
        return list(map(bytes, _decode_elements(raw)))
    except (msgspec.DecodeError, RecursionError) as error:
        given = bytes(raw)
        if (readable := replaced(given)) is given:
            raise Unreadable(str(error)) from error
    elements, place = list[bytes](), 0
    for element in split_array(readable):
        start = readable.index(element, place)
        place = start + len(element)
        elements.append(given[start:place])
    return elements


def decoded_value(raw: bytes) -> object:
    """Decode JSON. Raises `Unreadable`. Keys of more than `LONGEST_KEY` characters are unreadable at any depth, because
    work on such a key would block all requests."""
    try:
        value = decoded(raw, _decode_any)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    held = [value] if len(raw) > LONGEST_KEY else []
    while held:
        each = held.pop()
        if isinstance(each, dict):
            if any(len(key) > LONGEST_KEY for key in each):
                raise KeyTooLong(f"A key is longer than {LONGEST_KEY} characters.")
            held += each.values()
        elif isinstance(each, list):
            held += each
    return value


def decoded_object(raw: bytes, what: str = "A message") -> dict[str, Any]:
    """Decode a JSON object. Raises `Unreadable` as `decoded_value` does."""
    value = decoded_value(raw)
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is no object.")
    return value


def spliced(raw: bytes, replaced: Mapping[str, bytes], removed: Collection[str] = ()) -> bytes:
    try:
        return RawObject(raw).spliced(replaced, removed)
    except Unreadable:  # For example, a key is repeated. The decoder keeps its last value.
        left = {name: value for name, value in decoded_object(raw).items() if name not in removed}
        return msgspec.json.encode(left | {name: msgspec.Raw(value) for name, value in replaced.items()})


class Where(NamedTuple):
    """Step of a path that selects the objects whose `member` has one of the `values`."""

    member: str
    values: Container[object]


Path = tuple[str | Where, ...]


def values_at(held: object, path: Path) -> list[Any]:
    """Return the values at a path of members. For a list on the path, return the values of each element."""
    for index, step in enumerate(path):
        if isinstance(held, list):
            return [value for each in held for value in values_at(each, path[index:])]
        if not isinstance(held, dict):
            return []
        if isinstance(step, Where):
            if held.get(step.member) not in step.values:
                return []
        elif step in held:
            held = held[step]
        else:
            return []
    return [held]


def objects_in(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def object_of(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def text_at(held: Mapping[str, Any], key: str) -> str:
    return as_text(held.get(key))


def joined_members(members: Mapping[str, bytes]) -> bytes:
    return b",".join(b"%b:%b" % (msgspec.json.encode(name), value) for name, value in members.items())
