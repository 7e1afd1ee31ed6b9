"""The lease: who may make a chunk now. It saves money; the fence and the unique keys keep the history right.

A row per chunk in the making, by the database's clock. Taking an expired one raises its epoch, a commit names the epoch
it was granted, and a row is expired rather than deleted: deleting would let the epoch begin anew. A day later nobody
can have an epoch left to confuse.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.chunks import ChunkRange
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import leases

_NEVER = 0
"""Leases that were given up end before it: at the negative time of their release, by which they can be told from
expired ones, and old ones from new ones."""
KEPT_MS = 24 * 3_600_000
"""How long a row outlives its lease: longer than anybody may still be making its chunk."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one chunk, until another holder's epoch is higher."""

    tenant: str
    conversation_id: str
    range: ChunkRange
    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is making what the caller waits for."""

    conversation_id: str
    expires_in: float
    """Seconds until the lease may be taken, unless its holder renews it."""


async def acquire_lease(
    connection: AsyncConnection,
    tenant: str,
    conversation_id: str,
    wanted: ChunkRange,
    chain: Collection[bytes],
    holder: str,
    ttl_ms: int,
) -> Lease | Busy:
    """Take the lease of the range, unless a live one makes waiting worth while. Needs a transaction."""
    await _take_turns(connection, tenant, conversation_id, wanted)
    if busy := await find_live(connection, tenant, conversation_id, wanted, chain):
        return busy
    epoch = await _insert_or_take_over(connection, tenant, conversation_id, wanted, holder, ttl_ms)
    if epoch is None:
        # Its holder renewed an expired lease after we looked.
        return Busy(conversation_id, ttl_ms / 1000)
    return Lease(tenant, conversation_id, wanted, holder, epoch)


async def find_live(
    connection: AsyncConnection, tenant: str, conversation_id: str, wanted: ChunkRange, chain: Collection[bytes]
) -> Busy | None:
    """A live lease of the conversation, or of a range that starts where the wanted one does and lies in the chain."""
    # In a subquery the clock is read once, so that the index finds the live leases: every conversation of the tenant
    # has had one that starts at the root.
    now = select(now_ms()).scalar_subquery()
    remaining = leases.c.expires_at - now
    rows = await connection.execute(
        select(
            leases.c.conversation_id,
            leases.c.through_digest,
            # Compared by the database, which holds ids as they could be stored.
            (leases.c.conversation_id == conversation_id).label("same_conversation"),
            remaining.label("remaining"),
        )
        .where(
            leases.c.tenant == tenant,
            leases.c.expires_at > now,
            or_(
                leases.c.conversation_id == conversation_id,
                and_(leases.c.series == wanted.series, leases.c.from_digest == wanted.from_digest),
            ),
        )
        .order_by(leases.c.expires_at.desc())
    )
    for row in rows:
        ends = row.through_digest
        if row.same_conversation or ends == wanted.through_digest or ends in chain:
            return Busy(row.conversation_id, max(row.remaining, 0) / 1000)
    return None


async def renew_lease(connection: AsyncConnection, lease: Lease, ttl_ms: int) -> bool:
    """False once the lease was taken over or released. Needs a transaction.

    An expired one is still ours, unless somebody began what would have had to wait for it.
    """
    await _take_turns(connection, lease.tenant, lease.conversation_id, lease.range)
    other = leases.alias()
    begun = exists().where(
        other.c.tenant == leases.c.tenant,
        other.c.expires_at > now_ms(),
        or_(
            other.c.conversation_id == leases.c.conversation_id,
            and_(other.c.series == leases.c.series, other.c.from_digest == leases.c.from_digest),
        ),
    )
    renewed = await connection.execute(
        update(leases)
        .where(_held_by(lease), leases.c.expires_at > _NEVER, or_(leases.c.expires_at > now_ms(), ~begun))
        .values(expires_at=now_ms() + ttl_ms)
    )
    return bool(renewed.rowcount)


async def release_lease(connection: AsyncConnection, lease: Lease) -> bool:
    """Let others take it at once; nothing happens if somebody already has, and False is returned."""
    released = await connection.execute(update(leases).where(_held_by(lease)).values(expires_at=-now_ms()))
    return bool(released.rowcount)


async def tell_waiters(connection: AsyncConnection, channel: str, word: str) -> None:
    """Heard by every replica that listens, once the transaction is committed. Only PostgreSQL can."""
    await connection.execute(select(func.pg_notify(channel, word)))


async def fence_holds(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the epoch is still ours. The row stays locked, so it remains so until the transaction ends."""
    found = await connection.execute(select(leases.c.epoch).where(_held_by(lease)).with_for_update())
    return found.first() is not None


