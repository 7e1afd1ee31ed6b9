"""Leases: which process may make a chunk now. Why there are leases, and what a lost one means: `compaction.lease`.

1. Whether a lease is live is asked of the database's clock alone, the only one that all replicas share.
2. That of a dead holder expires, and the next holder that takes the row over raises its epoch.
3. A commit names the epoch that it was granted and locks the row (the fence): a holder that was only slow, and was
   replaced without noticing, stores nothing.
4. A row is expired rather than deleted: deleting would let the epoch begin anew. A day later no process can have an
   epoch left to confuse: such rows go, and rows that their holder gave up go with their conversation.
5. A request that finds a live lease takes nothing and waits: it looks again four times a second.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    CTE,
    ColumnElement,
    and_,
    delete,
    distinct,
    func,
    literal_column,
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
_NEVER = 0
"""Time before which leases end that were given up: at the negative time of their release, which distinguishes them from
expired ones, and old ones from new ones."""
_REVOKED = ""
"""Name in place of the conversation of a revoked lease: its holder may not know yet."""
KEPT_MS = 24 * 3_600_000
"""Time that a row outlives its lease: longer than any process may still be making its chunk."""


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
        live = _live(tenant, ttl_ms)
        if (await connection.scalar(select(func.count(distinct(live.c.conversation_id)))) or 0) >= most:
            return "too_many"
    granted = {"conversation_id": conversation_id, "holder": holder, "expires_at": now_ms() + ttl_ms}
    added = insert_into(connection, leases).values(tenant=tenant, **asdict(wanted), epoch=1, **granted)
    epoch = await connection.scalar(
        added.on_conflict_do_update(
            index_elements=list(leases.primary_key),
            set_={"epoch": leases.c.epoch + 1, **granted},
            where=not_(_is_live(now_ms(), ttl_ms)),
        ).returning(leases.c.epoch)
    )
    # Without one its holder renewed an expired lease after the look.
    return "busy" if epoch is None else Lease(tenant, conversation_id, wanted, holder, epoch)


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
    live = _live(tenant, ttl_ms)
    # Ids are compared by the database, which holds them as they could be stored.
    is_same = (live.c.conversation_id == conversation_id).label("is_same_conversation")
    rows = await connection.execute(
        select(live.c.through_digest, is_same).where(_is_in_the_way(live, conversation_id, wanted))
    )
    return any(
        row.is_same_conversation or row.through_digest == wanted.through_digest or row.through_digest in chain
        for row in rows
    )


async def is_under_way(connection: AsyncConnection, tenant: str, conversation_id: str, ttl_ms: int) -> bool:
    """Whether the conversation has a live lease."""
    live = _live(tenant, ttl_ms)
    held = select(live.c.epoch).where(live.c.conversation_id == conversation_id).limit(1)
    return await connection.scalar(held) is not None


async def renew_lease(connection: AsyncConnection, lease: Lease, ttl_ms: int) -> bool:
    """Prolong a lease; False once it was taken over or released. Needs a transaction.

    An expired one is still its holder's, unless another one began what would have had to wait for it.
    """
    await _take_turns(connection, lease.tenant, lease.conversation_id, lease.range)
    renew = update(leases).where(_held_by(lease), leases.c.expires_at > _NEVER).values(expires_at=now_ms() + ttl_ms)
    if (await connection.execute(renew.where(_is_live(now_ms(), ttl_ms)))).rowcount:
        return True
    live = _live(lease.tenant, ttl_ms)
    begun = select(live.c.epoch).where(_is_in_the_way(live, lease.conversation_id, lease.range)).limit(1)
    if await connection.scalar(begun) is not None:
        return False
    return bool((await connection.execute(renew)).rowcount)


async def release_lease(connection: AsyncConnection, lease: Lease) -> bool:
    """End a lease at once; False if it was taken over."""
    released = await connection.execute(update(leases).where(_held_by(lease)).values(expires_at=-now_ms()))
    return bool(released.rowcount)


async def fence_holds(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the epoch is still the lease's. The row stays locked, so it remains so until the transaction ends."""
    return await connection.scalar(select(leases.c.epoch).where(_held_by(lease)).with_for_update()) is not None


async def revoke_leases(connection: AsyncConnection, tenant: str, conversation_id: str | None = None) -> None:
    """Revoke leases: nothing that is being made for the conversation, or for any of the tenant's, can be committed."""
    own = leases.c.tenant == tenant
    if conversation_id is not None:
        own = and_(own, leases.c.conversation_id == conversation_id)
    revoked, given_up = leases.c.conversation_id == _REVOKED, leases.c.expires_at <= _NEVER
    await connection.execute(delete(leases).where(own, given_up, not_(revoked)))
    await connection.execute(
        update(leases)
        .where(own, not_(given_up))
        .values(epoch=leases.c.epoch + 1, expires_at=-now_ms(), conversation_id=_REVOKED)
    )


async def is_revoked(connection: AsyncConnection, lease: Lease) -> bool:
    """Whether the lease was revoked. A process that takes a lease over puts its own name in the holder's place."""
    revoked = (leases.c.holder == lease.holder, leases.c.epoch > lease.epoch, leases.c.expires_at <= _NEVER)
    return await connection.scalar(select(leases.c.epoch).where(_key_of(lease), *revoked)) is not None


async def is_revoked_within(connection: AsyncConnection, tenant: str, wanted: ChunkRange, ms: int) -> bool:
    """Whether a lease of a range that starts where the wanted one does was revoked in the last so many milliseconds."""
    starts_there = (leases.c.series == wanted.series, leases.c.from_digest == wanted.from_digest)
    revoked = (leases.c.conversation_id == _REVOKED, leases.c.expires_at <= ms - now_ms())
    found = select(leases.c.epoch).where(leases.c.tenant == tenant, *starts_there, *revoked).limit(1)
    return await connection.scalar(found) is not None


async def remove_old_leases(connection: AsyncConnection, most: int) -> int:
    """Remove so many rows whose leases ended a day ago, and say how many there were."""
    then = read_once(now_ms() - KEPT_MS)
    is_old = and_(leases.c.expires_at > -then, leases.c.expires_at < then)
    key = tuple_(*leases.primary_key)
    some = select(*leases.primary_key).where(is_old).limit(most)
    # Asked twice: a row that is taken again between its choice and its removal stays.
    removed = await connection.execute(delete(leases).where(key.in_(some), is_old))
    return removed.rowcount


def _live(tenant: str, ttl_ms: int) -> CTE:
    """The tenant's live leases.

    They are few, and looked for by themselves: of those that ended one begins at the root for each of the tenant's
    conversations, and PostgreSQL cannot know that none of them is live.
    """
    # The zero is written out, because only then the statement is seen to ask for no more than the index of live leases
    # holds.
    is_live = (leases.c.expires_at > literal_column("0"), _is_live(read_once(now_ms()), ttl_ms))
    return (
        select(leases)
        .where(leases.c.tenant == tenant, *is_live)
        .cte("live")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _is_live(now: ColumnElement[int], ttl_ms: int) -> ColumnElement[bool]:
    """A lease that is further ahead than a new one is not live: the database's clock was put back, or it is another
    server."""
    return and_(leases.c.expires_at > now, leases.c.expires_at <= now + ttl_ms)


def _is_in_the_way(live: CTE, conversation_id: str, wanted: ChunkRange) -> ColumnElement[bool]:
    """Whether it is of the same conversation, or starts where the wanted range does."""
    starts_there = and_(live.c.series == wanted.series, live.c.from_digest == wanted.from_digest)
    return or_(live.c.conversation_id == conversation_id, starts_there)


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
