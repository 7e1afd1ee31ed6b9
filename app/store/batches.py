"""Long lists of keys, cut to what one statement takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    BindParameter,
    Column,
    ColumnElement,
    LargeBinary,
    Row,
    Select,
    any_,
    bindparam,
    func,
    literal,
    select,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.identity import DIGEST_BYTES

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
    """The rows with one of many digests, which are sent as one parameter.

    With a parameter each thousands of them take longer to write, to parse and to plan for than to find.
    """

    def __init__(self, column: Column[bytes], rows: Callable[[ColumnElement[bool]], Select[Any]]) -> None:
        """`rows` puts the condition into a statement, whose other parameters `find` gets by name."""
        joined = bindparam("digests", type_=LargeBinary)
        self._by_array = rows(column == any_(_as_array(joined)))
        self._by_rows = rows(column.in_(_as_rows(joined)))

    async def find(
        self, connection: AsyncConnection, digests: Collection[bytes], **parameters: object
    ) -> Sequence[Row[Any]]:
        """Return the rows with these digests, in no order. No digest may stand twice."""
        if not digests:
            return []
        statement = self._by_array if connection.dialect.name == "postgresql" else self._by_rows
        found = await connection.execute(statement, {**parameters, "digests": b"".join(digests)})
        return list(found)


def _as_array(joined: BindParameter[bytes]) -> ColumnElement[Sequence[bytes]]:
    """The digests as an array that PostgreSQL makes: one plan for any number of them."""
    at = func.generate_series(1, func.length(joined), DIGEST_BYTES).column_valued("at")
    digests = select(func.substring(joined, at, DIGEST_BYTES)).scalar_subquery()
    return type_coerce(func.array(digests), ARRAY(LargeBinary))


def _as_rows(joined: BindParameter[bytes]) -> Select[tuple[bytes]]:
    """The digests as rows that SQLite makes."""
    at = select(literal(1).label("start")).cte("at", recursive=True, nesting=True)
    at = at.union_all(select(at.c.start + DIGEST_BYTES).where(at.c.start + DIGEST_BYTES <= func.length(joined)))
    return select(func.substr(joined, at.c.start, DIGEST_BYTES))