async def revoke_leases(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Whatever is being made for the conversation can no longer be committed."""
    await connection.execute(
        update(leases)
        .where(leases.c.tenant == tenant, leases.c.conversation_id == conversation_id)
        .values(epoch=leases.c.epoch + 1, expires_at=-now_ms())
    )


async def remove_old_leases(connection: AsyncConnection, most: int) -> int:
    """Remove so many rows whose leases ended a day ago, and say how many there were."""
    # Release 0.1.0 wrote no time: its rows grow old from here on.
    await connection.execute(update(leases).where(leases.c.expires_at == _NEVER).values(expires_at=-now_ms()))
    is_old = func.abs(leases.c.expires_at) < now_ms() - KEPT_MS
    key = tuple_(*leases.primary_key)
    some = select(*leases.primary_key).where(is_old).limit(most)
    # Asked twice: a row that is taken again between its choice and its removal stays.
    removed = await connection.execute(delete(leases).where(key.in_(some), is_old))
    return removed.rowcount


async def _take_turns(connection: AsyncConnection, tenant: str, conversation_id: str, wanted: ChunkRange) -> None:
    """Nobody else may look and insert for this conversation or this start until our transaction ends.

    BEGIN IMMEDIATE sees to it on SQLite. On PostgreSQL neither of two transactions would see the other's new row.
    """
    if connection.dialect.name != "postgresql":
        return
    keys = {
        _lock_key(b"conversation", tenant, conversation_id.encode(errors="surrogatepass")),
        _lock_key(b"start", tenant, wanted.series.encode(), wanted.from_digest),
    }
    for key in sorted(keys):  # the same order everywhere: no deadlock
        await connection.execute(select(func.pg_advisory_xact_lock(key)))


def _lock_key(kind: bytes, tenant: str, *parts: bytes) -> int:
    digest = blake2b(b"\0".join((kind, tenant.encode(), *parts)), digest_size=8, person=b"steno-lease").digest()
    return int.from_bytes(digest, "big", signed=True)


async def _insert_or_take_over(
    connection: AsyncConnection, tenant: str, conversation_id: str, wanted: ChunkRange, holder: str, ttl_ms: int
) -> int | None:
    granted = {"conversation_id": conversation_id, "holder": holder, "expires_at": now_ms() + ttl_ms}
    statement = insert_into(connection, leases).values(
        tenant=tenant,
        series=wanted.series,
        from_digest=wanted.from_digest,
        through_digest=wanted.through_digest,
        epoch=1,
        **granted,
    )
    rows = await connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(leases.primary_key),
            set_={"epoch": leases.c.epoch + 1, **granted},
            where=leases.c.expires_at <= now_ms(),
        ).returning(leases.c.epoch)
    )
    epoch: int | None = rows.scalar_one_or_none()
    return epoch


def _held_by(lease: Lease) -> ColumnElement[bool]:
    return and_(
        leases.c.tenant == lease.tenant,
        leases.c.series == lease.range.series,
        leases.c.from_digest == lease.range.from_digest,
        leases.c.through_digest == lease.range.through_digest,
        leases.c.holder == lease.holder,
        leases.c.epoch == lease.epoch,
    )
