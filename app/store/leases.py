"""Leases: which process may make a chunk now. Why there are leases, and what a lost one means: `compaction.lease`.

1. Whether a lease is live is asked of the database's clock alone, the only one that all replicas share.
2. That of a dead holder expires, and the next holder that takes the row over raises its epoch.
3. A commit names the epoch that it was granted and locks the row (the fence): a holder that was only slow, and was
   replaced without noticing, stores nothing.
4. A released lease is no row any more, and a later one of its range begins with an epoch of the clock's, so that no
   process can mistake it for its own. A revoked one stays for some minutes, without the name of its conversation: its
   holder, and requests that wait for it, see what became of it. So does one whose holder died.
5. A request that finds a live lease takes nothing and waits: it looks again four times a second.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    and_,
    delete,
    distinct,
    func,
    not_,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.compaction.chunks import ChunkRange
from app.store.tables import insert_into, leases, now_ms, owned, read_once

LEASE_SECONDS = 15.0
"""Time that a lease lives without a heartbeat."""
HEARTBEAT_SECONDS = 5.0
_REVOKED = ""
"""Name in place of the conversation of a revoked lease."""
KEPT_MS = 600_000
"""Time that a row outlives its lease: longer than a process may take to notice its end."""


class Lease(Struct, frozen=True):
    """The right to make one chunk, until another holder's epoch is higher."""

    tenant: str
    conversation_id: str
    range: ChunkRange
    holder: str
    epoch: int


Refusal = Literal["busy", "too_many"]
"""`busy`: another process makes what the caller can wait for. `too_many`: the tenant has as many compactions at once as
it may."""


async def acquire_lease(
    connection: AsyncConnection,
    tenant: str,
    conversation_id: str,
    wanted: ChunkRange,
    chain: Collection[bytes],
    holder: str,
    ttl_ms: int,
    most: int | None = None,
) -> Lease | Refusal:
    """Take the lease of the range, unless a live one makes waiting worth while, or `most` other conversations of the
    tenant have live ones. Needs a transaction."""
    await _take_turns(connection, tenant, conversation_id, wanted)
    if await is_busy(connection, tenant, conversation_id, wanted, chain, ttl_ms):
        return "busy"
    if most is not None:
        number = select(func.count(distinct(leases.c.conversation_id))).where(_live(tenant, ttl_ms))
        if (await connection.scalar(number) or 0) >= most:
            return "too_many"
    granted = {"conversation_id": conversation_id, "holder": holder, "expires_at": now_ms() + ttl_ms}
    added = insert_into(connection, leases).values(tenant=tenant, **asdict(wanted), epoch=now_ms(), **granted)
    epoch = await connection.scalar(
        added.on_conflict_do_update(
            index_elements=list(leases.primary_key),
            set_={"epoch": leases.c.epoch + 1, **granted},
        ).returning(leases.c.epoch)
    )
    return Lease(tenant, conversation_id, wanted, holder, epoch)


async def is_busy(
    connection: AsyncConnection,
    tenant: str,
    conversation_id: str,
    wanted: ChunkRange,
    chain: Collection[bytes],
    ttl_ms: int,
) -> bool:
    """Whether there is a live lease of the conversation, or of a range that starts where the wanted one does and lies
    in the chain."""
    # Ids are compared by the database, which holds them as they could be stored.
    is_same = (leases.c.conversation_id == conversation_id).label("is_same_conversation")
    in_the_way = _in_the_way(tenant, conversation_id, wanted, ttl_ms)
    rows = await connection.execute(select(leases.c.through_digest, is_same).where(in_the_way))
    return any(
        row.is_same_conversation or row.through_digest == wanted.through_digest or row.through_digest in chain
        for row in rows
    )


async def is_under_way(connection: AsyncConnection, tenant: str, conversation_id: str, ttl_ms: int) -> bool:
    """Whether the conversation has a live lease."""
    held = select(leases.c.epoch).where(_live(tenant, ttl_ms), leases.c.conversation_id == conversation_id).limit(1)
    return await connection.scalar(held) is not None


