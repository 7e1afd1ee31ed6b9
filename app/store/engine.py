"""The engine: one way to SQLite and PostgreSQL. Every wait ends, and every error is one of this tree.

StoreError
├── StoreUnavailable       not now: unreachable, too slow, or the circuit breaker is open
│   ├── StatementRefused   the database is well, and does not take this statement
│   └── Contended          the database is well, and another transaction has a lock that this one needs
├── DatabaseUnusable       not before an operator changes something: its message says what
│   └── DatabaseURLError
└── UnknownCursor          `after` names nothing in the list
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit
from weakref import WeakSet

import asyncpg
import structlog
from msgspec import Struct
from sqlalchemy import Connection, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from app.runtime.bounded import LogThrottle

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]
"""Begun each time it is called."""

log = structlog.get_logger("steno.store")

CONNECT_SECONDS = 3.0
COMMAND_SECONDS = 5.0
MIGRATION_SECONDS = 600.0
CLOSE_SECONDS = 2.0
LOCK_SECONDS = 0.2
PATIENT_LOCK_SECONDS = 4.0
"""Wait of a patient transaction for locks: longer than an idle transaction that was cut off is in the way, and less
than a statement may take."""
QUEUE_SECONDS = 2.0
"""Wait of other transactions for those of their process that write to SQLite."""
FAILURES_TO_OPEN = 3
PROBE_SECONDS = 1.0
SLICES = 10
"""Parts in which a call's time is measured: each ends late where the event loop is busy."""
CACHE_KIB = 512
"""Pages of a file that each connection to SQLite keeps."""
REMEDY = "Start the database, or correct storage.url; `steno doctor` tries it. Requests go on without it meanwhile."

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
# The server's own would notice after two hours that the client is gone.
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_READS_ONLY = "steno_reads_only"

DATABASE_ERRORS = (SQLAlchemyError, OSError, OverflowError)
"""Everything the drivers raise: TimeoutError is an OSError, and OverflowError a number that SQLite cannot hold."""
_DEMOTED = "25006"
# 40 a deadlock or a failed serialisation, 55P03 a lock that could not be had.
_CONTENDED_STATES = ("40", "55P03")
# 08 connection, 53 out of resources, 57014 a statement that took too long, 57P0x shutting down or starting up, 58 the
# server's disk or system, 25006 a standby after a failover, 25P03 and 25P04 a transaction idle or open for too long,
# 55000 a database that accepts no connections for now.
_TRANSIENT_STATES = ("08", "53", "55000", "57014", "57P0", "58", _DEMOTED, "25P03", "25P04", *_CONTENDED_STATES)
# 28 a password or an entry of pg_hba.conf, 3D000 a database that is not there, 42501 a right that is missing: at the
# start a wrong URL. Afterwards an operator is changing the password or the rights, or restores the database, and
# nothing is said against any statement.
_NOT_ALLOWED_IN = ("28", "3D000", "42501")
# What asyncpg says of a connection that was closed, or ended in the middle of an answer.
_OF_THE_CONNECTION = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_TRANSIENT_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_CLOSED_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


class StoreError(Exception):
    """The root of this tree."""


class StoreUnavailable(StoreError):
    """The database did not do it in time; the same call may work later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StatementRefused(StoreUnavailable):
    """Says nothing about the database's health, so it neither opens the breaker nor is it tried again."""


class Contended(StoreUnavailable):
    """Says nothing about the database's health either, and the same call may work in a moment."""


class DatabaseUnusable(StoreError):
    """Steno cannot work with this database as it stands; `serve` ends with the message."""


class DatabaseURLError(DatabaseUnusable, ValueError):
    """The database URL cannot be read. The message never holds the URL: it may hold a password."""


class UnknownCursor(StoreError, LookupError):
    """The list holds nothing by the id given as `after`."""


def unavailable(error: BaseException) -> StoreUnavailable:
    """Translate a driver's error on a database that was well."""
    if _state(error).startswith(_CONTENDED_STATES):
        return Contended(describe(error))
    return StoreUnavailable(describe(error)) if is_away(error) else StatementRefused(describe(error))


