"""Rows: how a statement names those of a tenant, how many are looked up by their keys, and what becomes of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Executable, FromClause, Row, and_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.batches import batches
from app.store.clock import moment

T = TypeVar("T")


def owned(table: FromClause, tenant: str, **columns: object) -> ColumnElement[bool]:
    """Condition of the tenant's rows with these values in these columns, or one of them where they are a list."""
    named = ((table.c[name], value) for name, value in columns.items())
    wanted = (column.in_(value) if isinstance(value, list) else column == value for column, value in named)
    return and_(table.c.tenant == tenant, *wanted)


async def rows_of(
    connection: AsyncConnection, keys: Sequence[T], statement: Callable[[list[T]], Executable]
) -> list[Row[Any]]:
    """Rows that a statement returns for many keys, a batch of them at a time."""
    found: list[Row[Any]] = []
    for batch in batches(keys):
        found += await connection.execute(statement(batch))
    return found


def members(row: Row[Any], *left_out: str) -> dict[str, Any]:
    """The values of a row by the names of their columns, but for some; lists as tuples, and times as such."""
    values = row._mapping.items()  # noqa: SLF001 - SQLAlchemy's public name for it
    return {name: _value(name, value) for name, value in values if name not in left_out}


def _value(name: str, value: Any) -> Any:
    if name.endswith("_at") and value is not None:
        return moment(value)
    return tuple(value) if isinstance(value, list) else value
