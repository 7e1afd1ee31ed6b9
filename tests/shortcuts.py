"""What most tests wait for and none is about, done sooner or once: ticks, certificates, token tables, migrations."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpcore2
import pytest
import uvicorn.server
from sqlalchemy import Connection, event

from app.store import migrations
from app.tokens import tables, tokenizer

TABLES = Path(__file__).parents[1] / ".tables"


@pytest.fixture(scope="session", autouse=True)
def _prompt_servers() -> Iterator[None]:
    """A server looks ten times a second whether it has to end, and then waits as long again: here a tenth of that."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once() -> Iterator[None]:
    """Every HTTP client would read the machine's own anew, for 18 ms; all that tests speak to is on loopback."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _token_tables_verified_once() -> Iterator[None]:
    """Every Steno and every simulator would hash the checkout's five megabytes anew."""
    verify = tables.is_in
    known = cache(verify)

    def is_in(folder: Path, encoding: str) -> bool:
        return (known if folder == TABLES else verify)(folder, encoding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "is_in", is_in)
        yield


@pytest.fixture(scope="session", autouse=True)
def _migrations_by_heart() -> Iterator[None]:
    """Alembic migrates the first empty database of a kind; each further one is sent at once what brings it there."""
    learned: dict[str, list[str]] = {}

    def run(connection: Connection, revision: str) -> None:
        kind = connection.dialect.name
        if revision != "head" or migrations._current(connection) is not None:
            run_alembic(connection, revision)
        elif kind not in learned:
            sent = _statements_of(run_alembic, connection, revision)
            learned[kind] = sent if kind == "postgresql" else _schema_of(connection)
        else:
            _send(connection, learned[kind])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrations, "_run", run)
        patch.setattr(migrations, "_scripts", cache(migrations._scripts))
        yield


run_alembic = migrations._run
"""For tests of the migrations themselves."""


def _send(connection: Connection, statements: list[str]) -> None:
    """In one go, not with a wait for each answer."""
    raw: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        raw.run_async(lambda driver: driver.execute(";\n".join(statements)))
        return

    def execute(driver: sqlite3.Connection) -> None:
        for statement in statements:
            driver.execute(statement)

    # In the thread of the connection; `executescript` would commit first.
    raw.run_async(lambda driver: driver._execute(execute, driver._conn))


def _schema_of(connection: Connection) -> list[str]:
    """Half as many statements on SQLite as its migrations are, and none that makes a table anew."""
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").all()
    # A virtual table makes those that it keeps its rows in.
    kept_inside = tuple(f"{name}_" for name, sql in rows if sql.startswith("CREATE VIRTUAL"))
    schema = [sql for name, sql in rows if not name.startswith(kept_inside)]
    return [*schema, f"INSERT INTO alembic_version VALUES ('{migrations._current(connection)}')"]  # noqa: S608 - ours


def _statements_of(work: Callable[..., None], connection: Connection, *arguments: object) -> list[str]:
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        # Those that only look had their answer.
        if not statement.lstrip().startswith(("SELECT", "PRAGMA")):
            assert not parameters, statement
            sent.append(statement)

    event.listen(connection, "before_cursor_execute", note)
    try:
        work(connection, *arguments)
    finally:
        event.remove(connection, "before_cursor_execute", note)
    return sent
