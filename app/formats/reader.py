"""Reading: raw messages to a history, each message once, and a body from where it is new.

A client sends its whole history each time, and most write it alike each time: what came in the last request, byte for
byte, then what is new. So the longest known beginning of a body is looked for and compared, which takes a twentieth of
the time of reading it. Where a client writes it otherwise, nothing is found, and the body is read.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
from app.formats.raw_json import (
    LengthenedObject,
    RawObject,
    count_marks,
    holds_more_values,
    told_apart,
)
from app.runtime.caches import Cache, Caches

_decode = msgspec.json.Decoder().decode
written_alike = msgspec.json.Encoder(order="deterministic").encode
"""Equal values as equal bytes."""
NOTHING: tuple[object, ...] = (None, "", [], {})
MOST_ARGUMENT_VALUES = 200_000
"""Most values of a call's arguments; what holds more counts as text."""
LONGEST_MEANT = 1 << 20
"""Characters of arguments; longer ones count as text, too: other requests wait while it is read or written."""


def meant_by(arguments: str) -> msgspec.Raw | str:
    """JSON inside a string, as its values; written again at once: one call's values are held at a time."""
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
    """The members that say something: null, empty and missing are the same."""
    return {name: said for name, said in members.items() if said not in NOTHING}


def canonical_part(part: Any, volatile: Container[str], ignore: Sequence[re.Pattern[str]]) -> Any:
    """Meaning of a part of a content. `ignore`: volatile text."""
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key not in volatile}
    if isinstance(text := kept.get("text"), str):
        kept["text"] = without(text, ignore)
    return kept


def canonical_content(
    content: Any, volatile: Container[str], types: Container[object], ignore: Sequence[re.Pattern[str]]
) -> Any:
    """Meaning of a content: a text, and one part of these `types` with that text, are the same."""
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
    """The kind of a message, and how it reads, where a user's may be his program's. `plain`: it holds texts only."""
    if kind is not Kind.USER or not plain:
        return kind, ResultConfidence.NONE
    return (Kind.CLIENT, ResultConfidence.NONE) if is_client_text(texts) else (kind, result_confidence(texts))


class Draft(Struct, frozen=True):
    """A message as a format reads it, without its digest."""

    message: Message
    canonical: bytes
    """Bytes of which its digest is made: equal for all spellings of the same meaning, without what moves between
    turns."""


Decode = Callable[[bytes, Sequence[re.Pattern[str]]], Draft]
"""Reads a raw message, and leaves volatile text that the patterns find out of what it means.

Raises `Unreadable` where it is none.
"""


MOST_NEW = 32
"""Most messages that may have come since a history was seen last: with more, each is looked up by itself."""
MESSAGE_BYTES = 700
"""Size in memory of a message beside its bytes, which are held twice: as they came, and as texts."""
LONE = b"lone surrogates"
"""Ending of the meaning of what holds lone surrogates: nothing else means the same."""
PLACE_BYTES = 80
"""Size in memory of a message's places in a history, and in what follows from that."""


Place = tuple[int, bytes]


class _Known(Struct, frozen=True):
    length: int
    raw_messages: tuple[bytes, ...]
    history: History
    size: int
    weight: int
    """Bytes that count for it: not what the one that grew out of it holds, too."""
    place: Place
    before: Place | None = None


_EMPTY = _Known(0, (), History(), 0, 0, (0, b""))


