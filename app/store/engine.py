"""Access to SQLite and PostgreSQL. Every wait is bounded. Every error that callers see is a class of this tree.

StoreError
├── StoreUnavailable       the database is unreachable or too slow, or the circuit breaker is open
│   ├── StatementRefused   the database works, but refuses this statement
│   └── Contended          the database works, but another transaction has a lock that this one needs
├── DatabaseUnusable       the operator must change the settings or the database, as the message says
│   └── DatabaseURLError
└── UnknownCursor          the list has no entry with the id `after`
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

from app.runtime.caches import LogThrottle

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]
"""Function that reads or changes rows. A retry calls the function again."""

log = structlog.get_logger("steno.store")

CONNECT_SECONDS = 3.0
COMMAND_SECONDS = 5.0
MIGRATION_SECONDS = 600.0
CLOSE_SECONDS = 2.0
LOCK_SECONDS = 0.2
PATIENT_LOCK_SECONDS = 4.0
"""Longest wait for a lock in a transaction opened with `patient`. By then PostgreSQL has ended the transactions of dead
processes (after 3 s), but has not yet cancelled the waiting statement (after 4.5 s)."""
QUEUE_SECONDS = 2.0
"""Longest wait for earlier writers of this process, in a transaction opened without `patient`. SQLite only."""
FAILURES_TO_OPEN = 3
PROBE_SECONDS = 1.0
SLICES = 10
"""Number of equal parts of a call's timeout. Parts in which the call waits for this process's writers do not count."""
CACHE_KIB = 512
"""Page cache of each connection to SQLite, in KiB."""
REMEDY = "Start the database, or correct storage.url; `steno doctor` tries it. Requests go on without it meanwhile."

_LIMITS = {
    # Less than COMMAND_SECONDS, so that the server cancels the statement before Steno gives up.
    "statement_timeout": "4500ms",
    # Ends a transaction whose process is gone, and releases its locks.
    "idle_in_transaction_session_timeout": "3s",
}
_LIMITS_SINCE_17 = {
    # The two limits above do not apply if a process dies between asyncpg's prepare and execute: the session is not
    # idle, and no statement runs. A patient transaction takes less than 8 s.
    "transaction_timeout": "8s",
}
# By default PostgreSQL notices only after two hours that a Steno process is gone.
_KEEPALIVES = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
_READS_ONLY = "steno_reads_only"

DATABASE_ERRORS = (SQLAlchemyError, OSError, OverflowError)
"""All errors of the drivers. OSError includes TimeoutError. Numbers too large for SQLite raise OverflowError."""
_DEMOTED = "25006"
# 40 deadlock or failed serialisation, 55P03 lock timeout.
_CONTENDED_STATES = ("40", "55P03")
# 08 connection, 53 out of resources, 57014 statement timeout, 57P0x shutting down or starting up, 58 the server's disk
# or system, 25006 a standby after a failover, 25P03 and 25P04 a transaction idle or open for too long, 55000 a database
# that accepts no connections at the moment.
_TRANSIENT_STATES = ("08", "53", "55000", "57014", "57P0", "58", _DEMOTED, "25P03", "25P04", *_CONTENDED_STATES)
# 28 wrong password or pg_hba.conf, 3D000 missing database, 42501 missing right.
_NOT_ALLOWED_IN = ("28", "3D000", "42501")
# Errors of asyncpg when a connection was closed, or ended in the middle of an answer.
_OF_THE_CONNECTION = (asyncpg.InterfaceError, asyncpg.InternalClientError)
_TRANSIENT_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_CLOSED_CODES = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN}


class StoreError(Exception):
    """Base class of the store's errors."""


