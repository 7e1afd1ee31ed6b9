"""Leases: only the holder of the lease of a range may make the range's chunk. `compaction.lease` explains why.

1. Only the database's clock decides whether a lease is live: all replicas share this clock.
2. If a holder dies, its lease expires. The next holder takes over the row and raises the row's epoch.
3. The fence: a commit locks the row, and stores nothing if the row has another epoch than the committer's lease.
4. A released lease is deleted. The next lease of the range takes its first epoch from the clock, so that no two leases
   of a range have the same epoch. The row of a revoked or expired lease stays for ten minutes, so that its holder and
   waiting requests see the outcome. The row of a revoked lease does not name its conversation.
5. A request that finds a live lease checks four times a second whether the lease has ended.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Literal

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy.ext.asyncio import AsyncConnection

from app.compaction.chunks import ChunkRange
from app.store.tables import insert_into, leases, now_ms, owned, read_once

LEASE_SECONDS = 15.0
"""Seconds until a lease expires if its holder does not renew it, see `compaction.lease.HEARTBEAT_SECONDS`."""
POLL_SECONDS = 0.25
"""Time between two checks by a request that waits for another request's compaction."""
_REVOKED = ""
"""Value of `conversation_id` of a revoked lease."""
KEPT_MS = 600_000
"""Time from the end of a lease until its row is deleted: longer than a process needs to notice the end."""


class Claim(Struct, frozen=True):
    """Range that a request wants to summarise into a chunk."""

    tenant: str
    conversation_id: str
    range: ChunkRange
    chain: Collection[bytes]
    """Digests of the request's history up to and including each of its messages."""


class Lease(Struct, frozen=True):
    """The right to make one chunk. The lease is lost if its row in the database is deleted or has another epoch."""

    tenant: str
    conversation_id: str
    range: ChunkRange
    holder: str
    epoch: int


Refusal = Literal["busy", "too_many"]
"""`busy`: a compaction is running that the caller can wait for. `too_many`: the tenant has reached its limit of
simultaneous compactions."""


async def acquire_lease(
    connection: AsyncConnection, claim: Claim, holder: str, ttl_ms: int, most: int | None = None
) -> Lease | Refusal:
    """Take the lease of the claim's range. Return `busy` if a conflicting lease is live, and `too_many` if at least
    `most` conversations of the tenant have live leases. Needs a transaction."""
    await _take_turns(connection, claim)
    if await is_busy(connection, claim, ttl_ms):
        return "busy"
    if most is not None:
        number = sa.select(sa.func.count(sa.distinct(leases.c.conversation_id))).where(_live(claim.tenant, ttl_ms))
        if (await connection.scalar(number) or 0) >= most:
            return "too_many"
    granted = {"conversation_id": claim.conversation_id, "holder": holder, "expires_at": now_ms() + ttl_ms}
    key = {"tenant": claim.tenant, **asdict(claim.range)}
    added = insert_into(connection, leases).values(**key, epoch=now_ms(), **granted)
    epoch = await connection.scalar(
        added.on_conflict_do_update(
            index_elements=list(leases.primary_key),
            set_={"epoch": leases.c.epoch + 1, **granted},
        ).returning(leases.c.epoch)
    )
    return Lease(claim.tenant, claim.conversation_id, claim.range, holder, epoch)


async def is_busy(connection: AsyncConnection, claim: Claim, ttl_ms: int) -> bool:
    """Whether a conflicting lease is live: a lease of the same conversation, or of a range that begins at the same
    digest and ends in the claim's history or at the claim's end."""
    # The database compares the ids, because it has them in their storable form.
    is_same = (leases.c.conversation_id == claim.conversation_id).label("is_same_conversation")
    rows = await connection.execute(sa.select(leases.c.through_digest, is_same).where(_in_the_way(claim, ttl_ms)))
    end = claim.range.through_digest
    return any(
        row.is_same_conversation or row.through_digest == end or row.through_digest in claim.chain for row in rows
    )


async def renew_lease(connection: AsyncConnection, lease: Lease, ttl_ms: int) -> bool:
    """Prolong a lease; return False if it was taken over or released. Needs a transaction.

    An expired lease can be renewed, unless another process has meanwhile taken a conflicting lease.
    """
    await _take_turns(connection, lease)
    renew = sa.update(leases).where(_held_by(lease)).values(expires_at=now_ms() + ttl_ms)
    if (await connection.execute(renew.where(_live(lease.tenant, ttl_ms)))).rowcount:
        return True
    if await connection.scalar(sa.select(leases.c.epoch).where(_in_the_way(lease, ttl_ms)).limit(1)) is not None:
        return False
    return bool((await connection.execute(renew)).rowcount)


