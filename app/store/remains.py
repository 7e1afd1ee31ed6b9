"""Remains: what a database keeps in its files of deleted rows. Nobody reads them, but whoever has the files can.

SQLite overwrites pages that it frees (`secure_delete`, see `database`). That leaves the log of changes (WAL), which
holds what pages were before, and the full text indexes, which only note that a row is gone until they are merged.

PostgreSQL overwrites nothing: a plain VACUUM frees the room, and the bytes stay there. So tables are written anew
(VACUUM FULL), which locks each for as long as it takes. No request is to wait for that: a table that takes longer than
`LOCKED_MS` stays as it is, and the operator is told. The log is left behind by a new segment and a checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.calls import Calls
from app.store.database import COMMAND_SECONDS, connected
from app.store.tables import message_words, messages, metadata

SEARCHES = ("summary_search", "message_search")
PAGES = 250
"""Pages merged in one transaction: others wait to write meanwhile."""

TRIES, PAUSE_SECONDS = 5, 0.5
LOCKED_MS = 150
"""Longest time that a table is locked: less than a request waits for the database."""
ARCHIVE_LOCKED_MS = 4_000
"""The same for the archive, which no request waits for."""
SNAPSHOT_SECONDS = 20.0
"""Wait for statements that began before the deletion, and still see what was deleted."""
_LOCK = (0x57E0, 0x0003)  # Beside that of `summary_index`.
_ARCHIVE = (messages.name, message_words.name)
_STATISTICS = "pg_statistic"
"""Table of PostgreSQL's that holds samples of the values in columns."""

_TABLES = """
SELECT c.oid::regclass::text AS name, root.relname = ANY($2::text[]) AS is_archive,
       pg_has_role(c.relowner, 'USAGE') AS is_own
FROM pg_class c JOIN pg_class root ON root.oid = coalesce(pg_partition_root(c.oid), c.oid)
WHERE c.relkind = 'r' AND root.relname = ANY($1::text[]) AND root.relnamespace = current_schema()::regnamespace
"""
_CLEAR_STATISTICS = """
SELECT pg_clear_attribute_stats(n.nspname::text, c.relname::text, a.attname::text, false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
_SEEN_BY_NOBODY = """
SELECT NOT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND age(backend_xmin) > age($1::text::xid)
)
"""
_MAY_CHECKPOINT = """
SELECT has_function_privilege('pg_switch_wal()', 'EXECUTE') AND (
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)
    OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'pg_checkpoint' AND pg_has_role(oid, 'USAGE')))
"""


async def merge_indexes(calls: Calls) -> None:
    """Merge SQLite's search indexes, so that they hold no words of what was deleted."""
    if calls.database.address.path is None:
        return
    for search in SEARCHES:
        first = True
        while await calls.change_at_once(_merge_some, search, first=first):
            first = False


async def empty_log(calls: Calls) -> None:
    """Empty SQLite's log, so that it holds nothing of what was deleted. Waits some seconds for those who read."""
    if calls.database.address.path is not None:
        await calls.at_once(_cut_log)


async def write_anew(dsn: str) -> dict[str, str]:
    """Write PostgreSQL's tables anew, and leave its log behind. What could not be done, with the reason.

    Raises StoreUnavailable.
    """
    async with connected(dsn, SNAPSHOT_SECONDS + COMMAND_SECONDS) as connection:
        # One replica after another: what a second one erased meanwhile is still to be cleared.
        await connection.execute("SELECT pg_advisory_lock($1, $2)", *_LOCK)
        return {**await _tables_left(connection), **await _log_left(connection)}


async def _tables_left(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    now = await connection.fetchval("SELECT pg_current_xact_id()::text")
    waited = 0.0
    while not await connection.fetchval(_SEEN_BY_NOBODY, str(int(now) % 2**32)):
        if (waited := waited + PAUSE_SECONDS) > SNAPSHOT_SECONDS:
            return {"tables": "a transaction from before the deletion is still open"}
        await asyncio.sleep(PAUSE_SECONDS)
    left: dict[str, str] = {}
    names = [table.name for table in metadata.sorted_tables]
    for table in await connection.fetch(_TABLES, names, _ARCHIVE):
        if not table["is_own"]:
            left[table["name"]] = "the role does not own the table"
            continue
        milliseconds = ARCHIVE_LOCKED_MS if table["is_archive"] else LOCKED_MS
        steps = ((f"VACUUM FULL {table['name']}", milliseconds), (f"ANALYZE {table['name']}", ARCHIVE_LOCKED_MS))
        if why := await _why_not(connection, steps):
            left[table["name"]] = why
        elif not await connection.fetchval(f"SELECT EXISTS (SELECT FROM {table['name']})"):  # noqa: S608 - as PostgreSQL quotes it
            # ANALYZE leaves the statistics of a table as they are where it finds no row.
            if connection.get_server_version() < (18,):
                left[table["name"]] = "it is empty, and its statistics stay until it is analysed with a row in it"
            else:
                await connection.execute(_CLEAR_STATISTICS, table["name"])
    is_owner = "SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()"
    if not await connection.fetchval(is_owner):
        left[_STATISTICS] = "the role does not own the database"
    elif why := await _why_not(connection, ((f"VACUUM FULL {_STATISTICS}", LOCKED_MS),)):
        left[_STATISTICS] = why
    return left


async def _why_not(connection: asyncpg.Connection[asyncpg.Record], steps: Sequence[tuple[str, int]]) -> str | None:
    """Why the statements could not be carried out, each within so many milliseconds; None if they were."""
    for tried in range(TRIES):
        try:
            for statement, milliseconds in steps:
                await connection.execute(f"SET statement_timeout = {milliseconds}")
                await connection.execute(statement)
        except (asyncpg.QueryCanceledError, asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
            await asyncio.sleep(PAUSE_SECONDS * 2**tried)
        else:
            return None
    return f"it would be locked for more than {steps[0][1]} ms"


async def _log_left(connection: asyncpg.Connection[asyncpg.Record]) -> dict[str, str]:
    if not await connection.fetchval(_MAY_CHECKPOINT):
        return {"log": "the role may not switch it and make a checkpoint: it is left behind by those to come"}
    await connection.execute("SET statement_timeout = 0")
    await connection.execute("SELECT pg_switch_wal()")
    await connection.execute("CHECKPOINT")
    if await connection.fetchval("SELECT current_setting('wal_recycle')::bool"):
        return {"log": "wal_recycle is on: its segments are kept until they are written over"}
    return {}


async def _merge_some(connection: AsyncConnection, search: str, *, first: bool) -> bool:
    """A step of merging all parts of an index into one, and whether there are more. `first`: of the first step. Needs a
    transaction."""
    changes = select(func.total_changes())
    before = (await connection.execute(changes)).scalar_one()
    pages = -PAGES if first else PAGES
    await connection.exec_driver_sql(f"INSERT INTO {search}({search}, rank) VALUES('merge', {pages})")
    after = (await connection.execute(changes)).scalar_one()
    return bool(after - before > 1)  # The command is one itself.


async def _cut_log(connection: AsyncConnection) -> None:
    """Write the log into the file, and cut it. Needs to be no transaction."""
    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