class StoreUnavailable(StoreError):
    """The database did not answer in time or refused the call; the same call may work later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StatementRefused(StoreUnavailable):
    """The database refused a statement, but works. The breaker stays closed, and the call is not repeated."""


class Contended(StoreUnavailable):
    """A lock was not free in time. The database works, and the same call may succeed in a moment."""


class DatabaseUnusable(StoreError):
    """Steno cannot use this database until the operator changes something. `steno serve` prints the reason and ends."""


class DatabaseURLError(DatabaseUnusable, ValueError):
    """The database URL is invalid. The message does not quote the URL, which may contain a password."""


class UnknownCursor(StoreError, LookupError):
    """The list has no entry with the id given as `after`."""


def unavailable(error: BaseException) -> StoreUnavailable:
    """Translate a driver's error on a database that has worked before."""
    if _state(error).startswith(_CONTENDED_STATES):
        return Contended(describe(error))
    return StoreUnavailable(describe(error)) if is_away(error) else StatementRefused(describe(error))


def unopened(error: BaseException) -> StoreUnavailable | DatabaseUnusable:
    """Translate a driver's error at Steno's start."""
    if is_away(error, at_start=True):
        return StoreUnavailable(describe(error))
    if _is_configuration(error):
        return DatabaseURLError(f"The database URL cannot be used: {describe_refusal(error)}")
    return DatabaseUnusable(f"The database cannot be opened: {describe_refusal(error)}")


def is_away(error: BaseException, *, at_start: bool = False) -> bool:
    """Whether the error is an outage, so that a later attempt may succeed.

    At Steno's start, a wrong password, a missing right and a file that cannot be opened or written are no outage. Later
    they are outages: the operator may have changed the password, or the volume may have become read-only.
    """
    if isinstance(error, OSError | PoolExhausted):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in (_TRANSIENT_CODES if at_start else _TRANSIENT_CODES | _CLOSED_CODES)
    if state := _state(error):
        return state.startswith(_TRANSIENT_STATES if at_start else (*_TRANSIENT_STATES, *_NOT_ALLOWED_IN))
    return isinstance(_cause(error), _OF_THE_CONNECTION) and not _is_configuration(error)


def _is_configuration(error: BaseException) -> bool:
    """Whether the error says that asyncpg could not read the URL."""
    return isinstance(_cause(error), asyncpg.exceptions.ClientConfigurationError)


def describe(error: BaseException) -> str:
    """Describe an error in one line for logs and headers, without the values that the database's message may quote."""
    if isinstance(error, TimeoutError):
        return "the database does not answer"
    if isinstance(error, PoolExhausted):
        return "all database connections are in use"
    if isinstance(error, OSError):
        # Not the error's own message: asyncio puts the address into it, and clients see this line.
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
        return f"the database cannot be reached ({cause})"
    if _state(error).startswith(_CONTENDED_STATES):
        return f"another process is at it ({describe_refusal(error)})"
    if is_away(error):
        return f"the database is not available ({describe_refusal(error)})"
    return f"the database refused ({type(_cause(error)).__name__})"


def describe_refusal(error: BaseException) -> str:
    """Return the first line of the database's message. Unsafe for errors of queries: the message may quote values."""
    cause = _cause(error)
    return next(iter(str(cause).splitlines()), "") or type(cause).__name__


