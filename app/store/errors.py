"""What can go wrong with the database, and whether waiting helps.

StoreError
├── StoreUnavailable        not now: unreachable, too slow, or the breaker is open
│   └── StatementRefused    the database is well, but does not take this statement
├── DatabaseUnusable        not before somebody changes something
│   ├── DatabaseURLError
│   ├── AccessRefused
│   ├── SchemaTooNew
│   └── MigrationFailed
└── UnknownCursor           `after` names nothing in the list
"""

from __future__ import annotations

import os
import sqlite3

import asyncpg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolExhausted

DATABASE_ERRORS = (SQLAlchemyError, OSError, OverflowError)
"""Everything the drivers raise: TimeoutError is an OSError, and OverflowError a number that SQLite cannot hold."""

# 08 connection, 53 out of resources, 57P0x shutting down or starting up, 25006 a standby after a failover,
# 40 a deadlock or a failed serialisation, 55P03 a lock that could not be had.
_TRANSIENT_STATES = ("08", "53", "57P0", "25006", "40", "55P03")
_TRANSIENT_CODES = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


class StoreError(Exception):
    """The root of this tree."""


class StoreUnavailable(StoreError):
    """The database did not do it in time; the same call may work later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StatementRefused(StoreUnavailable):
    """Says nothing about the database's health, so it neither opens the breaker nor is it tried again."""


class DatabaseUnusable(StoreError):
    """Steno cannot work with this database as it stands; `serve` ends with the message."""


class DatabaseURLError(DatabaseUnusable, ValueError):
    """The database URL cannot be read. The message never holds the URL: it may hold a password."""


class AccessRefused(DatabaseUnusable):
    """The database is there and does not let us in, or the file cannot be opened."""


class SchemaTooNew(DatabaseUnusable):
    """A later release of Steno has migrated the database."""


class MigrationFailed(DatabaseUnusable):
    """A migration raised; its transaction was rolled back."""


class UnknownCursor(StoreError, LookupError):
    """The list holds nothing by the id given as `after`."""


def is_unreachable(error: BaseException) -> bool:
    """Whether time alone may heal it, as opposed to a wrong password, a wrong file or a wrong statement."""
    if isinstance(error, OSError | PoolExhausted):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in _TRANSIENT_CODES
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state.startswith(_TRANSIENT_STATES)
    return isinstance(_cause(error), asyncpg.InterfaceError) and not is_configuration(error)


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
    if is_unreachable(error):
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


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _sqlite_code(error: sqlite3.Error) -> int:
    # The low byte is the primary code. Errors raised by the driver itself have none.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
