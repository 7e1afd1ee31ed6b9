"""Pages of a list, oldest or newest first, that stay right while rows come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct
from sqlalchemy import FromClause, Row, Select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.errors import UnknownCursor

T = TypeVar("T")
Order = Literal["asc", "desc"]


class Page(Struct, Generic[T], frozen=True):
    """Part of a list; `last_id` as `after` gives the next part."""

    data: Sequence[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Paging(Struct, frozen=True):
    """Part of a list that is asked for."""

    limit: int
    """Most entries of the page."""
    after: str | None = None
    """The `last_id` of the page before; None for the first one."""
    order: Order = "asc"


async def read_page(
    connection: AsyncConnection,
    table: FromClause,
    rows: Select[Any],
    build: Callable[[Row[Any]], T],
    paging: Paging,
    by: Sequence[str] = ("created_at", "id"),
) -> Page[T]:
    """The rows after the cursor, in the order of the columns `by`. The cursor has to be one of the rows."""
    after, is_rising = paging.after, paging.order == "asc"
    keys = [table.c[name] for name in by]
    position = tuple_(*keys)
    if after is not None:
        cursor = (await connection.execute(rows.where(table.c.id == after))).first()
        if cursor is None:
            raise UnknownCursor(f"The list holds no {after!r} to continue after.")
        reached = tuple_(*(getattr(cursor, name) for name in by))
        rows = rows.where(position > reached if is_rising else position < reached)
    rows = rows.order_by(*(keys if is_rising else (key.desc() for key in keys))).limit(paging.limit + 1)
    found = (await connection.execute(rows)).all()
    shown = found[: paging.limit]
    return Page(
        data=[build(row) for row in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > paging.limit,
    )
