"""The engine: one way to SQLite and PostgreSQL, in which no wait is without an end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakSet

import asyncpg
from msgspec import Struct
from sqlalchemy import Connection, Table, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from app.store.errors import DatabaseURLError, Queued

CONNECT_SECONDS = 3.0
COMMAND_SECONDS = 5.0
MIGRATION_SECONDS = 600.0
CLOSE_SECONDS = 2.0
LOCK_SECONDS = 0.2
PATIENT_LOCK_SECONDS = 4.0
"""Wait of a patient transaction for locks: longer than an idle transaction that was cut off is in the way, and less
than a statement may take."""
_LIMITS = {
    # Under COMMAND_SECONDS: only a server that is silent lets that pass.
    "statement_timeout": "4500ms",
    # How long a process that was cut off keeps others from the rows and locks of its transaction.
    "idle_in_transaction_session_timeout": "3s",
}
_LIMITS_SINCE_17 = {
    # asyncpg prepares a statement before it executes it: a session that was cut off in between is not idle, nor does a
    # statement run. Longer than a patient transaction takes.
    "transaction_timeout": "8s",
}
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""The server's own would notice after two hours that nobody is there any more."""
CACHE_KIB = 512
"""Pages of a file that each connection to SQLite keeps."""

_DEMOTED = "25006"
_READS_ONLY = "steno_reads_only"


class Address(Struct, frozen=True):
    """Address of a database."""

    kind: str
    """`postgresql`, `file` (SQLite) or `memory` (SQLite)."""
    dsn: str
    """URL for asyncpg, as libpq would read it, sslmode and sockets included. Empty for SQLite.

    Of several hosts (`?host=a,b`, not before the path) the next one is tried where one refuses, but not where it is
    silent: asyncpg knows one timeout for all.
    """
    path: Path | None
    shown: str
    """The URL without its password."""
    prepares: bool = True
    """False behind PgBouncer in transaction mode: `?prepared_statement_cache_size=0`."""

    @property
    def place(self) -> str:
        """The database without its password, for people in another folder: a file by its whole path."""
        return self.shown if self.path is None else str(self.path.absolute())


def read_url(url: str) -> Address:
    """Understand `memory`, `sqlite:///…`, `postgres://…` and `postgresql://…`, each also with its async driver."""
    if url == "memory":
        return Address("memory", "", None, "memory")
    parsed = _parse(url)
    shown = parsed.render_as_string(hide_password=True)
    match parsed.drivername:
        case "sqlite" | "sqlite+aiosqlite":
            if parsed.database in {None, "", ":memory:"}:
                return Address("memory", "", None, "memory")
            return Address("file", "", Path(str(parsed.database)), _without_options(shown))
        case "postgres" | "postgresql" | "postgresql+asyncpg":
            return _of_postgresql(url, _without_options(shown))
    raise DatabaseURLError(
        f"The database URL begins with {parsed.drivername!r}; Steno knows sqlite, postgresql and the word memory."
    )


def _parse(url: str) -> URL:
    try:
        parsed, parts = make_url(url), urlsplit(url)
        _ = parts.port  # raises if it is no number
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or (not parsed.drivername.startswith("sqlite") and _splits_password(url, parsed)):
        raise DatabaseURLError(
            "The database URL cannot be read. It looks like postgresql://user:password@host:5432/name, "
            "sqlite:///path/steno.db or memory; @ : / ? in a password are written %40 %3A %2F %3F."
        )
    return parsed


def _splits_password(url: str, parsed: URL) -> bool:
    """A password with an unescaped @, / or ? leaves a part of itself in the host or the path, which messages show."""
    return "@" in (parsed.host or "") + (parsed.database or "") or url.count("@") > 1


def _of_postgresql(url: str, shown: str) -> Address:
    """asyncpg's own parser takes over; SQLAlchemy's `ssl` option is libpq's `sslmode`."""
    parts = urlsplit(url)
    options = {"sslmode" if name == "ssl" else name: value for name, value in parse_qsl(parts.query)}
    if "direct" in options:
        raise DatabaseURLError("Steno needs no way past a pooler any more: take ?direct= out of the database URL.")
    prepares = options.pop("prepared_statement_cache_size", "") != "0"
    query = f"?{urlencode(options)}" if options else ""
    return Address("postgresql", f"postgresql://{parts.netloc}{parts.path}{query}", None, shown, prepares)


def _without_options(shown: str) -> str:
    # libpq takes the password as an option too, and SQLite with encryption its key.
    return shown.partition("?")[0]