def _cause(error: BaseException) -> BaseException:
    # SQLAlchemy wraps twice: DBAPIError.orig is a class of SQLAlchemy's, whose cause is the driver's error.
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _state(error: BaseException) -> str:
    """Return PostgreSQL's code of an error; an empty string if there is none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _sqlite_code(error: BaseException | None) -> int:
    # The low byte is the primary code. Errors raised by the driver itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


class Address(Struct, frozen=True):
    kind: str
    """`postgresql`, `file` (SQLite) or `memory` (SQLite)."""
    dsn: str
    """URL for asyncpg, in libpq's syntax: the option is `sslmode`, not `ssl`. Empty for SQLite.

    Several hosts are given as `?host=a,b`. asyncpg tries the next host if a host refuses the connection, but not if a
    host does not answer, because one timeout covers all hosts.
    """
    path: Path | None
    place: str
    """The URL without password and options, the absolute path of the SQLite file, or `memory`."""
    prepares: bool = True
    """Whether asyncpg may name prepared statements. `?prepared_statement_cache_size=0` forbids it, for PgBouncer."""


def read_url(url: str) -> Address:
    """Parse `memory`, `sqlite:///…`, `postgres://…` or `postgresql://…`, also with an async driver's name."""
    if url == "memory":
        return Address("memory", "", None, "memory")
    parsed, parts = None, urlsplit("")
    with suppress(ArgumentError, ValueError):
        parts = urlsplit(url)
        _ = parts.port  # raises if it is no number
        parsed = make_url(url)
        # With an unescaped @, / or ? a part of the password ends up in the host or the path, which messages show.
        is_split = "@" in (parsed.host or "") + (parsed.database or "") or url.count("@") > 1
        if is_split and not parsed.drivername.startswith("sqlite"):
            parsed = None
    if parsed is None:  # Raised outside the `with`: otherwise the error's context could show the password.
        raise DatabaseURLError(
            "The database URL cannot be read. It looks like postgresql://user:password@host:5432/name, "
            "sqlite:///path/steno.db or memory; @ : / ? in a password are written %40 %3A %2F %3F."
        )
    # Options are not shown: libpq accepts the password as an option, and encrypted SQLite the key.
    shown = parsed.render_as_string(hide_password=True).partition("?")[0]
    match parsed.drivername:
        case "sqlite" | "sqlite+aiosqlite":
            if parsed.database in {None, "", ":memory:"}:
                return Address("memory", "", None, "memory")
            path = Path(str(parsed.database))
            return Address("file", "", path, str(path.absolute()))
        case "postgres" | "postgresql" | "postgresql+asyncpg":
            # asyncpg parses the URL itself. SQLAlchemy's option `ssl` is called `sslmode` there.
            options = {"sslmode" if name == "ssl" else name: value for name, value in parse_qsl(parts.query)}
            prepares = options.pop("prepared_statement_cache_size", "") != "0"
            query = f"?{urlencode(options)}" if options else ""
            return Address("postgresql", f"postgresql://{parts.netloc}{parts.path}{query}", None, shown, prepares)
    raise DatabaseURLError(
        f"The database URL begins with {parsed.drivername!r}; Steno knows sqlite, postgresql and the word memory."
    )


