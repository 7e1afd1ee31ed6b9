"""Retention and erasure: delete unused rows after `retention_days`, and all rows of a tenant on request.

Each transaction deletes a few rows. Replicas may run retention at the same time, because it skips rows that another
transaction has locked. A new table with a column `tenant` is included automatically in the erasure of a tenant.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import leases
from app.store.chunks import USED_EVERY_MS
from app.store.engine import StoreUnavailable
from app.store.tables import (
    DAY_MS,
    calibrations,
    conversations,
    heads,
    histories,
    learned_windows,
    masks,
    metadata,
    now_ms,
    pins,
    read_once,
    summary_chunks,
    usage_records,
)

if TYPE_CHECKING:
    from app.store.store import P, Query, Store

log = structlog.get_logger("steno.store")

START_SECONDS = 10.0
EVERY_SECONDS = 3_600.0
PAUSE_SECONDS = 0.1
ROWS = 100
"""Maximum number of conversations, or of rows of another table, that one transaction deletes."""
TABLES = [table for table in metadata.sorted_tables if "tenant" in table.c]
# Erasure follows the order in which requests lock rows. Leases are revoked, not erased.
_FIRST = {"conversations", "heads", "leases"}
_ERASED = (conversations, heads, *(table for table in TABLES if table.name not in _FIRST))
_TIMES = summary_chunks.c.used_at, usage_records.c.created_at, calibrations.c.updated_at, learned_windows.c.expires_at
"""Columns with the time of a row's last use, creation, change or expiry. Retention deletes old rows by this time."""


async def run(store: Store) -> None:
    """Delete old rows about ten seconds after the store is ready, then about once an hour."""
    await store.ready.wait()
    await asyncio.sleep(START_SECONDS * random.uniform(0.5, 1.5))
    while True:
        for task in (remove_old_leases, remove_unused, empty_log):
            try:
                await task(store)
            except StoreUnavailable as error:
                log.warning("tidying put off", task=task.__name__, reason=error.reason)
            except Exception:
                log.exception("tidying put off", task=task.__name__)
        await asyncio.sleep(EVERY_SECONDS * random.uniform(0.5, 1.5))


# Each task may raise StoreUnavailable.


async def remove_old_leases(store: Store) -> None:
    await _repeat(store, leases.remove_old_leases, ROWS)


async def remove_unused(store: Store) -> None:
    """Delete conversations whose latest request, and rows whose time in `_TIMES`, is older than `retention_days`."""
    if store.retention_days is None:
        return
    kept_ms = store.retention_days * DAY_MS + USED_EVERY_MS  # An hour more, because `used_at` is updated hourly.
    await _repeat(store, _remove_conversations, kept_ms, ROWS)
    for time in _TIMES:
        await _repeat(store, _remove_rows, time, kept_ms, ROWS)


async def empty_log(store: Store) -> None:
    """Empty SQLite's log of changes (WAL), which may still contain deleted rows. Wait some seconds for readers. In the
    database file itself, SQLite overwrites deleted rows (`secure_delete`)."""
    if store.database.address.path is not None:
        await store.task(_cut_log)


async def _repeat(store: Store, remove: Query[P, int], *arguments: P.args, **options: P.kwargs) -> None:
    """Call `remove` in one transaction after another until it finds no more rows. Short transactions keep requests from
    waiting long for the write lock of SQLite."""
    while await store.task_change(remove, *arguments, **options):  # noqa: ASYNC110 - not a poll
        await asyncio.sleep(PAUSE_SECONDS)


# Each function deletes at most `most` rows and returns their number. Needs a transaction.


async def _remove_conversations(connection: AsyncConnection, kept_ms: int, most: int) -> int:
    """Delete conversations whose last request is older than `kept_ms`. Keep their chunks, which other conversations may
    use: `used_at` decides when a chunk is deleted."""
    rows = await connection.execute(_oldest(conversations.c.updated_at, kept_ms, most))
    gone: list[tuple[str, str]] = [(row.tenant, row.id) for row in rows]
    if not gone:
        return 0
    # Lock in the order of a flush, which may move heads to other conversations: no deadlock.
    its_heads = sa.select(heads.c.digest).where(sa.tuple_(heads.c.tenant, heads.c.conversation_id).in_(gone))
    await connection.execute(its_heads.order_by(heads.c.tenant, heads.c.digest).with_for_update())
    for table in (heads, masks, pins, histories):
        await connection.execute(sa.delete(table).where(sa.tuple_(table.c.tenant, table.c.conversation_id).in_(gone)))
    await connection.execute(sa.delete(conversations).where(sa.tuple_(*conversations.primary_key).in_(gone)))
    return len(gone)


async def _remove_rows(connection: AsyncConnection, time: sa.Column[int], kept_ms: int, most: int) -> int:
    key, some = sa.tuple_(*time.table.primary_key), _oldest(time, kept_ms, most)
    old = time < read_once(now_ms() - kept_ms)
    return (await connection.execute(sa.delete(time.table).where(key.in_(some), old))).rowcount


def _oldest(time: sa.Column[int], kept_ms: int, most: int) -> sa.Select[Any]:
    # The order makes PostgreSQL use the index. Without it, PostgreSQL would scan the table, because it estimates that a
    # third of the rows are old.
    old = sa.select(*time.table.primary_key).where(time < read_once(now_ms() - kept_ms))
    return old.order_by(time).limit(most).with_for_update(skip_locked=True)


async def erase_some(connection: AsyncConnection, tenant: str, most: int) -> int:
    """Delete at most `most` of a tenant's rows, from one table. Return their number; 0 if the tenant has no rows."""
    for table in _ERASED:
        key, own = sa.tuple_(*table.primary_key), table.c.tenant == tenant
        some = sa.select(*table.primary_key).where(own).order_by(*table.primary_key).limit(most).with_for_update()
        removed = await connection.execute(sa.delete(table).where(own, key.in_(some)))
        if removed.rowcount:
            return removed.rowcount
    return 0


async def _cut_log(connection: AsyncConnection) -> None:
    """Write SQLite's log (WAL) into the database file, and empty it. Must not run in a transaction."""
    await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