class _Session(asyncpg.Connection[asyncpg.Record] if TYPE_CHECKING else asyncpg.Connection):  # type: ignore[misc]
    """A connection that tells what holds in a transaction together with `BEGIN`, not in a round trip of its own."""

    told = ""
    """SQL that is sent with the `BEGIN` of the next transaction."""

    async def execute(self, query: str, *arguments: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - asyncpg's
        if query.startswith("BEGIN") and self.told:
            query = f"{query} {self.told}"
        status: str = await super().execute(query, *arguments, timeout=timeout)
        return status


class Database:
    """The engine and its two kinds of transaction. Nothing connects before the first one."""

    def __init__(self, url: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.address = read_url(url)
        self._statement_cache = self.address.prepares
        self._lock_seconds = min(lock_seconds, PATIENT_LOCK_SECONDS)
        self._writer = asyncio.Lock() if self.address.kind != "postgresql" else None
        self._driver_connections: WeakSet[Any] = WeakSet()
        self._idle: WeakSet[Any] = WeakSet()
        """Connections of the pool that nobody uses."""
        self.engine = self._postgresql(COMMAND_SECONDS) if self.address.kind == "postgresql" else self._sqlite()
        # Not AUTOCOMMIT on SQLite: going back to the default level would bring pysqlite's own BEGIN back.
        reading = {"isolation_level": "AUTOCOMMIT"} if self.address.kind == "postgresql" else {_READS_ONLY: True}
        self._reader = self.engine.execution_options(**reading)

    @asynccontextmanager
    async def writing(self, *, patient: bool = False) -> AsyncIterator[AsyncConnection]:
        """One transaction. On SQLite it holds the write lock from its first moment, so what it reads stays true.

        It waits for a lock as long as a request may, and if it is patient for some seconds. Raises `Queued`.
        """
        async with self._turn_to_write(patient), self.engine.begin() as connection:
            if self.address.kind != "postgresql" or not (limits := self._limits(connection, patient)):
                yield connection
                return
            session = cast("_Session", (await connection.get_raw_connection()).driver_connection)
            session.told = _set(limits, local=True)
            try:
                yield connection
            finally:
                session.told = ""

    @asynccontextmanager
    async def _turn_to_write(self, patient: bool) -> AsyncIterator[None]:
        """SQLite lets one writer in, and has the others look again after pauses that grow: of a crowd some would wait
        for seconds. Those of this process are let in one by one."""
        if self._writer is None:
            yield
            return
        try:
            # Half of it, because the transaction takes its time, too.
            async with asyncio.timeout(PATIENT_LOCK_SECONDS if patient else self._lock_seconds / 2):
                await self._writer.acquire()
        except TimeoutError as error:
            raise Queued("others of this process are writing") from error
        try:
            yield
        finally:
            self._writer.release()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """No transaction: each query sees what is committed, waits for no writer, and costs one round trip."""
        async with self._reader.connect() as connection:
            yield connection

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncConnection]:
        """One transaction that may wait for another process's migrations, and may rewrite a large table."""
        if self.address.kind != "postgresql":
            async with self.writing(patient=True) as connection:
                yield connection
            return
        engine = self._postgresql(MIGRATION_SECONDS, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    def doubt_idle(self) -> None:
        """Cut the connections that nobody uses: they may have died in silence, while new ones work."""
        for connection in list(self._idle):
            connection.terminate()  # What is closed is made anew before it is used.

    async def close(self) -> None:
        """Close every connection; those that do not answer within two seconds are cut."""
        disposing = asyncio.ensure_future(self.engine.dispose())
        await asyncio.wait({disposing}, timeout=CLOSE_SECONDS)
        for connection in list(self._driver_connections):
            # Ends abandoned calls too: cancelling one would make asyncpg open another connection, and hang on it. And
            # is_closed() is no reason to spare one: it is already true of a connection that waits in close().
            connection.terminate()
        await disposing

    def _limits(self, connection: AsyncConnection, patient: bool) -> dict[str, str]:
        """Limits of a transaction, beyond its session's."""
        version = connection.dialect.server_version_info or ()
        limits = _limits_of(version, self._lock_seconds) if not self._statement_cache else {}
        return {**limits, **_lock_limit(PATIENT_LOCK_SECONDS)} if patient else limits

    def _sqlite(self) -> AsyncEngine:
        # In memory the connection is the database. A pool of exactly one keeps it, and makes transactions take turns;
        # StaticPool would hand it to two tasks at once, and one's rollback would take the other's rows.
        # In a file no connections beyond the size either: each is a thread, which would be made anew for each use.
        pool = {"pool_size": 1 if self.address.path is None else 15, "max_overflow": 0}
        name = ":memory:" if self.address.path is None else str(self.address.path)
        engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=name),
            connect_args={"timeout": COMMAND_SECONDS, "isolation_level": None},
            poolclass=AsyncAdaptedQueuePool,
            pool_timeout=COMMAND_SECONDS,
            hide_parameters=True,
            **pool,
        )
        event.listen(engine.sync_engine, "connect", _set_pragmas)
        event.listen(engine.sync_engine, "begin", _begin_immediate)
        return engine

    def _postgresql(self, command_seconds: float, **pool: Any) -> AsyncEngine:
        limits = {"timeout": CONNECT_SECONDS, "command_timeout": command_seconds}
        connect = partial(asyncpg.connect, self.address.dsn, connection_class=_Session, **limits)
        arguments: dict[str, Any] = {}
        if not self._statement_cache:
            # PgBouncer hands each transaction another backend, and before 1.21 knows nothing of what was prepared.
            # Without names of ours asyncpg prepares anew in the packet that executes: a named statement of a query
            # outside a transaction would be looked for on another backend, and stay behind on the first one for good.
            connect = partial(connect, statement_cache_size=0)
            arguments["prepared_statement_cache_size"] = 0
        # Behind it a session's settings would be another caller's: each transaction has its own (`writing`).
        arguments["async_creator_fn"] = (
            partial(_connect, connect, None if pool else self._lock_seconds) if self._statement_cache else connect
        )
        # No overflow: connections beyond the size would be made anew for each use (docs/scale.md).
        sizes = {"pool_size": 15, "max_overflow": 0, "pool_timeout": COMMAND_SECONDS, "pool_recycle": 300}
        engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args=arguments,
            hide_parameters=True,
            **(pool or {**sizes, "pool_use_lifo": True}),
        )
        event.listen(engine.sync_engine, "connect", self._remember)
        event.listen(engine.sync_engine, "checkout", self._check_out)
        event.listen(engine.sync_engine, "checkin", self._check_in)
        event.listen(engine.sync_engine, "handle_error", self._doubt)
        return engine

    def _remember(self, connection: Any, _record: Any) -> None:
        self._driver_connections.add(connection.driver_connection)

    def _check_out(self, connection: Any, _record: Any, _proxy: Any) -> None:
        self._idle.discard(connection.driver_connection)
        # Costs nothing, unlike pool_pre_ping's three round trips; what dies in silence is left to the command timeout.
        if connection.driver_connection.is_closed():
            raise DisconnectionError

    def _check_in(self, connection: Any, _record: Any) -> None:
        if connection is not None:  # Otherwise it was given up.
            self._idle.add(connection.driver_connection)

    def _doubt(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) == _DEMOTED:
            # Others lead to the same server. Those in use are made anew when they come back: SQLAlchemy sees to it.
            context.is_disconnect = True
            self.doubt_idle()