def unopened(error: BaseException) -> StoreUnavailable | DatabaseUnusable:
    """Translate a driver's error at the start, where a wrong password or file is not an outage."""
    # A SQLite file that may not be opened or written is one later: a volume that was made read-only.
    is_closed = isinstance(error, DBAPIError) and _sqlite_code(error.orig) in _CLOSED_CODES
    if is_unreachable(error) and not is_closed:
        return StoreUnavailable(describe(error))
    if _is_configuration(error):
        return DatabaseURLError(f"The database URL cannot be used: {describe_refusal(error)}")
    return DatabaseUnusable(f"The database cannot be opened: {describe_refusal(error)}")


def is_away(error: BaseException) -> bool:
    """Whether a database that was well does not let Steno in for now, for whatever reason."""
    return is_unreachable(error) or _state(error).startswith(_NOT_ALLOWED_IN)


def is_unreachable(error: BaseException) -> bool:
    """Whether time alone may heal it at the start, as opposed to a wrong password, file or statement."""
    if isinstance(error, OSError | PoolExhausted):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in _TRANSIENT_CODES | _CLOSED_CODES
    if state := _state(error):
        return state.startswith(_TRANSIENT_STATES)
    return isinstance(_cause(error), _OF_THE_CONNECTION) and not _is_configuration(error)


def _is_configuration(error: BaseException) -> bool:
    """Whether asyncpg could not make sense of the URL."""
    return isinstance(_cause(error), asyncpg.exceptions.ClientConfigurationError)


def describe(error: BaseException) -> str:
    """One line for logs and headers, without values: a refused statement's message may quote what was to be stored."""
    if isinstance(error, TimeoutError):
        return "the database does not answer"
    if isinstance(error, PoolExhausted):
        return "all database connections are in use"
    if isinstance(error, OSError):
        # Not its own message: asyncio puts the address into it, and this line reaches clients.
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
        return f"the database cannot be reached ({cause})"
    if _state(error).startswith(_CONTENDED_STATES):
        return f"another process is at it ({describe_refusal(error)})"
    if is_away(error):
        return f"the database is not available ({describe_refusal(error)})"
    return f"the database refused ({type(_cause(error)).__name__})"


def describe_refusal(error: BaseException) -> str:
    """First line of the database's own words, for errors in which no values can occur: connecting, migrating."""
    cause = _cause(error)
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__


