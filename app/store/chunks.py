"""Immutable summary chunks and masks. A request finds them by its chain: the digests of its history's prefixes.

Each range (tenant, series, level, first and last digest) has at most one chunk. A fold is a summary of summaries. When
a user corrects a summary, one transaction deletes the summary's chunk and every fold over this chunk, and stores a new
chunk with the user's text. The chunks of a series have the same strategy and focus. A mask is a boundary in a history:
tool results before the boundary are masked if the assistant has used them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from msgspec.structs import asdict
from sqlalchemy.ext.asyncio import AsyncConnection

from app.compaction.chunks import FirstChunk, SummaryChunk, UserWords
from app.runtime.caches import storable
from app.store.leases import Lease, fence_holds
from app.store.tables import (
    Page,
    Paging,
    conversations,
    insert_into,
    is_among,
    masks,
    members,
    now_ms,
    owned,
    read_once,
    read_page,
    summary_chunks,
)

USED_EVERY_MS = 3_600_000
"""Shortest time between two updates of a chunk's `used_at`. Otherwise every payload would cause an update."""
MOST_SEARCHED = 5_000
"""Number of a tenant's newest summaries that a search reads."""
_RANGE = ("series", "level", "from_digest", "through_digest")


async def chunks_in(
    connection: AsyncConnection, tenant: str, series: str, chain: Sequence[bytes]
) -> list[SummaryChunk]:
    """Return the chunks of the series that begin and end at digests of the chain."""
    known = frozenset(chain)
    ends = sa.select(summary_chunks).where(is_among(connection, summary_chunks.c.through_digest, known)).cte("ends")
    # Without MATERIALIZED, PostgreSQL would scan all of a tenant's chunks: it underestimates their number.
    ends = ends.prefix_with("MATERIALIZED", dialect="postgresql")
    rows = await connection.execute(sa.select(ends).where(ends.c.tenant == tenant, ends.c.series == series))
    return [_read_chunk(row) for row in rows if row.from_digest in known]


async def recent_first_chunks(
    connection: AsyncConnection, tenant: str, series: str, messages: Sequence[bytes], within_seconds: float
) -> list[FirstChunk]:
    """Return chunks of the last `within_seconds` that begin at the first message and end at one of the `messages`."""
    table = summary_chunks.c
    found = sa.select(*(table[name] for name in FirstChunk.__struct_fields__)).where(
        owned(summary_chunks, tenant, series=series, level=0, first_index=0),
        table.history_length.is_not(None),
        # This condition saves rows: thousands of chunks may end with the same message.
        table.created_at > read_once(now_ms() - round(within_seconds * 1000)),
        is_among(connection, table.last_message_digest, frozenset(messages)),
    )
    return [FirstChunk(*row) for row in await connection.execute(found)]


async def masks_in(
    connection: AsyncConnection, tenant: str, settings: str, chain: Sequence[bytes]
) -> list[tuple[bytes, bytes]]:
    """Return the mask boundaries in the chain. Each has two digests: of its own position, and of the position up to
    which summaries covered the history when Steno set the boundary."""
    known = frozenset(chain)
    found = sa.select(masks.c.digest, masks.c.start_digest).where(owned(masks, tenant, settings=settings))
    rows = await connection.execute(found.where(is_among(connection, masks.c.digest, known)))
    return [(row.digest, row.start_digest) for row in rows if row.start_digest in known]


async def keep_mask(
    connection: AsyncConnection, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str
) -> None:
    """Store a mask boundary with its two digests, see `masks_in`. Idempotent; needs a transaction."""
    values = {"tenant": tenant, "settings": settings, "digest": digest, "start_digest": start}
    new = insert_into(connection, masks).values(**values, conversation_id=conversation_id, created_at=now_ms())
    await connection.execute(new.on_conflict_do_nothing())


async def chunks_named(connection: AsyncConnection, tenant: str, ids: Sequence[str]) -> list[SummaryChunk]:
    """Return the tenant's stored chunks with these ids, in the order of `ids`."""
    named = owned(summary_chunks, tenant), is_among(connection, summary_chunks.c.id, ids)
    rows = await connection.execute(sa.select(summary_chunks).where(*named))
    found = {row.id: _read_chunk(row) for row in rows}
    return [found[id_] for id_ in ids if id_ in found]


