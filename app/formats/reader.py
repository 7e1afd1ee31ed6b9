"""Readers with caches: parse each raw message once, and of each body only the new messages.

A client sends its whole history with each request. Most clients repeat the bytes of the last request and append the new
messages. So Steno looks for the longest cached prefix of a body and parses only the rest: comparing is twenty times as
fast as parsing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Mapping, Sequence
from operator import attrgetter
from sys import getsizeof
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.conversation.authored_text import result_confidence
from app.conversation.client_context import is_client_text
from app.conversation.identity import Identity
from app.conversation.messages import History, Kind, Message
from app.conversation.tool_results import ResultConfidence
from app.formats.raw_json import LengthenedObject, RawObject, count_marks, holds_more_values
from app.runtime.caches import Cache, Caches

_decode = msgspec.json.Decoder().decode
written_alike = msgspec.json.Encoder(order="deterministic").encode
"""Encoder that writes equal values as equal bytes."""
NOTHING: tuple[object, ...] = (None, "", [], {})
MOST_ARGUMENT_VALUES = 200_000
"""Maximum number of JSON values in arguments that Steno parses. It compares arguments with more values as text."""
LONGEST_MEANT = 1 << 20
"""Maximum characters of arguments that Steno parses. It compares longer arguments as text, because parsing is slow."""


def meant_by(arguments: str) -> msgspec.Raw | str:
    """Return arguments as canonical JSON; unchanged if they are too large or no JSON."""
    if len(arguments) > LONGEST_MEANT:
        return arguments
    try:
        raw = arguments.encode()
        if holds_more_values(raw, MOST_ARGUMENT_VALUES):
            return arguments
        return msgspec.Raw(written_alike(_decode(raw)))
    except (ValueError, RecursionError):
        return arguments


def without(text: str, ignore: Sequence[re.Pattern[str]]) -> str:
    for pattern in ignore:
        text = pattern.sub("", text)
    return text


def stated(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are neither null nor empty."""
    return {name: said for name, said in members.items() if said not in NOTHING}


def canonical_part(part: Any, volatile: Container[str], ignore: Sequence[re.Pattern[str]]) -> Any:
    """Return a part without volatile members and without text that matches `ignore`."""
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key not in volatile}
    if isinstance(text := kept.get("text"), str):
        kept["text"] = without(text, ignore)
    return kept


def canonical_content(
    content: Any, volatile: Container[str], types: Container[object], ignore: Sequence[re.Pattern[str]]
) -> Any:
    """Return the canonical form of a content. A single part whose type is in `types` becomes its text."""
    if isinstance(content, str):
        return without(content, ignore)
    if not isinstance(content, list):
        return canonical_part(content, volatile, ignore)
    parts = [canonical_part(part, volatile, ignore) for part in content]
    match parts:
        case [{"text": str(text), **rest}] if rest.get("type") in types and set(rest) <= {"type"}:
            return text
        case _:
            return parts


def of_user(kind: Kind, texts: Sequence[str], *, plain: bool = True) -> tuple[Kind, ResultConfidence]:
    """Return a message's kind, and the confidence that it is a tool result. `plain`: the message has only texts."""
    if kind is not Kind.USER or not plain:
        return kind, ResultConfidence.NONE
    return (Kind.CLIENT, ResultConfidence.NONE) if is_client_text(texts) else (kind, result_confidence(texts))


class Draft(Struct, frozen=True):
    """A parsed message without its digest."""

    message: Message
    canonical: bytes
    """Input of the digest: without volatile members, and equal for messages with the same meaning."""


Decode = Callable[[bytes, Sequence[re.Pattern[str]]], Draft]
"""Function that parses a raw message. Raises `Unreadable`. `Draft.canonical` omits text that matches the patterns."""


MOST_NEW = 32
"""Maximum number of new messages after a cached history. If there are more, Steno looks up each message separately."""
MESSAGE_BYTES = 700
"""Memory overhead of a message in bytes, in addition to its raw bytes and its texts."""
PLACE_BYTES = 80
"""Memory in bytes that a history and its indexes take for each message."""


Place = tuple[int, bytes]


class _Known(Struct, frozen=True):
    length: int
    raw_messages: tuple[bytes, ...]
    history: History
    size: int
    weight: int
    """Bytes of this entry. Messages shared with a longer cached history count only in that history's entry."""
    place: Place
    before: Place | None = None


_EMPTY = _Known(0, (), History(), 0, 0, (0, b""))


