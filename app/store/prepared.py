"""Prepared statements: written once for each kind of database, for what is done several times a second.

SQLAlchemy works out with every execution which statement it is, and passes every value of every row through its type:
for what all requests leave behind, that takes longer than to store it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiosqlite
from msgspec import Struct
from sqlalchemy import JSON, ClauseElement, Column, Table, Text, bindparam, cast, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from app.runtime.bounded import BoundedMap
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import CleanText, clean, is_clean

Row = tuple[Any, ...]
Build = Callable[[AsyncConnection], ClauseElement]
"""A statement for the connection's kind of database."""
Insert = postgresql.Insert | sqlite.Insert
_PREFIX = "of_"
"""Prefix of parameters: SQLAlchemy wants the names of columns for itself."""
Finish = Callable[[AsyncConnection, Insert], ClauseElement]
"""A function that adds to an insert what it does beyond inserting."""
MOST_ROWS = 2_000
"""Most rows of one statement, which may not take longer than a few seconds."""
MOST_WRITTEN = 64
"""Most forms of one insert, by the columns that are filled. A few are used."""


class Prepared:
    """A statement whose values the driver takes as they are: text has to be clean, and JSON written."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._written: dict[str, Written] = {}
        """The statement as SQL, by dialect."""

    async def run(self, connection: AsyncConnection, **given: str) -> list[Row]:
        """Execute with these parameters and return the rows."""
        dialect = connection.dialect
        if dialect.name not in self._written:
            self._written[dialect.name] = Written.of(self._build(connection), connection)
        return await self._written[dialect.name].run(connection, given)


class Written(Struct, frozen=True):
    """A statement as SQL."""

    sql: str
    parameters: Sequence[str]
    """Names of the parameters in their order."""
    constants: Mapping[str, Any]
    """Values of the parameters that are the same each time."""

    @classmethod
    def of(cls, statement: ClauseElement, connection: AsyncConnection) -> Written:
        compiled: Any = statement.compile(dialect=connection.dialect)
        return cls(str(compiled), compiled.positiontup, compiled.params)

    async def run(self, connection: AsyncConnection, given: Mapping[str, Any]) -> list[Row]:
        values = {**self.constants, **given}
        return await _execute(connection, self.sql, tuple([values[name] for name in self.parameters]))


class PreparedInsert:
    """An insert of many rows. Whatever text they hold is stored clean, as `CleanText` has it.

    PostgreSQL gets each column as one array: a round trip for all rows, not one for each.
    """

    def __init__(self, table: Table, finish: Finish, clocks: Sequence[str] = ()) -> None:
        """`finish` says what becomes of a row that is there already. A row has a value for each column of the table in
        its order, but for `clocks`, which are set to the database's time."""
        self._table = table
        self._finish = finish
        self._clocks = clocks
        self._columns = [column for column in table.columns if column.name not in clocks]
        self._key = [self._columns.index(column) for column in table.primary_key if column in self._columns]
        self._one_by_one: BoundedMap[tuple[str, ...], str] = BoundedMap(MOST_WRITTEN)
        self._together: BoundedMap[tuple[str, ...], Written] = BoundedMap(MOST_WRITTEN)

    async def write(self, connection: AsyncConnection, rows: Sequence[Row]) -> list[Row]:
        """Insert rows in their order, at least one, and return what PostgreSQL does, if anything. Needs a
        transaction."""
        given = [
            _cleaned(values) if isinstance(column.type, CleanText) else values
            for column, values in zip(self._columns, zip(*rows, strict=True), strict=True)
        ]
        # What no row fills is not written: to bind None costs SQLite's driver as much as ten texts.
        filled = [number for number, values in enumerate(given) if values.count(None) < len(values)]
        columns = [self._columns[number] for number in filled]
        values = [given[number] for number in filled]
        names = tuple([column.name for column in columns])
        if connection.dialect.name != "postgresql":
            if (sql := self._one_by_one.use(names)) is None:
                sql = self._insert_of_one(connection, names)
                self._one_by_one.keep(names, sql)
            return await _execute(connection, sql, list(zip(*values, strict=True)))
        if (written := self._together.use(names)) is None:
            written = self._insert_of_many(connection, columns)
            self._together.keep(names, written)
        # No statement may update a row twice: two keys can be one once they are clean.
        keys = set(zip(*(given[number] for number in self._key), strict=True))
        most = MOST_ROWS if len(keys) == len(rows) else 1
        returned: list[Row] = []
        for start in range(0, len(rows), most):
            some = {_PREFIX + name: of[start : start + most] for name, of in zip(names, values, strict=True)}
            returned += await written.run(connection, some)
        return returned

    def _insert_of_one(self, connection: AsyncConnection, names: Sequence[str]) -> str:
        clocks = {name: now_ms() for name in self._clocks}
        statement = self._finish(connection, insert_into(connection, self._table).values(clocks))
        return str(statement.compile(dialect=connection.dialect, column_keys=names))

    def _insert_of_many(self, connection: AsyncConnection, columns: Sequence[Column[Any]]) -> Written:
        arrays = [bindparam(_PREFIX + column.name, type_=ARRAY(_plain(column))) for column in columns]
        names = [column.name for column in columns]
        row = func.unnest(*arrays).table_valued(*names).render_derived()
        values = [
            cast(row.c[column.name], JSON) if isinstance(column.type, JSON) else row.c[column.name]
            for column in columns
        ]
        rows = select(*values, *(now_ms().label(name) for name in self._clocks))
        statement = insert_into(connection, self._table).from_select([*names, *self._clocks], rows)
        return Written.of(self._finish(connection, statement), connection)


def _plain(column: Column[Any]) -> TypeEngine[Any]:
    """Type of a column's values as they are given: JSON is written already."""
    return Text() if isinstance(column.type, JSON | CleanText) else column.type


async def _execute(connection: AsyncConnection, sql: str, parameters: Row | list[Row]) -> list[Row]:
    """Execute in the transaction that has begun: once, or with each of many rows."""
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
    """The texts as they are, if all can be stored, as they nearly always can: they are looked at in one go."""
    if is_clean("".join(filter(None, texts))):
        return texts
    return [None if text is None else clean(text) for text in texts]