class MessageReader:
    """Raw messages to core messages; what was read before is not read or digested again."""

    def __init__(
        self,
        identity: Identity,
        decode: Decode,
        ignore: Sequence[str] = (),
        caches: Caches | None = None,
        mark: str = "",
    ) -> None:
        """`decode` reads the format's messages, `mark` makes its digests differ from others. `ignore`: patterns of
        volatile text, such as a date that a client injects, which digests leave out. `caches` keeps what was read."""
        caches = caches or Caches()
        self._digest = identity.digester(b"message", *([mark.encode()] if mark else ()))
        self._decode = decode
        self._ignore = tuple(re.compile(pattern) for pattern in ignore)
        self._messages: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        """Messages of cached histories, by their bytes: an edited history has most of them."""
        self._histories: Cache[Place, _Known] = caches.cache("histories", lambda _, known: known.weight)
        self.beginnings = Beginnings(caches)
        """Beginnings of the bodies that the messages came in: a reader of those may use them."""
        self._lock = caches.lock  # Long histories are read in worker threads.

    def unread_bytes(self, raw_messages: Sequence[bytes]) -> int:
        known = self._longest_known(raw_messages).length
        return sum(len(raw) for raw in raw_messages[known:] if raw not in self._messages)

    def digests(self, raw_messages: Sequence[bytes]) -> Iterator[tuple[Kind, bytes]]:
        """Yield kind and digest of each message without caching it. Raises `Unreadable`."""
        for raw in raw_messages:
            message = self._messages.get(raw) or self._read(raw)
            yield message.kind, message.digest

    def read(self, raw_messages: Sequence[bytes]) -> History:
        """Raises `Unreadable` where an element is no message."""
        known = self._longest_known(raw_messages)
        length = known.length
        if length == len(raw_messages):
            return self._used(known).history if length else History()
        unread = raw_messages[length:]
        held = [*map(self._messages.get, unread)]
        new = [message or self._remember(self._read(raw)) for raw, message in zip(unread, held, strict=True)]
        if not length and (turn := _latest_turn(new)):
            known, new = _grown(_EMPTY, new[:turn]), new[turn:]
            length = turn
        now = _grown(known, new)
        with self._lock:
            self._drop(now.place)
            if known.before is not None:
                self._drop(known.before)
            if length:  # The latest turn may be edited, or sent to several: then it grows from there again.
                self._keep(known, PLACE_BYTES * length)
            self._histories.keep(now.place, now)
        return now.history

    def _used(self, known: _Known) -> _Known:
        """Count a history by itself from here on: it may stay longer than the one that grew out of it."""
        with self._lock:
            self._keep(known, known.size, known.before)
        return known

    def _keep(self, known: _Known, weight: int, before: Place | None = None) -> None:
        """Keep a history, which may count for less than it did, or for more."""
        if known.weight != weight or known.before != before:
            known = _Known(known.length, known.raw_messages, known.history, known.size, weight, known.place, before)
        self._histories.keep(known.place, known)

    def _drop(self, place: Place) -> None:
        """Drop a history with the one that it grew out of: what that holds was counted here."""
        gone = self._histories.pop(place)
        if gone is not None and gone.before is not None:
            self._drop(gone.before)

    def _longest_known(self, raw_messages: Sequence[bytes]) -> _Known:
        """The longest history that was read and that these messages begin with."""
        find = self._histories.get  # One step: no other thread comes between.
        for length in range(len(raw_messages), max(0, len(raw_messages) - MOST_NEW), -1):
            known = find((length, raw_messages[length - 1]))
            if known is not None and known.raw_messages == tuple(raw_messages[:length]):
                return known
        return _EMPTY

    def _remember(self, message: Message) -> Message:
        """The message, or an equal one that another thread was faster to keep."""
        with self._lock:
            if (held := self._messages.get(message.raw)) is not None:
                return held
            self._messages[message.raw] = message
        return message

    def _read(self, raw: bytes) -> Message:
        draft = self._decode(raw, self._ignore)
        message: Any = draft.message
        canonical = draft.canonical
        if (apart := told_apart(raw)) is not raw and (told := self._decode(apart, self._ignore).canonical) != canonical:
            canonical = told + LONE
        # It was made just now and is not shared yet.
        msgspec.structs.force_setattr(message, "digest", self._digest(canonical))
        return draft.message


