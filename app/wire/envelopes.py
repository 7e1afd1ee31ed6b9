"""Envelopes: all that a body says beside its messages. A client says the same with each turn: it is read once.

A body that begins and ends as one that was read, with an array between, is that body with another array: JSON puts a
value in the place of another. So only the array is read, and the request is like the one before in all else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, TypeVar

from msgspec import Struct

from app.runtime.caches import Cache, Caches
from app.wire.members import RawObject, ResizedObject, Unreadable, holds_more_values, split_array

SHORT = 32_768
"""Bytes of a body from which on more is known: see `beginnings`."""
MOST_ALIKE = 4
"""Envelopes that begin alike, such as those of plain and of streamed requests: the latest are kept."""
ENTRY_BYTES = 4_000
"""Fixed overhead of a cache entry in bytes."""

R = TypeVar("R")


class _Envelope(Struct, Generic[R], frozen=True):
    head: bytes
    """Bytes up to the array."""
    tail: bytes
    """Bytes behind the array."""
    rest: RawObject
    """The body with an empty array."""
    request: R


Enveloped = tuple[R, RawObject, list[bytes]]
"""The request that it is like, its members, and the elements of its array."""


class Envelopes(Generic[R]):
    """The latest ones of short bodies. Not to be used by several threads."""

    def __init__(self, caches: Caches) -> None:
        self._kept: Cache[bytes, tuple[_Envelope[R], ...]] = caches.cache("bodies", _held_bytes)
        """Envelopes by the bytes that stand before the array's name."""

    def find(self, body: bytes, name: str, most_values: int) -> Enveloped[R] | None:
        """None where such an envelope was not seen, or holds no array that can be read."""
        if len(body) >= SHORT or holds_more_values(body, most_values):
            return None
        for envelope in self._kept.use(body[: body.find(_quoted(name))]) or ():
            start, stop = len(envelope.head), len(body) - len(envelope.tail)
            if start < stop and body.startswith(envelope.head) and body.endswith(envelope.tail):
                try:
                    elements = split_array(body[start:stop])
                except Unreadable:
                    return None
                return envelope.request, ResizedObject(body, envelope.rest, name, start, stop), elements
        return None

    def keep(self, source: RawObject, name: str, like: Callable[[RawObject], R]) -> None:
        """Keep the request that was read of a body with these members, made with an empty array, so that the body need
        not be kept."""
        body = source.text
        if len(body) >= SHORT or source.members[name].key_start != len(before := body[: body.find(_quoted(name))]):
            return
        member = source.members[name]
        head, tail = body[: member.start], body[member.stop :]
        alike = [each for each in self._kept.get(before) or () if (each.head, each.tail) != (head, tail)]
        rest = RawObject(b"%b[]%b" % (head, tail))
        envelope = _Envelope(head, tail, rest, like(rest))
        self._kept.keep(before, (envelope, *alike[: MOST_ALIKE - 1]))


@lru_cache
def _quoted(name: str) -> bytes:
    return b'"%b"' % name.encode()


def _held_bytes(before: bytes, envelopes: tuple[_Envelope[R], ...]) -> int:
    return len(before) + sum(3 * (len(each.head) + len(each.tail)) + ENTRY_BYTES for each in envelopes)
