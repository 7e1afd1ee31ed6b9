"""Bodies of requests, as far as they are read alike in all formats."""

from __future__ import annotations

from collections.abc import Iterable

from app.wire.beginnings import Beginning, Beginnings
from app.wire.format import BodyBounds
from app.wire.members import RawObject, TooManyValues, holds_more_values


def source_of(body: bytes, bounds: BodyBounds, beginnings: Beginnings | None) -> tuple[RawObject, Beginning | None]:
    """The body's members, and the beginning that it was found to have. Raises `Unreadable`."""
    known = beginnings.find(body) if beginnings is not None else None
    start, marks = (known.stop, known.marks) if known is not None else (0, 0)
    # Before anything is decoded: each value takes many times its bytes.
    if holds_more_values(body, bounds.values, start, marks):
        raise TooManyValues(f"It holds more than {bounds.values} values. Send fewer, or raise limits.values.")
    return (RawObject(body) if known is None else known.read_rest(body)), known


def declared_in(source: RawObject, members: Iterable[str]) -> bytes:
    """The members, as received: what they cost is remembered by them."""
    return b"".join(b"%b:%b," % (name.encode(), raw) for name in members if (raw := source.raw(name)))