async def commit_chunks(
    connection: AsyncConnection, lease: Lease, chunks: Sequence[SummaryChunk]
) -> list[SummaryChunk] | None:
    """Store the chunks if the lease is valid. Return the stored chunk of each range, which may be an earlier chunk.

    Return None if the lease is lost, or if a chunk that a fold contains was corrected or deleted meanwhile.
    Idempotent; needs a transaction.
    """
    tenant = lease.tenant
    if not await fence_holds(connection, lease):
        return None
    stored: list[SummaryChunk] = []
    for chunk in chunks:
        # Lock the children until the transaction ends: a correction or deletion of a child waits, then sees the fold.
        if await _lock(connection, tenant, set(chunk.children), shared=True) != set(chunk.children):
            return None
        await _insert(connection, tenant, chunk)
        same_range = owned(summary_chunks, tenant, **{name: getattr(chunk, name) for name in _RANGE})
        row = (await connection.execute(sa.select(summary_chunks).where(same_range))).first()
        if row is None:
            return None
        stored.append(_read_chunk(row))
    return stored


async def replace_chunk(
    connection: AsyncConnection, tenant: str, old_id: str, new: SummaryChunk
) -> SummaryChunk | None:
    """Delete a chunk and every fold over it. Store and return `new`, which has the same range. Return None if the old
    chunk is not stored any more. Needs a transaction."""
    if not await delete_chunk(connection, tenant, old_id):
        return None
    await _insert(connection, tenant, new)
    [stored] = await chunks_named(connection, tenant, [new.id])
    return stored


async def delete_chunk(connection: AsyncConnection, tenant: str, id_: str) -> list[str]:
    """Delete a chunk and every fold over it. Return their ids; none if the chunk is not stored. Needs a transaction."""
    doomed, locked = {id_} | await _folds_over(connection, tenant, {id_}), set[str]()
    # Repeat until no fold is new: another process may store a fold while this process waits for the locks.
    while doomed != locked:
        locked = set(doomed)
        if id_ not in await _lock(connection, tenant, locked):
            return []
        doomed |= await _folds_over(connection, tenant, doomed)
    await _delete(connection, tenant, doomed)
    return sorted(doomed)