class Database:
    """Connections to one database, for reading and for writing. A connection is opened at its first use."""

    def __init__(self, url: str, *, lock_seconds: float = LOCK_SECONDS) -> None:
        self.address = read_url(url)
        self._lock_seconds = min(lock_seconds, PATIENT_LOCK_SECONDS)
        self.is_sqlite = self.address.kind != "postgresql"
        self._writer = asyncio.Lock() if self.is_sqlite else None
        self.queued: set[asyncio.Task[Any] | None] = set()
        """Tasks that wait for another task of this process to finish writing."""
        self._driver_connections: WeakSet[Any] = WeakSet()
        self._idle: WeakSet[Any] = WeakSet()
        """Unused connections of the pool."""
        self.engine = self._sqlite() if self.is_sqlite else self._postgresql(COMMAND_SECONDS)
        # Not AUTOCOMMIT on SQLite: returning to the default level would turn pysqlite's own BEGIN on again.
        reading = {_READS_ONLY: True} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._reader = self.engine.execution_options(**reading)

    @asynccontextmanager
    async def writing(self, *, patient: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open one transaction. On SQLite it takes the write lock first, so the rows that it reads cannot change.

        The longest wait is `lock_seconds` for each lock on PostgreSQL, and `QUEUE_SECONDS` for earlier writers of this
        process on SQLite. With `patient` it is `PATIENT_LOCK_SECONDS` on both. A longer wait raises `Contended`.
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
            if not self.address.prepares:  # Behind PgBouncer the session has no limits.
                limits |= _limits_of(connection.dialect.server_version_info or (), self._lock_seconds)
            if patient:
                limits |= {"lock_timeout": f"{PATIENT_LOCK_SECONDS * 1000:.0f}ms"}
            if limits:
                await connection.exec_driver_sql(_set(limits, local=True))
            yield connection

    async def _take_turn(self, writer: asyncio.Lock, seconds: float) -> None:
        # In SQLite, waiting writers poll at growing intervals, so with many writers some would wait for seconds. With
        # this lock, writers of this process write in turn.
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
        """Open a connection without a transaction: each query sees the committed rows and waits for no writer."""
        async with self._reader.connect() as connection:
            yield connection

    async def ping(self) -> None:
        async with self.reading() as connection:
            await connection.exec_driver_sql("SELECT 1")

    @asynccontextmanager
    async def migrating(self) -> AsyncIterator[AsyncConnection]:
        """Open one transaction with enough time (600 s on PostgreSQL) to await another migration or rewrite a table."""
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
        """Terminate the unused connections. They may have died unnoticed, while new connections work."""
        for connection in list(self._idle):
            connection.terminate()  # The pool replaces closed connections before use.

    async def close(self) -> None:
        """Close every connection. Terminate the connections that do not close within two seconds."""
        disposing = asyncio.ensure_future(self.engine.dispose())
        await asyncio.wait({disposing}, timeout=CLOSE_SECONDS)
        for connection in list(self._driver_connections):
            # This ends abandoned calls, too. To cancel a call, asyncpg would open another connection, which may hang.
            # `is_closed()` is not checked: it is already true while a connection waits in close().
            connection.terminate()
        await disposing

    def _sqlite(self) -> AsyncEngine:
        # A database in memory ends with its connection. A pool of one connection keeps it, and runs one transaction at
        # a time. StaticPool would give the connection to two tasks at once, and a rollback of one task would discard
        # the other's rows. A file has no overflow connections, because each of them would start a thread at each use.
        database = ":memory:" if self.address.path is None else str(self.address.path)
        engine = create_async_engine(
            URL.create("sqlite+aiosqlite", database=database),
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
            # PgBouncer gives each transaction another backend, and before 1.21 does not track prepared statements. So
            # asyncpg prepares statements without names, in the packet that executes them. A named statement would be
            # missing on the next backend, and stay on the first one for good. The session's settings would apply to
            # transactions of other clients of PgBouncer, so `writing` sets them for each transaction.
            arguments["async_creator_fn"] = partial(connect, statement_cache_size=0)
            arguments["prepared_statement_cache_size"] = 0
        # No overflow: connections beyond the pool's size would be opened for each use (docs/scale.md).
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
        # Unlike `pool_pre_ping`, this needs no round trip. The command timeout detects connections that died silently.
        if connection.driver_connection.is_closed():
            raise DisconnectionError

    def _on_checkin(self, connection: Any, _record: Any) -> None:
        if connection is not None:  # None if the pool discarded it.
            self._idle.add(connection.driver_connection)

    def _on_error(self, context: ExceptionContext) -> None:
        error = context.original_exception
        if isinstance(error, TimeoutError) or getattr(error, "sqlstate", None) == _DEMOTED:
            # All connections lead to the same server. SQLAlchemy replaces connections in use when they are returned.
            context.is_disconnect = True
            self.cut_idle()


async def _connect(connect: Callable[[], Awaitable[Any]], lock_seconds: float | None) -> Any:
    connection = await connect()
    limits = {} if lock_seconds is None else _limits_of(connection.get_server_version(), lock_seconds)
    try:
        # Not in the startup packet: PgBouncer (also in session mode) and PostgreSQL refuse a connection that names an
        # unknown setting there.
        await connection.execute(_set(_KEEPALIVES | limits, local=False))
    except BaseException:
        connection.terminate()
        raise
    return connection


def _limits_of(server_version: tuple[Any, ...], lock_seconds: float) -> dict[str, str]:
    newer = _LIMITS_SINCE_17 if server_version >= (17,) else {}
    return {"lock_timeout": f"{lock_seconds * 1000:.0f}ms", **_LIMITS, **newer}


def _set(values: Mapping[str, str], *, local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {local})" for name, value in values.items())


def _set_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    # By default each of fifteen connections caches 2 MB. The operating system caches the file anyway.
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "secure_delete=ON")
    for pragma in (*pragmas, f"cache_size=-{CACHE_KIB}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()

    def lower(value: object) -> object:  # SQLite's own function changes ASCII letters only.
        return value.lower() if isinstance(value, str) else value

    connection.create_function("lower", 1, lower, deterministic=True)


def _begin_immediate(connection: Connection) -> None:
    # The driver's own BEGIN comes at the first write. If two transactions read first, one update would be lost.
    if not connection.get_execution_options().get(_READS_ONLY):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


class Guard:
    """Timeouts of database calls, and a circuit breaker, so that requests do not wait during an outage.

    A call that takes too long is abandoned, not cancelled. To cancel a call, asyncpg opens a second connection to the
    server. This connection hangs if the network drops packets.
    """

    def __init__(self, database: Database, *, open_seconds: float = 5.0) -> None:
        self._database = database
        self._open_seconds = open_seconds
        self._failures = 0
        self._answers = 0
        self._refused = 0
        """Number of refused calls since the breaker opened."""
        self._abandoned: set[asyncio.Task[Any]] = set()
        self._probing: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()
        self.reason: str | None = None
        """Why the breaker is open; None while it is closed."""

    async def call(self, work: Work[T], timeout: float) -> T:  # noqa: ASYNC109 - not a cancellation
        """Run `work` for at most `timeout` seconds; raise StoreUnavailable at once while the breaker is open."""
        if self.reason is not None:
            self._refused += 1
            raise StoreUnavailable(self.reason)
        answers_before = self._answers
        try:
            result = await self.bounded(work, timeout)
        except (StatementRefused, Contended):
            self._answered()
            raise
        except StoreUnavailable as error:
            # If other calls were answered meanwhile, this call only queued too long, as when 200 requests come at once.
            # This is no failure of the database.
            if self._answers == answers_before:
                self._failures += 1
                if self._failures >= FAILURES_TO_OPEN and self.reason is None:
                    self.reason, self._refused = error.reason, 0
                    log.warning("database away", reason=error.reason, remedy=REMEDY)
                    self._probing = asyncio.ensure_future(self._probe_until_well())
            raise
        self._answered()
        return result

    async def bounded(self, work: Work[T], timeout: float) -> T:  # noqa: ASYNC109 - not a cancellation
        """Run `work` for at most `timeout` seconds, also while the breaker is open."""
        task, done, left = asyncio.ensure_future(work()), set[asyncio.Task[T]](), SLICES
        try:
            # A slice does not count while the call waits for other writers of this process, and takes longer while the
            # event loop is busy. The database causes neither delay.
            while left and not done:
                done, _pending = await asyncio.wait({task}, timeout=timeout / SLICES)
                left -= task not in self._database.queued
        finally:
            if not done:  # The call took too long, or the client left.
                self._abandon(task)
        if not done:
            raise StoreUnavailable(f"the database did not answer within {timeout * 1000:.0f} ms")
        try:
            return task.result()
        except DATABASE_ERRORS as error:
            raise unavailable(error) from error

    async def close(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.wait({self._probing})

    async def abandoned_calls(self, seconds: float) -> None:
        """Wait at most `seconds` for abandoned calls. A hanging call ends when its connection is terminated."""
        if self._abandoned:
            await asyncio.wait(set(self._abandoned), timeout=seconds)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        def end(task: asyncio.Task[Any]) -> None:
            self._abandoned.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("abandoned database call failed", reason=describe(error))

        self._abandoned.add(task)
        task.add_done_callback(end)

    def _answered(self) -> None:
        self._answers += 1
        self._failures = 0

    async def _probe_until_well(self) -> None:
        """Probe the database in the background until it answers, then close the breaker."""
        opened_at = monotonic()
        self._database.cut_idle()
        while self.reason is not None:
            await asyncio.sleep(self._open_seconds)
            try:
                await self.bounded(self._database.ping, PROBE_SECONDS)
            except StoreUnavailable as error:
                self.reason = error.reason
            except Exception:  # Otherwise the breaker would stay open for ever.
                if (times := self._throttle.count("probe")) is not None:
                    log.exception("probing the database failed", times=times)
            else:
                self.reason = None
                self._throttle.end("probe")
                self._answered()
                log.info("database back", refused=self._refused, seconds=round(monotonic() - opened_at, 1))
