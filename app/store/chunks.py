"""Summary chunks: found by the digests of a chain, stored once, never changed.

What is not to be used any more is deactivated: the row stays, as a record and so that its version is not given again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import asdict, replace
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    Text,
    bindparam,
    cast,
    delete,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.summary.versions import renumbered
from app.core.view.chunks import FirstChunk, SummaryChunk
from app.store.batches import Lookup, batches
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.lease import Lease, fence_holds
from app.store.pages import Page, Paging, read_page
from app.store.rows import members, owned, rows_of
from app.store.summary_index import SUMMARIES, searched
from app.store.tables import conversations, summary_chunks, summary_words
from app.store.words import words_in

USED_EVERY_MS = 3_600_000
"""Shortest time between two notes of a chunk's use: a chunk of a busy conversation stands in every payload."""
_RANGE = (
    summary_chunks.c.series,
    summary_chunks.c.level,
    summary_chunks.c.from_digest,
    summary_chunks.c.through_digest,
)


def _chunks_that_end(there: ColumnElement[bool]) -> Select[Any]:
    # Not planned together: PostgreSQL would go through all of a tenant's chunks, taking them for few.
    ends = select(summary_chunks).where(there).cte("ends").prefix_with("MATERIALIZED", dialect="postgresql")
    return select(ends).where(
        ends.c.tenant == bindparam("tenant"), ends.c.series == bindparam("series"), ends.c.deactivated_at.is_(None)
    )


def _recent_first_chunks_that_end(there: ColumnElement[bool]) -> Select[Any]:
    # In a subquery the clock is read once, so that the index finds what is recent; there are messages that thousands of
    # histories end with.
    now = select(now_ms()).scalar_subquery()
    return select(*(summary_chunks.c[name] for name in FirstChunk.__struct_fields__)).where(
        summary_chunks.c.tenant == bindparam("tenant"),
        summary_chunks.c.series == bindparam("series"),
        summary_chunks.c.level == 0,
        summary_chunks.c.first_index == 0,
        summary_chunks.c.history_length.is_not(None),
        summary_chunks.c.created_at > now - bindparam("within_ms", type_=BigInteger),
        there,
    )


_USED_NOW = (
    update(summary_chunks)
    .where(summary_chunks.c.tenant == bindparam("of_tenant"), summary_chunks.c.id == bindparam("of_id"))
    .values(used_at=now_ms())
)
_IN_A_CHAIN = Lookup(summary_chunks.c.through_digest, _chunks_that_end)
_RECENT_FIRST = Lookup(summary_chunks.c.last_message_digest, _recent_first_chunks_that_end)


async def chunks_in(
    connection: AsyncConnection, tenant: str, series: str, chain: Sequence[bytes]
) -> list[SummaryChunk]:
    """The chunks of the series that are in use and apply to the chain: both their digests are in it."""
    known = frozenset(chain)
    rows = await _IN_A_CHAIN.find(connection, known, tenant=tenant, series=series)
    return [_read_chunk(row) for row in rows if row.from_digest in known]