def _cause(error: BaseException) -> BaseException:
    # SQLAlchemy wraps twice: DBAPIError.orig is its own class, and the driver's error is that one's cause.
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _state(error: BaseException) -> str:
    """PostgreSQL's code of an error; empty if it has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _sqlite_code(error: BaseException | None) -> int:
    # The low byte is the primary code. Errors raised by the driver itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


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
    """Read `memory`, `sqlite:///…`, `postgres://…` or `postgresql://…`, each also with its async driver."""
    if url == "memory":
        return Address("memory", "", None, "memory")
    parsed, parts = None, urlsplit("")
    with suppress(ArgumentError, ValueError):
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no number
        parsed = make_url(url)
        # A password with an unescaped @, / or ? leaves a part of itself in the host or the path, which messages show.
        is_split = "@" in (parsed.host or "") + (parsed.database or "") or url.count("@") > 1
        if is_split and not parsed.drivername.startswith("sqlite"):
            parsed = None
    if parsed is None:  # Not raised above: what the error came from may show the password.
        raise DatabaseURLError(
            "The database URL cannot be read. It looks like postgresql://user:password@host:5432/name, "
            "sqlite:///path/steno.db or memory; @ : / ? in a password are written %40 %3A %2F %3F."
        )
    # Without options: libpq takes the password as one, too, and SQLite with encryption its key.
    shown = parsed.render_as_string(hide_password=True).partition("?")[0]
    match parsed.drivername:
        case "sqlite" | "sqlite+aiosqlite":
            if parsed.database in {None, "", ":memory:"}:
                return Address("memory", "", None, "memory")
            return Address("file", "", Path(str(parsed.database)), shown)
        case "postgres" | "postgresql" | "postgresql+asyncpg":
            # asyncpg's own parser takes over; SQLAlchemy's `ssl` option is libpq's `sslmode`.
            options = {"sslmode" if name == "ssl" else name: value for name, value in parse_qsl(parts.query)}
            if "direct" in options:
                raise DatabaseURLError(
                    "Steno needs no way past a pooler any more: take ?direct= out of the database URL."
                )
            prepares = options.pop("prepared_statement_cache_size", "") != "0"
            query = f"?{urlencode(options)}" if options else ""
            return Address("postgresql", f"postgresql://{parts.netloc}{parts.path}{query}", None, shown, prepares)
    raise DatabaseURLError(
        f"The database URL begins with {parsed.drivername!r}; Steno knows sqlite, postgresql and the word memory."
    )


class Database:
    """The engine and its two kinds of transaction. Nothing connects before the first one."""

    def __init__(self, url: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.address = read_url(url)
        self._lock_seconds = min(lock_seconds, PATIENT_LOCK_SECONDS)
        self.is_sqlite = self.address.kind != "postgresql"
        self._writer = asyncio.Lock() if self.is_sqlite else None
        self.queued: set[asyncio.Task[Any] | None] = set()
        """Tasks that wait for others of this process to write."""
        self._driver_connections: WeakSet[Any] = WeakSet()
        self._idle: WeakSet[Any] = WeakSet()
        """Connections of the pool that are not in use."""
        self.engine = self._sqlite() if self.is_sqlite else self._postgresql(COMMAND_SECONDS)
        # Not AUTOCOMMIT on SQLite: going back to the default level would bring pysqlite's own BEGIN back.
        reading = {_READS_ONLY: True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._reader = self.engine.execution_options(**reading)

    @asynccontextmanager
    async def writing(self, *, patient: bool = False) -> AsyncIterator[AsyncConnection]:
        """One transaction. On SQLite it holds the write lock from its first moment, so what it reads stays true.

        It waits for another process's lock as long as a request may, and if it is patient for some seconds. Raises
        `Contended`.
        """
        if self._writer is not None:
            await self._take_turn(self._writer, PATIENT_LOCK_SECONDS if patient else QUEUE_SECONDS)
            try:
                async with self.engine.begin() as connection:
                    yield connection
            finally:
                self._writer.release()
            return
        async with self.engine.begin() as connection:
            limits: dict[str, str] = {}
            if not self.address.prepares:  # Then the session has none.
                limits |= _limits_of(connection.dialect.server_version_info or (), self._lock_seconds)
            if patient:
                limits |= _lock_limit(PATIENT_LOCK_SECONDS)
            if limits:
                await connection.exec_driver_sql(_set(limits, local=True))
            yield connection

    async def _take_turn(self, writer: asyncio.Lock, seconds: float) -> None:
        # SQLite has other writers look again after pauses that grow: of a crowd some would wait for seconds. Those of
        # this process are let in one by one.
        task = asyncio.current_task()
        self.queued.add(task)
        try:
            async with asyncio.timeout(seconds):
                await writer.acquire()
        except TimeoutError as error:
            raise Contended("others of this process are writing") from error
        finally:
            self.queued.discard(task)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """No transaction: each query sees what is committed, waits for no writer, and costs one round trip."""
        async with self._reader.connect() as connection:
            yield connection

    async def ping(self) -> None:
        async with self.reading() as connection:
            await connection.exec_driver_sql("SELECT 1")

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncConnection]:
        """One transaction that may wait for another process's migrations, and may rewrite a large table."""
        if self.is_sqlite:
            async with self.writing(patient=True) as connection:
                yield connection
            return
        engine = self._postgresql(MIGRATION_SECONDS, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                yield connection
        finally:
            await engine.dispose()

    def cut_idle(self) -> None:
        """Cut the connections that are not in use: they may have died in silence, while new ones work."""
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

    def _sqlite(self) -> AsyncEngine:
        # In memory the connection is the database. A pool of exactly one keeps it, and makes transactions take turns;
        # StaticPool would hand it to two tasks at once, and one's rollback would take the other's rows.
        # In a file no connections beyond the size either: each is a thread, which would be made anew for each use.
        engine = create_async_engine(
            URL.create(
                "sqlite+aiosqlite", database=":memory:" if self.address.path is None else str(self.address.path)
            ),
            connect_args={"timeout": COMMAND_SECONDS, "isolation_level": None},
            poolclass=AsyncAdaptedQueuePool,
            pool_timeout=COMMAND_SECONDS,
            hide_parameters=True,
            pool_size=1 if self.address.path is None else 15,
            max_overflow=0,
        )
        event.listen(engine.sync_engine, "connect", _set_pragmas)
        event.listen(engine.sync_engine, "begin", _begin_immediate)
        return engine

    def _postgresql(self, command_seconds: float, **pool: Any) -> AsyncEngine:
        limits = {"timeout": CONNECT_SECONDS, "command_timeout": command_seconds}
        connect = partial(asyncpg.connect, self.address.dsn, **limits)
        arguments: dict[str, Any] = {}
        if self.address.prepares:
            arguments["async_creator_fn"] = partial(_connect, connect, None if pool else self._lock_seconds)
        else:
            # PgBouncer hands each transaction another backend, and before 1.21 knows nothing of what was prepared.
            # Without names of ours asyncpg prepares anew in the packet that executes: a named statement of a query
            # outside a transaction would be looked for on another backend, and stay behind on the first one for good.
            # A session's settings would be another caller's: each transaction has its own (`writing`).
            arguments["async_creator_fn"] = partial(connect, statement_cache_size=0)
            arguments["prepared_statement_cache_size"] = 0
        # No overflow: connections beyond the size would be made anew for each use (docs/scale.md).
        sizes = {"pool_size": 15, "max_overflow": 0, "pool_timeout": COMMAND_SECONDS, "pool_recycle": 300}
        engine = create_async_engine(
            "postgresql+asyncpg://",
            connect_args=arguments,
            hide_parameters=True,
            **(pool or {**sizes, "pool_use_lifo": True}),
        )
        event.listen(engine.sync_engine, "connect", self._on_connect)
        event.listen(engine.sync_engine, "checkout", self._on_checkout)
        event.listen(engine.sync_engine, "checkin", self._on_checkin)
        event.listen(engine.sync_engine, "handle_error", self._on_error)
        return engine

    def _on_connect(self, connection: Any, _record: Any) -> None:
        self._driver_connections.add(connection.driver_connection)

    def _on_checkout(self, connection: Any, _record: Any, _proxy: Any) -> None:
        self._idle.discard(connection.driver_connection)
        # Costs nothing, unlike pool_pre_ping's three round trips; what dies in silence is left to the command timeout.
        if connection.driver_connection.is_closed():
            raise DisconnectionError

    def _on_checkin(self, connection: Any, _record: Any) -> None:
        if connection is not None:  # Otherwise it was given up.
            self._idle.add(connection.driver_connection)

    def _on_error(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) == _DEMOTED:
            # Others lead to the same server. Those in use are made anew when they come back: SQLAlchemy sees to it.
            context.is_disconnect = True
            self.cut_idle()


async def _connect(connect: Callable[[], Awaitable[Any]], lock_seconds: float | None) -> Any:
    connection = await connect()
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
    # The cache is 2 MB by default, for each of fifteen connections. The system has the file in its memory anyway.
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "secure_delete=ON")
    for pragma in (*pragmas, f"cache_size=-{CACHE_KIB}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
    # SQLite's own knows the letters of ASCII alone.
    connection.create_function("lower", 1, _lower, deterministic=True)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _begin_immediate(connection: Connection) -> None:
    # The driver's own BEGIN takes the lock at the first write: of two that read first, one loses its update in silence.
    if not connection.get_execution_options().get(_READS_ONLY):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class Guard:
    """Bounded calls, and a circuit breaker that spares requests the wait while the database is away.

    A call that takes too long is abandoned, not cancelled: cancelling makes asyncpg open a second connection to tell
    the server, and on a silent network that one never returns.
    """

    def __init__(self, database: Database, *, open_seconds: float = 5.0) -> None:
        self._database = database
        self._open_seconds = open_seconds
        self._failures = 0
        self._answers = 0
        self._refused = 0
        """Calls, since the breaker opened."""
        self._abandoned: set[asyncio.Task[None]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()
        self.reason: str | None = None
        """Why the breaker is open; None while it is closed."""

    async def call(self, work: Work[T], timeout: float, late: Callable[[T], Awaitable[object]] | None = None) -> T:  # noqa: ASYNC109 - not a cancellation
        """Bounded, and refused at once while the breaker is open. `late` gets the result of an abandoned call."""
        if self.reason is not None:
            self._refused += 1
            raise StoreUnavailable(self.reason)
        answers_before = self._answers
        try:
            result = await self.bounded(work, timeout, late)
        except (StatementRefused, Contended):
            self._answered()
            raise
        except StoreUnavailable as error:
            # If others were answered meanwhile it was the queue in front of the database, as when 200 requests come
            # at once: this one goes on without the store, the next one need not.
            if self._answers == answers_before:
                self._failures += 1
                if self._failures >= FAILURES_TO_OPEN and self.reason is None:
                    self.reason, self._refused = error.reason, 0
                    log.warning("database away", reason=error.reason, remedy=REMEDY)
                    self._probing = asyncio.ensure_future(self._probe_until_well())
            raise
        self._answered()
        return result

    async def bounded(self, work: Work[T], timeout: float, late: Callable[[T], Awaitable[object]] | None = None) -> T:  # noqa: ASYNC109 - not a cancellation
        """Bounded only: for calls that may take longer than a request waits."""
        task, done, left = asyncio.ensure_future(work()), set[asyncio.Task[T]](), SLICES
        try:
            # Time in which the event loop attends to it and it does not wait for others of this process: neither says
            # anything about the database, and a call needs the loop several times.
            while left and not done:
                done, _pending = await asyncio.wait({task}, timeout=timeout / SLICES)
                left -= task not in self._database.queued
        except asyncio.CancelledError:
            # The caller's client left. The call may have ended in this very moment: its result has no other taker.
            self._abandon(task, late)
            raise
        if not done:
            self._abandon(task, late)
            raise StoreUnavailable(f"the database did not answer within {timeout * 1000:.0f} ms")
        try:
            return task.result()
        except DATABASE_ERRORS as error:
            raise unavailable(error) from error

    async def close(self) -> None:
        """Stop probing."""
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})

    async def abandoned_calls(self, seconds: float) -> None:
        """Give the abandoned calls more time to end; those on a silent network end with its connections."""
        if self._abandoned:
            await asyncio.wait(set(self._abandoned), timeout=seconds)

    def _abandon(self, task: asyncio.Task[T], late: Callable[[T], Awaitable[object]] | None) -> None:
        async def outlive() -> None:
            await asyncio.wait({task})
            if task.cancelled():
                return
            if error := task.exception():
                log.warning("abandoned database call failed", reason=describe(error))
            elif late is not None:
                await late(task.result())

        keeper = asyncio.ensure_future(outlive())
        self._abandoned.add(keeper)
        keeper.add_done_callback(self._abandoned.discard)

    def _answered(self) -> None:
        self._answers += 1
        self._failures = 0

    async def _probe_until_well(self) -> None:
        """Ask in the background, so that no request pays for finding out."""
        opened_at = monotonic()
        self._database.cut_idle()
        while self.reason is not None:
            await asyncio.sleep(self._open_seconds)
            try:
                await self.bounded(self._database.ping, PROBE_SECONDS)
            except StoreUnavailable as error:
                self.reason = error.reason
            except Exception:  # Otherwise the breaker would be open for ever.
                if (times := self._throttle.count("probe")) is not None:
                    log.exception("probing the database failed", times=times)
            else:
                self.reason = None
                self._throttle.end("probe")
                self._answered()
                log.info("database back", refused=self._refused, seconds=round(monotonic() - opened_at, 1))