async def renew_lease(connection: AsyncConnection, lease: Lease, ttl_ms: int) -> bool:
    """Prolong a lease; False once it was taken over or released. Needs a transaction.

    An expired one is still its holder's, unless another one began what would have had to wait for it.
    """
    await _take_turns(connection, lease.tenant, lease.conversation_id, lease.range)
    renew = update(leases).where(_held_by(lease)).values(expires_at=now_ms() + ttl_ms)
    if (await connection.execute(renew.where(_live(lease.tenant, ttl_ms)))).rowcount:
        return True
    in_the_way = _in_the_way(lease.tenant, lease.conversation_id, lease.range, ttl_ms)
    if await connection.scalar(select(leases.c.epoch).where(in_the_way).limit(1)) is not None:
        return False
    return bool((await connection.execute(renew)).rowcount)


async def release_lease(connection: AsyncConnection, lease: Lease) -> bool:
    """End a lease at once. Whether it was revoked: a process that takes one over puts its own name in the holder's
    place."""
    if (await connection.execute(delete(leases).where(_held_by(lease)))).rowcount:
        return False
    revoked = (leases.c.holder == lease.holder, leases.c.conversation_id == _REVOKED)
    return await connection.scalar(select(leases.c.epoch).where(_key_of(lease), *revoked)) is not None


async def fence_holds(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the epoch is still the lease's. The row stays locked, so it remains so until the transaction ends."""
    return await connection.scalar(select(leases.c.epoch).where(_held_by(lease)).with_for_update()) is not None


async def revoke_leases(connection: AsyncConnection, tenant: str, conversation_id: str | None = None) -> None:
    """Revoke leases: nothing that is being made for the conversation, or for any of the tenant's, can be committed."""
    own = leases.c.tenant == tenant
    if conversation_id is not None:
        own = and_(own, leases.c.conversation_id == conversation_id)
    is_revoked = leases.c.conversation_id == _REVOKED
    await connection.execute(delete(leases).where(own, not_(is_revoked), leases.c.expires_at <= now_ms()))
    revoked = {"epoch": leases.c.epoch + 1, "expires_at": now_ms(), "conversation_id": _REVOKED}
    await connection.execute(update(leases).where(own, not_(is_revoked)).values(revoked))


async def is_revoked_within(connection: AsyncConnection, tenant: str, wanted: ChunkRange, ms: int) -> bool:
    """Whether a lease of a range that starts where the wanted one does was revoked in the last so many milliseconds."""
    starts_there = (leases.c.series == wanted.series, leases.c.from_digest == wanted.from_digest)
    revoked = (leases.c.conversation_id == _REVOKED, leases.c.expires_at >= now_ms() - ms)
    found = select(leases.c.epoch).where(leases.c.tenant == tenant, *starts_there, *revoked).limit(1)
    return await connection.scalar(found) is not None


async def remove_old_leases(connection: AsyncConnection, most: int) -> int:
    """Remove so many rows of leases that ended some minutes ago, and say how many there were."""
    is_old = leases.c.expires_at < read_once(now_ms() - KEPT_MS)
    some = select(*leases.primary_key).where(is_old).limit(most)
    # Asked twice: a row that is taken again between its choice and its removal stays.
    removed = await connection.execute(delete(leases).where(tuple_(*leases.primary_key).in_(some), is_old))
    return removed.rowcount


def _live(tenant: str, ttl_ms: int) -> ColumnElement[bool]:
    """Condition of the tenant's live leases. One that is further ahead than a new one is not live: the database's clock
    was put back, or it is another server."""
    now = read_once(now_ms())
    return and_(leases.c.tenant == tenant, leases.c.expires_at > now, leases.c.expires_at <= now + ttl_ms)


def _in_the_way(tenant: str, conversation_id: str, wanted: ChunkRange, ttl_ms: int) -> ColumnElement[bool]:
    """Condition of the live leases of the conversation, and of those that start where the wanted range does."""
    starts_there = and_(leases.c.series == wanted.series, leases.c.from_digest == wanted.from_digest)
    return and_(_live(tenant, ttl_ms), or_(leases.c.conversation_id == conversation_id, starts_there))


async def _take_turns(connection: AsyncConnection, tenant: str, conversation_id: str, wanted: ChunkRange) -> None:
    """Keep other transactions from looking and inserting for this conversation or this start until this one ends.

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


def _held_by(lease: Lease) -> ColumnElement[bool]:
    return and_(_key_of(lease), leases.c.holder == lease.holder, leases.c.epoch == lease.epoch)


def _key_of(lease: Lease) -> ColumnElement[bool]:
    return owned(leases, lease.tenant, **asdict(lease.range))
