"""Long lists of keys, cut to what one statement takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from sqlalchemy import Column, ColumnElement, LargeBinary, any_, func, literal, select, type_coerce
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.identity import DIGEST_BYTES

T = TypeVar("T")

# A few sizes only: each length of an IN list is another statement to parse and prepare.
_SIZES = (8, 64, 512, 2048)


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    """The keys in lists of few different lengths, filled up by repeating a key."""
    for start in range(0, len(keys), _SIZES[-1]):
        batch = list(keys[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(batch))
        yield batch + batch[-1:] * (size - len(batch))


def among(
    connection: AsyncConnection, column: Column[bytes], digests: Sequence[bytes]
) -> Iterator[ColumnElement[bool]]:
    """Conditions, each for a statement of its own, that together find the rows with one of the digests."""
    if connection.dialect.name != "postgresql":
        for batch in batches(digests):
            yield column.in_(batch)
    elif digests:
        yield column == any_(_split(b"".join(digests)))


def _split(joined: bytes) -> ColumnElement[Sequence[bytes]]:
    """The digests as an array that the server makes.

    One parameter, and one plan for any number of them: with a parameter each, or an array of them, thousands of digests
    take longer to encode and to plan for than to find.
    """
    whole = literal(joined, LargeBinary)
    at = func.generate_series(1, func.length(whole), DIGEST_BYTES).column_valued("at")
    digests = select(func.substring(whole, at, DIGEST_BYTES)).scalar_subquery()
    return type_coerce(func.array(digests), ARRAY(LargeBinary))