class MessageReader:
    """Parser of raw messages that reuses the messages and histories that it parsed before."""

    def __init__(
        self,
        identity: Identity,
        decode: Decode,
        ignore: Sequence[str | re.Pattern[str]] = (),
        caches: Caches | None = None,
        mark: str = "",
    ) -> None:
        """`decode` parses the format's messages. With `mark`, equal messages of two formats get different digests.
        Digests leave out the text that matches `ignore`, such as a date that a client injects."""
        caches = caches or Caches()
        self._digest = identity.digester(b"message", *([mark.encode()] if mark else ()))
        self._decode = decode
        self._ignore = tuple(re.compile(pattern) for pattern in ignore)
        self._messages: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        """Messages of cached histories, by their raw bytes. If a client edits its history, Steno still finds most
        messages here."""
        self._histories: Cache[Place, _Known] = Cache(caches, "histories", lambda _, known: known.weight)
        self.beginnings = Beginnings(caches)
        """Cached prefixes of request bodies, for `WireFormat.read`."""
        self._lock = caches.lock  # Long histories are read in worker threads.

    def unread_bytes(self, raw_messages: Sequence[bytes]) -> int:
        known = self._longest_known(raw_messages).length
        return sum(len(raw) for raw in raw_messages[known:] if raw not in self._messages)

    def read(self, raw_messages: Sequence[bytes]) -> History:
        """Return the parsed history and cache it. Raises `Unreadable`."""
        known = self._longest_known(raw_messages)
        length = known.length
        if length == len(raw_messages):
            return self._used(known).history if length else History()
        new = [self._messages.get(raw) or self._remember(self._read(raw)) for raw in raw_messages[length:]]
        if not length and (turn := _latest_turn(new)):
            known, new = _grown(_EMPTY, new[:turn]), new[turn:]
            length = turn
        now = _grown(known, new)
        with self._lock:
            self._drop(now.place)
            if known.before is not None:
                self._drop(known.before)
            if length:  # The next request may edit the latest turn and extend this shorter history again.
                self._keep(known, PLACE_BYTES * length)
            self._histories.keep(now.place, now)
        return now.history

    def _used(self, known: _Known) -> _Known:
        """Count all bytes of a history in its own entry. Until now, the entry of a longer history counted them. The
        cache may drop the longer history first."""
        with self._lock:
            self._keep(known, known.size, known.before)
        return known

    def _keep(self, known: _Known, weight: int, before: Place | None = None) -> None:
        if known.weight != weight or known.before != before:
            known = _Known(known.length, known.raw_messages, known.history, known.size, weight, known.place, before)
        self._histories.keep(known.place, known)

    def _drop(self, place: Place) -> None:
        """Drop a history, and also the shorter history that it extends, whose bytes only the dropped entry counted."""
        gone = self._histories.pop(place)
        if gone is not None and gone.before is not None:
            self._drop(gone.before)

    def _longest_known(self, raw_messages: Sequence[bytes]) -> _Known:
        """Return the longest cached history that is a prefix of these messages."""
        find = self._histories.get  # Atomic, so it needs no lock.
        for length in range(len(raw_messages), max(0, len(raw_messages) - MOST_NEW), -1):
            known = find((length, raw_messages[length - 1]))
            if known is not None and known.raw_messages == tuple(raw_messages[:length]):
                return known
        return _EMPTY

    def _remember(self, message: Message) -> Message:
        """Cache and return a message, or return the equal message that another thread cached first."""
        with self._lock:
            return self._messages.setdefault(message.raw, message)

    def _read(self, raw: bytes) -> Message:
        draft = self._decode(raw, self._ignore)
        # No lock: no other thread has this new message yet.
        msgspec.structs.force_setattr(draft.message, "digest", self._digest(draft.canonical))
        return draft.message


def _grown(known: _Known, new: Sequence[Message]) -> _Known:
    history = known.history.grown(new) if known.length else History(new)
    raw, size = (*known.raw_messages, *map(_raw, new)), known.size
    for message in new:
        # `getsizeof`, because one wide character makes a whole string up to four times as large.
        held = (*message.texts, *message.thoughts, *(call.arguments for call in message.calls))
        size += len(message.raw) + sum(map(getsizeof, held)) + MESSAGE_BYTES + PLACE_BYTES
    before = known.place if known.length else None
    return _Known(len(raw), raw, history, size, size, (len(raw), raw[-1]), before)


_raw = attrgetter("raw")


def _latest_turn(messages: Sequence[Message]) -> int:
    """Return the index at which the latest turn begins; 0 if there is no earlier turn."""
    return next((index for index in range(len(messages) - 1, 0, -1) if messages[index].kind is Kind.USER), 0)


SHORTEST = 32_768
"""Minimum bytes of a cached prefix. Finding a shorter prefix would take as long as parsing it."""
SEPARATORS = (b",", b", ")
"""Usual separators between the elements of an array."""
MOST_COMPARED = 500
"""Maximum number of prefixes that Steno compares with a body, the longest first. The comparisons take about 0.1 ms."""
LAST_BYTES = 64
"""Number of bytes at a prefix's end. These bytes and the prefix's length are the cache key of the prefix."""
ELEMENT_BYTES = 16
JOINED = 64
"""Number of elements that Steno joins and compares with a body at once. Joining is faster than comparing each element,
but copies the elements."""

_BodyPlace = tuple[int, bytes]


