"""Long lists of keys, cut to what one statement takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, LargeBinary, Row, Select, any_, bindparam, func, select, type_coerce
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.history.identity import DIGEST_BYTES

T = TypeVar("T")

# A few sizes only: each length of an IN list is another statement to parse and prepare.
_SIZES = (8, 64, 512, 2048)


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    """The keys in lists of few different lengths, filled up by repeating a key."""
    for start in range(0, len(keys), _SIZES[-1]):
        batch = list(keys[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(batch))
        yield batch + batch[-1:] * (size - len(batch))


class Lookup:
    """The rows with one of many digests. Its statements are built once: that takes longer than to send one."""

    def __init__(self, column: Column[bytes], rows: Callable[[ColumnElement[bool]], Select[Any]]) -> None:
        """`rows` puts the condition into a statement, whose other parameters `find` gets by name."""
        self._joined = rows(column == any_(_split(bindparam("digests", type_=LargeBinary))))
        self._listed = rows(column.in_(bindparam("digests", expanding=True)))

    async def find(
        self, connection: AsyncConnection, digests: Collection[bytes], **parameters: object
    ) -> list[Row[Any]]:
        """In no order; as many statements as the digests take."""
        found: list[Row[Any]] = []
        if connection.dialect.name != "postgresql":
            for batch in batches(list(digests)):
                found += await connection.execute(self._listed, {**parameters, "digests": batch})
        elif digests:
            found += await connection.execute(self._joined, {**parameters, "digests": b"".join(digests)})
        return found


def _split(joined: ColumnElement[bytes]) -> ColumnElement[Sequence[bytes]]:
    """The digests as an array that the server makes.

    One parameter, and one plan for any number of them: with a parameter each, or an array of them, thousands of digests
    take longer to encode and to plan for than to find.
    """
    at = func.generate_series(1, func.length(joined), DIGEST_BYTES).column_valued("at")
    digests = select(func.substring(joined, at, DIGEST_BYTES)).scalar_subquery()
    return type_coerce(func.array(digests), ARRAY(LargeBinary))
