"""Errors of the database, by whether waiting helps.

StoreError
├── StoreUnavailable       not now: unreachable, too slow, or the breaker is open
│   ├── StatementRefused   the database is well, but does not take this statement
│   └── Contended          the database is well, but somebody else has a lock that this needs
│       └── Queued         somebody else of this process
├── DatabaseUnusable       not before somebody changes something
│   ├── DatabaseURLError
│   ├── AccessRefused
│   ├── SchemaTooNew
│   ├── SchemaTooOld
│   ├── WrongSecret
│   └── MigrationFailed
└── UnknownCursor          `after` names nothing in the list
"""

from __future__ import annotations

import os
import sqlite3

import asyncpg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted

DATABASE_ERRORS = (SQLAlchemyError, OSError, OverflowError)
"""Everything the drivers raise: TimeoutError is an OSError, and OverflowError a number that SQLite cannot hold."""

# 40 a deadlock or a failed serialisation, 55P03 a lock that could not be had.
_CONTENDED_STATES = ("40", "55P03")
# 08 connection, 53 out of resources, 57014 a statement that took too long, 57P0x shutting down or starting up, 58 the
# server's disk or system, 25006 a standby after a failover, 25P03 and 25P04 a transaction idle or open for too long,
# 55000 a database that accepts no connections for now.
_TRANSIENT_STATES = ("08", "53", "55000", "57014", "57P0", "58", "25006", "25P03", "25P04", *_CONTENDED_STATES)
# 28 a password or an entry of pg_hba.conf, 3D000 a database that is not there, 42501 a right that is missing: at the
# start a wrong URL. Afterwards somebody is about to change the password or the rights, or restores the database, and
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
    """Says nothing about the database's health either, but the same call may work in a moment."""


class Queued(Contended):
    """The call has to wait behind others of this process, who are let in one by one."""


class DatabaseUnusable(StoreError):
    """Steno cannot work with this database as it stands; `serve` ends with the message."""


class DatabaseURLError(DatabaseUnusable, ValueError):
    """The database URL cannot be read. The message never holds the URL: it may hold a password."""


class AccessRefused(DatabaseUnusable):
    """The database is there and does not let us in, or the file cannot be opened."""


class SchemaTooNew(DatabaseUnusable):
    """A later release of Steno has migrated the database."""


class SchemaTooOld(DatabaseUnusable):
    """The database is older than the release from which this one migrates."""


class WrongSecret(DatabaseUnusable):
    """The database was made with another secret."""


class MigrationFailed(DatabaseUnusable):
    """A migration raised; its transaction was rolled back."""


class UnknownCursor(StoreError, LookupError):
    """The list holds nothing by the id given as `after`."""


def unavailable(error: BaseException) -> StoreUnavailable:
    """The error that a driver's error is to whoever made the call."""
    if _state(error).startswith(_CONTENDED_STATES):
        return Contended(describe(error))
    kind = StoreUnavailable if is_away(error) else StatementRefused
    return kind(describe(error))


def is_away(error: BaseException) -> bool:
    """Whether a database that was well does not let us in for now, for whatever reason."""
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
    return isinstance(_cause(error), _OF_THE_CONNECTION) and not is_configuration(error)


def is_closed_to_us(error: BaseException) -> bool:
    """Whether a SQLite file may not be opened or written: at the start a wrong path or wrong permissions, and later a
    volume that was made read-only under us, which is an outage like others."""
    return isinstance(error, DBAPIError) and _sqlite_code(error.orig) in _CLOSED_CODES


def is_configuration(error: BaseException) -> bool:
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
        return f"somebody else is at it ({_first_line(_cause(error))})"
    if is_away(error):
        return f"the database is not available ({_first_line(_cause(error))})"
    return f"the database refused ({type(_cause(error)).__name__})"


def describe_refusal(error: BaseException) -> str:
    """The database's own words, for errors in which no values can occur: connecting, opening, migrating."""
    return _first_line(_cause(error))


def _cause(error: BaseException) -> BaseException:
    # SQLAlchemy wraps twice: DBAPIError.orig is its own class, and the driver's error is that one's cause.
    if isinstance(error, DBAPIError) and error.orig is not None:
        return error.orig.__cause__ or error.orig
    return error


def _state(error: BaseException) -> str:
    """PostgreSQL's code for it; empty where there is none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _sqlite_code(error: BaseException | None) -> int:
    # The low byte is the primary code. Errors raised by the driver itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