async def release_lease(connection: AsyncConnection, lease: Lease) -> bool:
    """Delete a lease. Return True if it was revoked before; then its row stays. Do nothing to a lease that another
    process took over."""
    if (await connection.execute(sa.delete(leases).where(_held_by(lease)))).rowcount:
        return False
    revoked = (leases.c.holder == lease.holder, leases.c.conversation_id == _REVOKED)
    return await connection.scalar(sa.select(leases.c.epoch).where(_key_of(lease), *revoked)) is not None


async def fence_holds(connection: AsyncConnection, lease: Lease) -> bool:
    """Return whether the lease is still valid, and lock its row, so that it stays valid until the transaction ends."""
    return await connection.scalar(sa.select(leases.c.epoch).where(_held_by(lease)).with_for_update()) is not None


async def revoke_leases(connection: AsyncConnection, tenant: str, conversation_id: str | None = None) -> None:
    """Revoke the leases of a conversation, or of a whole tenant, so that running compactions cannot commit."""
    own = leases.c.tenant == tenant
    if conversation_id is not None:
        own = sa.and_(own, leases.c.conversation_id == conversation_id)
    is_revoked = leases.c.conversation_id == _REVOKED
    await connection.execute(sa.delete(leases).where(own, sa.not_(is_revoked), leases.c.expires_at <= now_ms()))
    revoked = {"epoch": leases.c.epoch + 1, "expires_at": now_ms(), "conversation_id": _REVOKED}
    await connection.execute(sa.update(leases).where(own, sa.not_(is_revoked)).values(revoked))


async def is_revoked_within(connection: AsyncConnection, tenant: str, wanted: ChunkRange, ms: int) -> bool:
    """Whether a lease of a range with the same start was revoked in the last `ms` milliseconds."""
    revoked = (leases.c.conversation_id == _REVOKED, leases.c.expires_at >= now_ms() - ms)
    found = sa.select(leases.c.epoch).where(leases.c.tenant == tenant, _starts_with(wanted), *revoked).limit(1)
    return await connection.scalar(found) is not None


async def remove_old_leases(connection: AsyncConnection, most: int) -> int:
    """Delete at most `most` leases that ended more than ten minutes ago, and return their number."""
    is_old = leases.c.expires_at < read_once(now_ms() - KEPT_MS)
    some = sa.select(*leases.primary_key).where(is_old).limit(most)
    # The condition is repeated: a row that is taken over between the choice and the deletion stays.
    removed = await connection.execute(sa.delete(leases).where(sa.tuple_(*leases.primary_key).in_(some), is_old))
    return removed.rowcount


def _live(tenant: str, ttl_ms: int) -> sa.ColumnElement[bool]:
    """Condition of the tenant's live leases. A lease is not live if it expires later than a new lease would: in that
    case the database's clock was set back, or its server changed."""
    now = read_once(now_ms())
    return sa.and_(leases.c.tenant == tenant, leases.c.expires_at > now, leases.c.expires_at <= now + ttl_ms)


def _in_the_way(wanted: Claim | Lease, ttl_ms: int) -> sa.ColumnElement[bool]:
    """Condition for live leases of the same conversation, or of ranges with the same start."""
    is_same_conversation = leases.c.conversation_id == wanted.conversation_id
    return sa.and_(_live(wanted.tenant, ttl_ms), sa.or_(is_same_conversation, _starts_with(wanted.range)))


def _starts_with(wanted: ChunkRange) -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.series == wanted.series, leases.c.from_digest == wanted.from_digest)


async def _take_turns(connection: AsyncConnection, wanted: Claim | Lease) -> None:
    """Let one transaction at a time take a lease of this conversation, or of a range with this start.

    On SQLite, BEGIN IMMEDIATE does this. PostgreSQL needs a lock, because a transaction does not see uncommitted rows.
    """
    if connection.dialect.name != "postgresql":
        return
    tenant, start = wanted.tenant, wanted.range
    keys = {
        _lock_key(b"conversation", tenant, wanted.conversation_id.encode(errors="surrogatepass")),
        _lock_key(b"start", tenant, start.series.encode(), start.from_digest),
    }
    for key in sorted(keys):  # The same order everywhere prevents deadlocks.
        await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def _lock_key(kind: bytes, tenant: str, *parts: bytes) -> int:
    digest = blake2b(b"\0".join((kind, tenant.encode(), *parts)), digest_size=8, person=b"steno-lease").digest()
    return int.from_bytes(digest, "big", signed=True)


def _held_by(lease: Lease) -> sa.ColumnElement[bool]:
    return sa.and_(_key_of(lease), leases.c.holder == lease.holder, leases.c.epoch == lease.epoch)


def _key_of(lease: Lease) -> sa.ColumnElement[bool]:
    return owned(leases, lease.tenant, **asdict(lease.range))