Insert = postgresql.Insert | sqlite.Insert


def insert_into(connection: AsyncConnection, table: Table) -> Insert:
    """An insert that knows `on conflict`: the same words on both databases, but two classes of SQLAlchemy's."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


async def _connect(connect: Callable[[], Awaitable[Any]], lock_seconds: float | None) -> _Session:
    connection: _Session = await connect()
    limits = {} if lock_seconds is None else _limits_of(connection.get_server_version(), lock_seconds)
    try:
        # Not in the startup packet: PgBouncer refuses a caller who names there what it does not know, in session mode
        # too, and so does PostgreSQL.
        await connection.execute(_set(_KEEPALIVES | limits, local=False))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _limits_of(server_version: tuple[Any, ...], lock_seconds: float) -> dict[str, str]:
    newer = _LIMITS_SINCE_17 if server_version >= (17,) else {}
    return {**_lock_limit(lock_seconds), **_LIMITS, **newer}


def _lock_limit(seconds: float) -> dict[str, str]:
    return {"lock_timeout": f"{seconds * 1000:.0f}ms"}


def _set(values: Mapping[str, str], *, local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "secure_delete=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    # By default 2 MB, and that for each of fifteen connections. The system has the file in its memory anyway.
    cursor.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    cursor.close()
    # SQLite's own knows the letters of ASCII alone.
    connection.create_function("lower", 1, _lower, deterministic=True)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _begin_immediate(connection: Connection) -> None:
    # The driver's own BEGIN takes the lock at the first write: of two that read first, one loses its update in silence.
    if not connection.get_execution_options().get(_READS_ONLY):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
