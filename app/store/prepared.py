"""Prepared statements: written once for each kind of database, for what is done several times a second.

SQLAlchemy works out with every execution which statement it is, and passes every value of every row through its type:
for what all requests leave behind, that takes longer than to store it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import aiosqlite
from sqlalchemy import ClauseElement, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.memory.bounded import BoundedMap
from app.store.tables import CleanText, clean, is_clean

Row = tuple[Any, ...]
Build = Callable[[AsyncConnection], ClauseElement]
"""A statement for the connection's kind of database."""
MOST_WRITTEN = 64
"""Forms of one insert, by the columns that are filled. A few are used."""


class Prepared:
    """A statement whose values the driver takes as they are: text has to be clean, and JSON written."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._written: dict[str, tuple[str, Sequence[str], dict[str, Any]]] = {}
        """For each kind of database the SQL, the parameters in their order, and those of them that are constants."""

    async def run(self, connection: AsyncConnection, **given: str) -> list[Row]:
        """With these parameters. What it finds."""
        dialect = connection.dialect
        if dialect.name not in self._written:
            compiled: Any = self._build(connection).compile(dialect=dialect)
            self._written[dialect.name] = str(compiled), compiled.positiontup, compiled.params
        sql, parameters, constants = self._written[dialect.name]
        values = {**constants, **given}
        return await _execute(connection, sql, tuple([values[name] for name in parameters]))


class PreparedInsert:
    """An insert of many rows. Whatever text they hold is stored clean, as `CleanText` has it."""

    def __init__(self, table: Table, build: Build, left_out: Sequence[str] = ()) -> None:
        """A row has a value for each column of the table in its order, but for those left out, which the statement
        sets itself. All parameters of the statement are of the row."""
        self._build = build
        self._columns = [column for column in table.columns if column.name not in left_out]
        self._written: BoundedMap[tuple[str, ...], str] = BoundedMap(MOST_WRITTEN)

    async def write(self, connection: AsyncConnection, rows: Sequence[Row]) -> None:
        """Needs a transaction, and a row at least."""
        names: list[str] = []
        filled: list[Sequence[Any]] = []
        for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
            # What no row fills is not written: to bind None costs SQLite's driver as much as ten texts.
            if values.count(None) < len(values):
                names.append(column.name)
                filled.append(_cleaned(values) if isinstance(column.type, CleanText) else values)
        await _execute(connection, self._sql(connection, names), list(zip(*filled, strict=True)))

    def _sql(self, connection: AsyncConnection, names: list[str]) -> str:
        key = (connection.dialect.name, *names)
        if (sql := self._written.use(key)) is None:
            sql = str(self._build(connection).compile(dialect=connection.dialect, column_keys=names))
            self._written.keep(key, sql)
        return sql


async def _execute(connection: AsyncConnection, sql: str, parameters: Row | list[Row]) -> list[Row]:
    """In the transaction that has begun: once, or with each of many rows."""
    if connection.dialect.name == "postgresql":
        result = await connection.exec_driver_sql(sql, parameters)
        return [tuple(row) for row in result] if result.returns_rows else []
    # SQLAlchemy makes a cursor, executes, fetches and closes, each by a task for the driver's thread.
    raw: Any = connection.sync_connection
    driver: aiosqlite.Connection = raw.connection.driver_connection
    try:
        if isinstance(parameters, tuple):
            return [tuple(row) for row in await driver.execute_fetchall(sql, parameters)]
        await driver.executemany(sql, parameters)
    except sqlite3.Error as error:
        raise DBAPIError.instance(None, None, error, sqlite3.Error, hide_parameters=True) from error
    return []


def _cleaned(texts: Sequence[str | None]) -> Sequence[str | None]:
    """The same, if all can be stored, as they nearly always can: they are looked at in one go."""
    if is_clean("".join(filter(None, texts))):
        return texts
    return [None if text is None else clean(text) for text in texts]
