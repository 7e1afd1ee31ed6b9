"""Beginnings: a body that begins like one that was read before is read from there on.

A client sends its whole history each time, and most write it alike each time: what came in the last request, byte for
byte, then what is new. So the longest known beginning is looked for and compared, which takes a twentieth of the time
of reading it. Where a client writes it otherwise, nothing is found, and the body is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.formats.members import LengthenedObject, RawObject, count_marks
from app.runtime.caches import Cache, Caches

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
PLACE_BYTES = 16
"""Size in memory of an element's place."""

Place = tuple[int, bytes]


class Beginning(Struct, frozen=True):
    """A body up to the end of the last element of one of its arrays."""

    head: bytes
    """Bytes up to the first element."""
    elements: tuple[bytes, ...]
    separator: bytes
    stop: int
    """Place at which the last element ends in the body."""
    marks: int
    """Number of marks that stand before values in it, in strings too: see `holds_more_values`."""
    weight: int
    """Bytes that count for it: not those of the elements that the one which grew out of it holds, too."""
    before: Place | None = None
    """Key of the beginning that it grew out of."""

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
        self._kept: Cache[Place, Beginning] = caches.cache(
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
        """Bytes of a body that have to be read."""
        found = self.find(body)
        return len(body) - (found.stop if found is not None else 0)

    def keep(self, source: RawObject, name: str, elements: tuple[bytes, ...], before: Beginning | None) -> None:
        """Keep where a body's array `name` ends. `before` is the beginning that it was found to have, which grew."""
        if len(source.text) < SHORTEST or len(elements) == (len(before.elements) if before else 0):
            return
        beginning = _beginning(source, name, elements) if before is None else _grown(source, elements, before)
        if beginning is None or beginning.stop < SHORTEST:
            return
        with self._lock:
            self._drop(_place(beginning))
            if before is not None:
                if before.before is not None:
                    self._drop(before.before)
                # The latest turn may be edited, or sent to several: then it grows from there again.
                self._keep(replace(before, weight=PLACE_BYTES * len(before.elements), before=None))
            self._keep(beginning)

    def _keep(self, beginning: Beginning) -> None:
        place = _place(beginning)
        self._drop(place)
        insort(self._stops, beginning.stop)
        self._kept.keep(place, beginning)

    def _drop(self, place: Place) -> None:
        """Drop a beginning with the one that it grew out of: what that holds was counted here."""
        if (gone := self._kept.pop(place)) is not None:
            self._unlist(place)
            if gone.before is not None:
                self._drop(gone.before)

    def _unlist(self, place: Place) -> None:
        del self._stops[bisect_left(self._stops, place[0])]


def _beginning(source: RawObject, name: str, elements: tuple[bytes, ...]) -> Beginning | None:
    body, start = source.text, source.members[name].start + 1
    for separator in SEPARATORS:
        if (stop := _stop(body, start, separator, elements)) is not None:
            weight = stop + PLACE_BYTES * len(elements)
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


def _grown(source: RawObject, elements: tuple[bytes, ...], before: Beginning) -> Beginning | None:
    body, separator = source.text, before.separator
    new = b"".join(separator + element for element in elements[len(before.elements) :])
    if not body.startswith(new, before.stop):
        return None
    stop = before.stop + len(new)
    marks = before.marks + count_marks(body, before.stop, stop)
    grown = (*before.elements, *elements[len(before.elements) :])
    weight = stop + PLACE_BYTES * len(grown)
    return Beginning(before.head, grown, separator, stop, marks, weight, _place(before))


def _place(beginning: Beginning) -> Place:
    ends = [element[-LAST_BYTES:] for element in beginning.elements[-LAST_BYTES:]]
    return beginning.stop, (beginning.head[-LAST_BYTES:] + beginning.separator.join(ends))[-LAST_BYTES:]