def _grown(known: _Known, new: Sequence[Message]) -> _Known:
    history = known.history.grown(new) if known.length else History(new)
    raw, size = (*known.raw_messages, *map(_raw, new)), known.size
    for message in new:
        # Of its own: one character out of a thousand may make all of a text four times as large.
        held = (*message.texts, *message.thoughts, *(call.arguments for call in message.calls))
        size += len(message.raw) + sum(map(getsizeof, held)) + MESSAGE_BYTES + PLACE_BYTES
    before = known.place if known.length else None
    return _Known(len(raw), raw, history, size, size, (len(raw), raw[-1]), before)


_raw = attrgetter("raw")


def _latest_turn(messages: Sequence[Message]) -> int:
    """Place at which the latest turn begins; 0 where it is the first one, or there is none."""
    return next((index for index in range(len(messages) - 1, 0, -1) if messages[index].kind is Kind.USER), 0)


SHORTEST = 32_768
"""Bytes of a beginning that is kept: reading a shorter one takes no longer than looking for it."""
SEPARATORS = (b",", b", ")
"""Separators that programs write between the elements of an array."""
MOST_COMPARED = 500
"""Beginnings that are looked at for one body, the longest first, in a tenth of a millisecond. Many conversations may be
as long as this one."""
LAST_BYTES = 64
"""Number of last bytes by which, with its length, a beginning is found."""
JOINED = 128
"""Elements that are compared at once: all in one piece would need fresh memory for all of it."""
LONGEST_JOINED = 1 << 18
"""Bytes that they have together; longer ones are compared one by one, without a copy."""
ELEMENT_BYTES = 16

_BodyPlace = tuple[int, bytes]


class Beginning(Struct, frozen=True):
    head: bytes
    elements: tuple[bytes, ...]
    separator: bytes
    stop: int
    """Place at which the last element ends in the body."""
    marks: int
    """Number of marks that stand before values in it, in strings too: see `holds_more_values`."""
    weight: int
    """Bytes that count for it: not those of the elements that the one which grew out of it holds, too."""
    before: _BodyPlace | None = None

    def begins(self, body: bytes) -> bool:
        return body.startswith(self.head) and _stop(body, len(self.head), self.separator, self.elements) is not None

    def read_rest(self, body: bytes) -> RawObject:
        """A body that begins so. Raises `Unreadable`."""
        start = len(self.head)
        return LengthenedObject(body, b'%b""%b' % (self.head, body[self.stop :]), start, self.elements)


class Beginnings:
    """The latest ones. Safe to use from several threads."""

    def __init__(self, caches: Caches | None = None) -> None:
        caches = caches or Caches()
        self._kept: Cache[_BodyPlace, Beginning] = caches.cache(
            "bodies", lambda _, beginning: beginning.weight, lambda place, _: self._unlist(place)
        )
        self._stops: list[int] = []
        """Ascending."""
        self._lock = caches.lock

    def find(self, body: bytes) -> Beginning | None:
        """The longest one that the body goes on from."""
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
        """Keep where a body's array `name` ends. `before` is the beginning that it was found to have, which grew."""
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
                # The latest turn may be edited, or sent to several: then it grows from there again.
                self._keep(replace(before, weight=ELEMENT_BYTES * len(before.elements), before=None))
            self._keep(beginning)

    def _keep(self, beginning: Beginning) -> None:
        place = _body_place(beginning)
        self._drop(place)
        insort(self._stops, beginning.stop)
        self._kept.keep(place, beginning)

    def _drop(self, place: _BodyPlace) -> None:
        """Drop a beginning with the one that it grew out of: what that holds was counted here."""
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
    """End of these elements in a body that has them there; None where it has others, or writes them otherwise."""
    for first in range(0, len(elements), JOINED):
        few = elements[first : first + JOINED]
        if sum(map(len, few)) <= LONGEST_JOINED:
            pieces: Sequence[bytes] = [separator.join((b"", *few) if first else few)]
        else:
            pieces = [piece for element in few for piece in (separator, element)][0 if first else 1 :]
        for piece in pieces:
            if not body.startswith(piece, start):
                return None
            start += len(piece)
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
