"""Revocations: what ends before its time or with its first use, for every replica, such as an operator's link."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import revocations


async def find_revocations(connection: AsyncConnection, ids: Sequence[str]) -> dict[str, int]:
    """Time of revocation of those ids that were revoked, in milliseconds since 1970."""
    rows = await connection.execute(select(revocations.c.id, revocations.c.revoked_at).where(revocations.c.id.in_(ids)))
    return {row.id: row.revoked_at for row in rows}


async def use_once(connection: AsyncConnection, id_: str, seconds: int) -> bool:
    """Use up what has that id; False if it was used before, at whatever replica. `seconds`: how long it could be used.

    Needs a transaction.
    """
    until = now_ms() + 1_000 * seconds
    used = insert_into(connection, revocations).values(id=id_, revoked_at=now_ms(), expires_at=until)
    return (await connection.execute(used.on_conflict_do_nothing())).rowcount == 1


async def revoke(connection: AsyncConnection, id_: str, seconds: int) -> None:
    """End what has that id from now on, or once more, and drop what is over. `seconds`: how long it could have gone on.

    Needs a transaction.
    """
    await connection.execute(delete(revocations).where(revocations.c.expires_at < now_ms()))
    until = now_ms() + 1_000 * seconds
    fresh = insert_into(connection, revocations).values(id=id_, revoked_at=now_ms(), expires_at=until)
    moments = {name: fresh.excluded[name] for name in ("revoked_at", "expires_at")}
    await connection.execute(fresh.on_conflict_do_update(index_elements=["id"], set_=moments))