async def delete_chunks_of(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Delete the chunks that were made for the conversation, and every fold over them."""
    of_it = owned(summary_chunks, tenant, conversation_id=conversation_id)
    doomed = set((await connection.execute(sa.select(summary_chunks.c.id).where(of_it))).scalars())
    if doomed:
        doomed |= await _folds_over(connection, tenant, doomed)
        await _lock(connection, tenant, doomed)  # The same order as in `note_use`.
        await _delete(connection, tenant, doomed)


async def read_summaries(
    connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging
) -> Page[SummaryChunk]:
    """Return a page of the chunks made for the conversation or used by its latest request. Raises UnknownCursor."""
    rows = await _summaries_of(connection, tenant, conversation_id)
    return await read_page(connection, rows, _read_chunk, paging)


async def find_summary(
    connection: AsyncConnection, tenant: str, conversation_id: str, chunk_id: str
) -> SummaryChunk | None:
    """Return the chunk with this id if it was made for the conversation or used by its latest request."""
    rows = await _summaries_of(connection, tenant, conversation_id)
    row = (await connection.execute(rows.where(summary_chunks.c.id == chunk_id))).first()
    return _read_chunk(row) if row else None


async def _summaries_of(connection: AsyncConnection, tenant: str, conversation_id: str) -> sa.Select[Any]:
    # The conversation's row may be missing: chunks are stored at once, conversations about 0.2 s later.
    used = await connection.scalar(
        sa.select(conversations.c.summaries).where(owned(conversations, tenant, id=conversation_id))
    )
    return sa.select(summary_chunks).where(
        summary_chunks.c.tenant == tenant,
        sa.or_(summary_chunks.c.conversation_id == conversation_id, summary_chunks.c.id.in_(used or [])),
    )


async def search_summaries(connection: AsyncConnection, tenant: str, text: str, paging: Paging) -> Page[SummaryChunk]:
    """Return a page of the tenant's chunks that contain a text. Raises UnknownCursor."""
    return await read_page(connection, holding(tenant, text), _read_chunk, paging)


def holding(tenant: str, text: str) -> sa.Select[Any]:
    """Select a tenant's newest chunks whose summary, exact values or user's words contain the text. Ignore case."""
    by_time = (summary_chunks.c.created_at.desc(), summary_chunks.c.id.desc())
    latest = sa.select(summary_chunks).where(summary_chunks.c.tenant == tenant).order_by(*by_time).limit(MOST_SEARCHED)
    found = latest.subquery("latest").c
    in_json = json.dumps(text)[1:-1]
    lists = (found.exact_values, found.user_words)
    in_lists = (sa.cast(column, sa.Text).icontains(in_json, autoescape=True) for column in lists)
    return sa.select(*found).where(sa.or_(found.text.icontains(storable(text), autoescape=True), *in_lists))


async def note_use(connection: AsyncConnection, used: Collection[tuple[str, str]]) -> None:
    """Set `used_at` to now if it is over an hour old. `used`: tenant and id of each chunk. Needs a transaction."""
    if not used:
        return
    tenant, id_ = summary_chunks.c.tenant, summary_chunks.c.id
    is_due = summary_chunks.c.used_at < read_once(now_ms()) - USED_EVERY_MS
    tenants, ids = zip(*used, strict=True)
    known = is_among(connection, tenant, set(tenants)), is_among(connection, id_, set(ids))
    rows = await connection.execute(sa.select(tenant, id_).where(*known, is_due))
    # Rows are locked in order of their keys, so two replicas cannot deadlock.
    if due := sorted({(row.tenant, row.id) for row in rows} & set(used)):
        used_now = sa.update(summary_chunks).values(used_at=now_ms())
        of_row = (tenant == sa.bindparam("of_tenant"), id_ == sa.bindparam("of_id"))
        await connection.execute(used_now.where(*of_row), [{"of_tenant": key[0], "of_id": key[1]} for key in due])


async def _folds_over(connection: AsyncConnection, tenant: str, children: set[str]) -> set[str]:
    table = summary_chunks.c
    folds = sa.select(table.id, table.children).where(table.tenant == tenant, sa.cast(table.children, sa.Text) != "[]")
    reached: set[str] = set()
    # A fold ends where its last child ends or later, and has a higher level than its children. So in this order
    # children come before their folds, and one pass finds all folds.
    for fold in await connection.execute(folds.order_by(table.last_index, table.level)):
        if not (children | reached).isdisjoint(fold.children):
            reached.add(fold.id)
    return reached


async def _lock(connection: AsyncConnection, tenant: str, ids: Collection[str], *, shared: bool = False) -> set[str]:
    """Lock the chunks with these ids until the transaction ends. Return the ids of the chunks that are stored."""
    # Rows are locked in order of their keys, so two replicas cannot deadlock.
    named = owned(summary_chunks, tenant), is_among(connection, summary_chunks.c.id, ids)
    held = sa.select(summary_chunks.c.id).where(*named).order_by(summary_chunks.c.id).with_for_update(read=shared)
    return set((await connection.execute(held)).scalars())


async def _insert(connection: AsyncConnection, tenant: str, chunk: SummaryChunk) -> None:
    columns = asdict(chunk)
    columns["user_words"] = [(said.turn, said.text) for said in chunk.user_words]
    columns["exact_values"] = columns.pop("values")  # VALUES is a keyword of SQL and of SQLAlchemy.
    timed = {"tenant": tenant, **columns, "created_at": now_ms(), "used_at": now_ms()}
    await connection.execute(insert_into(connection, summary_chunks).values(**timed).on_conflict_do_nothing())


async def _delete(connection: AsyncConnection, tenant: str, ids: Collection[str]) -> None:
    named = owned(summary_chunks, tenant), is_among(connection, summary_chunks.c.id, ids)
    await connection.execute(sa.delete(summary_chunks).where(*named))


def _read_chunk(row: sa.Row[Any]) -> SummaryChunk:
    columns = members(row, "tenant", "used_at")
    columns["values"] = columns.pop("exact_values")
    columns["user_words"] = tuple(UserWords(*said) for said in columns["user_words"])
    return SummaryChunk(**columns)