async def chunks_named(connection: AsyncConnection, tenant: str, ids: Sequence[str]) -> list[SummaryChunk]:
    """The tenant's chunks with these ids, in the order of their ids, whether they are in use or not."""
    named = select(summary_chunks)
    rows = await rows_of(
        connection, sorted(set(ids)), lambda batch: named.where(owned(summary_chunks, tenant, id=batch))
    )
    found = {row.id: _read_chunk(row) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


async def recent_first_chunks(
    connection: AsyncConnection, tenant: str, series: str, messages: Sequence[bytes], within_seconds: float
) -> list[FirstChunk]:
    """The chunks made recently that begin a history and end with one of these messages, whatever stood before it."""
    wanted = {"tenant": tenant, "series": series, "within_ms": round(within_seconds * 1000)}
    rows = await _RECENT_FIRST.find(connection, frozenset(messages), **wanted)
    return [FirstChunk(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name for it


async def commit_chunks(
    connection: AsyncConnection, lease: Lease, chunks: Sequence[SummaryChunk]
) -> list[SummaryChunk] | None:
    """Store the chunks if the lease still holds, each as the next version where its range was deactivated.

    None also for a fold of what was edited or deactivated meanwhile. Needs a transaction; doing it twice is doing it
    once.
    """
    tenant = lease.tenant
    if not await fence_holds(connection, lease) or await _is_outdated(connection, tenant, chunks):
        return None
    new_ids: dict[str, str] = {}
    for chunk in chunks:
        stored = await _versioned(connection, tenant, chunk)
        new_ids[chunk.id] = stored.id
        await _insert(connection, tenant, replace(stored, children=tuple(new_ids.get(c, c) for c in stored.children)))
    return await _as_stored(connection, tenant, chunks)


async def replace_summary(
    connection: AsyncConnection, tenant: str, old_id: str, new: SummaryChunk
) -> SummaryChunk | None:
    """Store the next version of a chunk, and deactivate what it replaces. None where that is not in use any more.

    Needs a transaction.
    """
    held = await _lock_active(connection, tenant, {old_id})
    if old_id not in held:
        return None
    await _insert(connection, tenant, new)
    await _deactivate(connection, tenant, held)
    [stored] = await chunks_named(connection, tenant, [new.id])
    return stored


async def deactivate_summaries(connection: AsyncConnection, tenant: str, ids: Sequence[str]) -> list[str]:
    """Deactivate these chunks, and return the ids of those that were in use, with the folds that
    stand for any of them. Needs a transaction."""
    return await _deactivate(connection, tenant, await _lock_active(connection, tenant, set(ids)))


async def read_summaries(
    connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging
) -> Page[SummaryChunk]:
    """A page of the chunks that the conversation made or last used. Raises UnknownCursor if `after` is none of it."""
    rows = await _summaries_of(connection, tenant, conversation_id)
    return await read_page(connection, summary_chunks, rows, _read_chunk, paging)


async def read_active(connection: AsyncConnection, tenant: str, conversation_id: str, most: int) -> list[SummaryChunk]:
    """The chunks of `read_summaries` that are in use, by version; of more than `most` the latest."""
    rows = (await _summaries_of(connection, tenant, conversation_id)).where(summary_chunks.c.deactivated_at.is_(None))
    latest = rows.order_by(summary_chunks.c.created_at.desc(), summary_chunks.c.id).limit(most)
    return sorted(map(_read_chunk, await connection.execute(latest)), key=lambda chunk: (chunk.version, chunk.id))


async def find_summary(
    connection: AsyncConnection, tenant: str, conversation_id: str, chunk_id: str
) -> SummaryChunk | None:
    """The chunk with that id, if it is among `read_summaries`."""
    rows = await _summaries_of(connection, tenant, conversation_id)
    row = (await connection.execute(rows.where(summary_chunks.c.id == chunk_id))).first()
    return _read_chunk(row) if row else None


async def read_versions(connection: AsyncConnection, tenant: str, chunk: SummaryChunk) -> list[SummaryChunk]:
    """Every chunk of its range, level and series, by version: what it replaced, itself, and what replaced it."""
    same = {column.name: value for column, value in zip(_RANGE, _range(chunk), strict=True)}
    versions = select(summary_chunks).where(owned(summary_chunks, tenant, **same)).order_by(summary_chunks.c.version)
    return list(map(_read_chunk, await connection.execute(versions)))


async def note_use(connection: AsyncConnection, used: Collection[tuple[str, str]]) -> None:
    """Remember when these chunks, by tenant and id, stood in a payload. Needs a transaction."""
    now, key = select(now_ms()).scalar_subquery(), (summary_chunks.c.tenant, summary_chunks.c.id)
    is_due = or_(summary_chunks.c.used_at.is_(None), summary_chunks.c.used_at < now - USED_EVERY_MS)
    for batch in batches(sorted(used)):
        rows = await connection.execute(select(*key).where(tuple_(*key).in_(batch), is_due))
        # In order of their keys, so that two replicas cannot deadlock.
        if due := sorted((row.tenant, row.id) for row in rows):
            await connection.execute(_USED_NOW, [{"of_tenant": tenant, "of_id": id_} for tenant, id_ in due])


async def delete_chunks_of(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Delete what the conversation made, and every fold that stands for any of it."""
    of_it = owned(summary_chunks, tenant, conversation_id=conversation_id)
    own = await connection.execute(select(summary_chunks.c.id).where(of_it))
    doomed = set(own.scalars())
    if not doomed:
        return
    doomed |= await _folds_over(connection, tenant, doomed)
    for batch in batches(list(doomed)):
        await connection.execute(delete(summary_chunks).where(owned(summary_chunks, tenant, id=batch)))


async def _folds_over(connection: AsyncConnection, tenant: str, children: set[str]) -> set[str]:
    folds = await connection.execute(
        select(summary_chunks.c.id, summary_chunks.c.children)
        .where(summary_chunks.c.tenant == tenant, cast(summary_chunks.c.children, Text) != "[]")
        .order_by(summary_chunks.c.last_index, summary_chunks.c.level)
    )
    reached: set[str] = set()
    # A fold ends where what it stands for ends, or later, and of two that end alike one of folds has a higher level:
    # one pass in this order finds all.
    for fold in folds:
        if not (children | reached).isdisjoint(fold.children):
            reached.add(fold.id)
    return reached


async def _summaries_of(connection: AsyncConnection, tenant: str, conversation_id: str) -> Select[Any]:
    """Chunks that the conversation made or last used. Its row may not be there: chunks are stored at once,
    conversations a little later."""
    used = await connection.scalar(
        select(conversations.c.summaries).where(owned(conversations, tenant, id=conversation_id))
    )
    return select(summary_chunks).where(
        summary_chunks.c.tenant == tenant,
        or_(summary_chunks.c.conversation_id == conversation_id, summary_chunks.c.id.in_(used or [])),
    )


async def _as_stored(
    connection: AsyncConnection, tenant: str, chunks: Sequence[SummaryChunk]
) -> list[SummaryChunk] | None:
    """The chunks as they are stored; None where one was deactivated at this moment."""
    wanted = list(map(_range, chunks))
    rows = await connection.execute(
        select(summary_chunks)
        .where(
            summary_chunks.c.tenant == tenant, tuple_(*_RANGE).in_(wanted), summary_chunks.c.deactivated_at.is_(None)
        )
        .order_by(summary_chunks.c.version)
    )
    stored = {_range(chunk): chunk for chunk in map(_read_chunk, rows)}
    return [stored[key] for key in wanted] if stored.keys() >= set(wanted) else None


def _range(chunk: SummaryChunk) -> tuple[str, int, bytes, bytes]:
    return chunk.series, chunk.level, chunk.from_digest, chunk.through_digest


async def _versioned(connection: AsyncConnection, tenant: str, chunk: SummaryChunk) -> SummaryChunk:
    """The chunk, as the next version where all others of its range are deactivated."""
    found = await connection.execute(
        select(summary_chunks.c.version, summary_chunks.c.deactivated_at).where(
            summary_chunks.c.tenant == tenant, tuple_(*_RANGE) == tuple_(*_range(chunk))
        )
    )
    rows = found.all()
    if not rows or any(row.deactivated_at is None for row in rows):
        return chunk
    return renumbered(chunk, 1 + max(row.version for row in rows))


async def _insert(connection: AsyncConnection, tenant: str, chunk: SummaryChunk) -> None:
    """Store a chunk, with the words that find it."""
    timed = {"tenant": tenant, **_columns(chunk), "created_at": now_ms(), "used_at": now_ms()}
    await connection.execute(insert_into(connection, summary_chunks).values(**timed).on_conflict_do_nothing())
    words = words_in(searched(chunk.text, chunk.values, chunk.rules))
    await SUMMARIES.add(connection, [(tenant, chunk.id, words)])


async def _is_outdated(connection: AsyncConnection, tenant: str, chunks: Sequence[SummaryChunk]) -> bool:
    """Whether a fold among them stands for what is not in use any more. What they stand for stays as it is until the
    transaction ends: whoever edits one of them finds the fold."""
    children = sorted({child for chunk in chunks for child in chunk.children} - {chunk.id for chunk in chunks})
    states = select(summary_chunks.c.deactivated_at).with_for_update(read=True)
    rows = await rows_of(connection, children, lambda batch: states.where(owned(summary_chunks, tenant, id=batch)))
    return any(row.deactivated_at is not None for row in rows)


async def _lock_active(connection: AsyncConnection, tenant: str, ids: set[str]) -> set[str]:
    """Lock those chunks that are in use, with every fold over them. Nobody else changes them until the transaction
    ends, nor stores another fold."""
    # In order of their keys, so that two replicas cannot deadlock.
    wanted = sorted(ids | await _folds_over(connection, tenant, ids))
    active = select(summary_chunks.c.id).where(summary_chunks.c.deactivated_at.is_(None)).order_by(summary_chunks.c.id)
    rows = await rows_of(
        connection, wanted, lambda batch: active.where(owned(summary_chunks, tenant, id=batch)).with_for_update()
    )
    held = {row.id for row in rows} & ids
    return held | await _folds_over(connection, tenant, held)  # Once more: one may have been stored meanwhile.


async def _deactivate(connection: AsyncConnection, tenant: str, ids: Collection[str]) -> list[str]:
    """Deactivate the chunks, which no search finds any more, and return those that were in use."""
    done: list[str] = []
    for batch in batches(sorted(ids)):
        changed = await connection.execute(
            update(summary_chunks)
            .where(owned(summary_chunks, tenant, id=batch), summary_chunks.c.deactivated_at.is_(None))
            .values(deactivated_at=now_ms())
            .returning(summary_chunks.c.id)
        )
        done += sorted(changed.scalars())
        await connection.execute(delete(summary_words).where(owned(summary_words, tenant, id=batch)))
    return done


def _columns(chunk: SummaryChunk) -> dict[str, Any]:
    columns = asdict(chunk)
    columns["exact_values"] = columns.pop("values")  # "values" is a word of SQL, and SQLAlchemy's for all columns.
    return columns


def _read_chunk(row: Row[Any]) -> SummaryChunk:
    columns = members(row, "tenant", "used_at")
    columns["values"] = columns.pop("exact_values")
    return SummaryChunk(**columns)