class Beginning(Struct, frozen=True):
    head: bytes
    elements: tuple[bytes, ...]
    separator: bytes
    stop: int
    """Index in the body at which the prefix's last element ends."""
    marks: int
    """Number of marks in the prefix, as `holds_more_values` counts them."""
    weight: int
    """Bytes of this entry. Bytes shared with a longer cached prefix count only in that prefix's entry."""
    before: _BodyPlace | None = None

    def begins(self, body: bytes) -> bool:
        return body.startswith(self.head) and _stop(body, len(self.head), self.separator, self.elements) is not None

    def read_rest(self, body: bytes) -> RawObject:
        """Parse a body that has this prefix. Raises `Unreadable`."""
        return LengthenedObject(body, len(self.head), self.stop, self.elements)


class Beginnings:
    """Cache of the prefixes of recent bodies. Safe to use from several threads."""

    def __init__(self, caches: Caches | None = None) -> None:
        caches = caches or Caches()
        self._kept: Cache[_BodyPlace, Beginning] = Cache(
            caches, "bodies", lambda _, beginning: beginning.weight, lambda place, _: self._unlist(place)
        )
        self._stops: list[int] = []
        """Lengths of the cached prefixes, ascending."""
        self._lock = caches.lock

    def find(self, body: bytes) -> Beginning | None:
        """Return the longest cached prefix of a body."""
        if len(body) < SHORTEST:
            return None
        with self._lock:
            above = bisect_right(self._stops, len(body))
            places = [
                (stop, body[max(0, stop - LAST_BYTES) : stop])
                for stop in self._stops[max(0, above - MOST_COMPARED) : above]
            ]
            found = [self._kept.get(place) for place in reversed(places)]
        return next((beginning for beginning in found if beginning is not None and beginning.begins(body)), None)

    def unread_bytes(self, body: bytes) -> int:
        found = self.find(body)
        return len(body) - (found.stop if found is not None else 0)

    def keep(self, source: RawObject, name: str, elements: tuple[bytes, ...], before: Beginning | None) -> None:
        """Cache a body up to the end of its array `name`. `before`: the cached prefix that the body extends."""
        if len(source.text) < SHORTEST or len(elements) == (len(before.elements) if before else 0):
            return
        beginning = _beginning(source, name, elements) if before is None else _body_grown(source, elements, before)
        if beginning is None or beginning.stop < SHORTEST:
            return
        with self._lock:
            self._drop(_body_place(beginning))
            if before is not None:
                if before.before is not None:
                    self._drop(before.before)
                # The next request may edit the latest turn and extend this shorter prefix again.
                self._keep(replace(before, weight=ELEMENT_BYTES * len(before.elements), before=None))
            self._keep(beginning)

    def _keep(self, beginning: Beginning) -> None:
        place = _body_place(beginning)
        self._drop(place)
        insort(self._stops, beginning.stop)
        self._kept.keep(place, beginning)

    def _drop(self, place: _BodyPlace) -> None:
        """Drop a prefix, and also the shorter prefix that it extends, whose bytes only the dropped entry counted."""
        if (gone := self._kept.pop(place)) is not None:
            self._unlist(place)
            if gone.before is not None:
                self._drop(gone.before)

    def _unlist(self, place: _BodyPlace) -> None:
        del self._stops[bisect_left(self._stops, place[0])]


def _beginning(source: RawObject, name: str, elements: tuple[bytes, ...]) -> Beginning | None:
    body, start = source.text, source.members[name].start + 1
    for separator in SEPARATORS:
        if (stop := _stop(body, start, separator, elements)) is not None:
            weight = stop + ELEMENT_BYTES * len(elements)
            return Beginning(body[:start], elements, separator, stop, count_marks(body, 0, stop), weight)
    return None


def _stop(body: bytes, start: int, separator: bytes, elements: tuple[bytes, ...]) -> int | None:
    """Return the end of these elements if they are in the body from `start` on, else None."""
    for first in range(0, len(elements), JOINED):
        few = elements[first : first + JOINED]
        joined = separator.join((b"", *few) if first else few)
        if not body.startswith(joined, start):
            return None
        start += len(joined)
    return start


def _body_grown(source: RawObject, elements: tuple[bytes, ...], before: Beginning) -> Beginning | None:
    body, separator = source.text, before.separator
    new = b"".join(separator + element for element in elements[len(before.elements) :])
    if not body.startswith(new, before.stop):
        return None
    stop = before.stop + len(new)
    marks = before.marks + count_marks(body, before.stop, stop)
    grown = (*before.elements, *elements[len(before.elements) :])
    weight = stop + ELEMENT_BYTES * len(grown)
    return Beginning(before.head, grown, separator, stop, marks, weight, _body_place(before))


def _body_place(beginning: Beginning) -> _BodyPlace:
    ends = [element[-LAST_BYTES:] for element in beginning.elements[-LAST_BYTES:]]
    return beginning.stop, (beginning.head[-LAST_BYTES:] + beginning.separator.join(ends))[-LAST_BYTES:]
