"""Reading: raw messages to a history, each message once, and what a history begins with as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from sys import getsizeof
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from app.conversation.identity import Identity
from app.conversation.messages import History, Kind, Message
from app.formats.beginnings import Beginnings
from app.formats.surrogates import told_apart
from app.formats.types import Decode
from app.runtime.caches import Cache, Caches

MOST_NEW = 32
"""Most messages that may have come since a history was seen last: with more, each is looked up by itself."""
MESSAGE_BYTES = 700
"""Size in memory of a message beside its bytes, which are held twice: as they came, and as texts."""
LONE = b"lone surrogates"
"""Ending of the meaning of what holds lone surrogates: nothing else means the same."""
PLACE_BYTES = 80
"""Size in memory of a message's places in a history, and in what follows from that."""


Place = tuple[int, bytes]
"""Key of a history: the number of its messages, and the last one."""


class _Known(Struct, frozen=True):
    """A history that was read."""

    length: int
    raw_messages: tuple[bytes, ...]
    history: History
    size: int
    """Bytes that it holds."""
    weight: int
    """Bytes that count for it: not what the one that grew out of it holds, too."""
    place: Place
    before: Place | None = None
    """Key of the history that it grew out of."""


NOTHING = _Known(0, (), History(), 0, 0, (0, b""))


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
        """`decode` is that of the messages' format, `mark` sets its digests apart; `ignore` are patterns of volatile
        text, such as a date that a client injects: it is no part of what a message means. What is remembered is among
        `caches`."""
        caches = caches or Caches()
        self._digest = identity.digester(b"message", *([mark.encode()] if mark else ()))
        self._decode = decode
        self._ignore = tuple(re.compile(pattern) for pattern in ignore)
        self._messages: WeakValueDictionary[bytes, Message] = WeakValueDictionary()
        """Messages of the histories that are held, by their bytes: most of a history that was edited was read
        before."""
        self._histories: Cache[Place, _Known] = caches.cache("histories", lambda _, known: known.weight)
        self.beginnings = Beginnings(caches)
        """Beginnings of the bodies that the messages came in: whoever reads those may use them."""
        self._lock = caches.lock  # Long histories are read in worker threads.

    def unread_bytes(self, raw_messages: Sequence[bytes]) -> int:
        """Size of the messages that would have to be read."""
        known = self._longest_known(raw_messages).length
        return sum(len(raw) for raw in raw_messages[known:] if raw not in self._messages)

    def digests(self, raw_messages: Sequence[bytes]) -> Iterator[tuple[Kind, bytes]]:
        """Yield kind and digest of each message, of which nothing is held. Raises `Unreadable`."""
        for raw in raw_messages:
            message = self._messages.get(raw) or self._read(raw)
            yield message.kind, message.digest

    def read(self, raw_messages: Sequence[bytes]) -> History:
        """Raises `Unreadable` where an element is no message."""
        known = self._longest_known(raw_messages)
        length = known.length
        if length == len(raw_messages):
            return self._used(known).history if length else History()
        new = self._read_each(raw_messages[length:])
        if not length and (turn := _latest_turn(new)):
            known, new = _grown(NOTHING, new[:turn]), new[turn:]
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
        return NOTHING

    def _read_each(self, raw_messages: Sequence[bytes]) -> list[Message]:
        held = list(map(self._messages.get, raw_messages))
        return [message or self._remember(self._read(raw)) for raw, message in zip(raw_messages, held, strict=True)]

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
        # It was made just now and is nobody else's yet.
        msgspec.structs.force_setattr(message, "digest", self._digest(canonical))
        return draft.message


def _grown(known: _Known, new: Sequence[Message]) -> _Known:
    """The history that was read with what came after it."""
    history = known.history.grown(new) if known.length else History(new)
    raw, size = (*known.raw_messages, *map(_raw, new)), known.size
    for message in new:
        size += _held_bytes(message) + PLACE_BYTES
    before = known.place if known.length else None
    return _Known(len(raw), raw, history, size, size, (len(raw), raw[-1]), before)


_raw = attrgetter("raw")


def _latest_turn(messages: Sequence[Message]) -> int:
    """Place at which the latest turn begins; 0 where it is the first one, or there is none."""
    return next((index for index in range(len(messages) - 1, 0, -1) if messages[index].kind is Kind.USER), 0)


def _held_bytes(message: Message) -> int:
    """Bytes that it holds of its own: one character out of a thousand may make all of a text four times as large."""
    texts = sum(map(getsizeof, (*message.texts, *message.thoughts)))
    return len(message.raw) + texts + sum(getsizeof(call.arguments) for call in message.calls) + MESSAGE_BYTES
