"""The lease: who may make a chunk now. It saves money; the fence and the unique keys keep the history right.

A row per chunk in the making, by the database's clock. Taking an expired one raises its epoch, a commit names the epoch
it was granted, and a row is expired rather than deleted: deleting would let the epoch begin anew.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.chunks import ChunkRange
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import leases

_RELEASED = 0


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
    remaining = leases.c.expires_at - now_ms()
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
            leases.c.expires_at > now_ms(),
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
    """False once the lease was taken over or released; an expired one that nobody took is still ours."""
    renewed = await connection.execute(
        update(leases).where(_held_by(lease), leases.c.expires_at > _RELEASED).values(expires_at=now_ms() + ttl_ms)
    )
    return bool(renewed.rowcount)


async def release_lease(connection: AsyncConnection, lease: Lease) -> None:
    """Let others take it at once; nothing happens if somebody already has."""
    await connection.execute(update(leases).where(_held_by(lease)).values(expires_at=_RELEASED))


async def fence_holds(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the epoch is still ours. The row stays locked, so it remains so until the transaction ends."""
    found = await connection.execute(select(leases.c.epoch).where(_held_by(lease)).with_for_update())
    return found.first() is not None


async def revoke_leases(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Whatever is being made for the conversation can no longer be committed."""
    await connection.execute(
        update(leases)
        .where(leases.c.tenant == tenant, leases.c.conversation_id == conversation_id)
        .values(epoch=leases.c.epoch + 1, expires_at=_RELEASED)
    )


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
