"""Retention: what nobody used for so long is deleted, a few rows in each transaction.

Replicas may do it side by side: rows that one of them deletes are skipped by the others, and so are those that a
request is using at this moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.chunks import USED_EVERY_MS
from app.store.clock import now_ms
from app.store.tables import (
    calibrations,
    conversations,
    heads,
    histories,
    learned_windows,
    masks,
    pins,
    summary_chunks,
    usage_records,
)

Removal = Callable[[AsyncConnection, int, int], Awaitable[int]]
"""Removes so many rows that are older than so many milliseconds, and says how many there were. Needs a transaction."""


async def remove_conversations(connection: AsyncConnection, kept_ms: int, most: int) -> int:
    """Remove conversations by their last request. Their chunks have a time of their own: other conversations may use
    them."""
    found = await connection.execute(_oldest(conversations, conversations.c.updated_at, kept_ms, most))
    gone: list[tuple[str, str]] = [(row.tenant, row.id) for row in found]
    if not gone:
        return 0
    owned = tuple_(heads.c.tenant, heads.c.conversation_id).in_(gone)
    # As a flush does, which may be giving them to other conversations: no deadlock.
    await connection.execute(
        select(heads.c.digest).where(owned).order_by(heads.c.tenant, heads.c.digest).with_for_update()
    )
    for table in (heads, masks, pins, histories):
        await connection.execute(delete(table).where(tuple_(table.c.tenant, table.c.conversation_id).in_(gone)))
    await connection.execute(delete(conversations).where(tuple_(*conversations.primary_key).in_(gone)))
    return len(gone)


async def date_chunks(connection: AsyncConnection, most: int) -> int:
    """Date the chunks of an earlier release: they grow old from now on."""
    undated = summary_chunks.c.used_at.is_(None)
    key = tuple_(*summary_chunks.primary_key)
    some = select(*summary_chunks.primary_key).where(undated).limit(most).with_for_update(skip_locked=True)
    dated = await connection.execute(update(summary_chunks).where(key.in_(some), undated).values(used_at=now_ms()))
    return dated.rowcount


def _by(table: Table, time: Column[int], later_ms: int = 0) -> Removal:
    """Removal of rows by this time, so many milliseconds later than usual."""

    async def remove(connection: AsyncConnection, kept_ms: int, most: int) -> int:
        return await _remove(connection, table, time, kept_ms + later_ms, most)

    return remove


def _before(kept_ms: int) -> ColumnElement[int]:
    # In a subquery the clock is read once, so that an index finds what is older.
    return select(now_ms() - kept_ms).scalar_subquery()


def _oldest(table: Table, time: Column[int], kept_ms: int, most: int) -> Select[Any]:
    # In order: PostgreSQL takes a third of the rows for old, of which some would soon be found anywhere, and reads the
    # whole table where few are. In the order of the index it begins with the oldest.
    old = select(*table.primary_key).where(time < _before(kept_ms))
    return old.order_by(time).limit(most).with_for_update(skip_locked=True)


async def _remove(connection: AsyncConnection, table: Table, time: Column[int], kept_ms: int, most: int) -> int:
    key, some = tuple_(*table.primary_key), _oldest(table, time, kept_ms, most)
    removed = await connection.execute(delete(table).where(key.in_(some), time < _before(kept_ms)))
    return removed.rowcount


REMOVALS: tuple[Removal, ...] = (
    remove_conversations,
    _by(summary_chunks, summary_chunks.c.used_at, USED_EVERY_MS),  # The last payload is noted to the hour.
    _by(usage_records, usage_records.c.created_at),
    _by(calibrations, calibrations.c.updated_at),
    _by(learned_windows, learned_windows.c.expires_at),
)
