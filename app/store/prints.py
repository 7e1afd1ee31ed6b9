"""Prints: what stood before the answers whose thoughts their provider takes back only there. They are only added."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.batches import Lookup
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import prints

_AT_PLACES = Lookup(
    prints.c.digest,
    lambda at_places: select(prints.c.digest, prints.c.print).where(prints.c.tenant == bindparam("tenant"), at_places),
)


async def prints_at(connection: AsyncConnection, tenant: str, places: Sequence[bytes]) -> dict[bytes, frozenset[bytes]]:
    """By the place in a history."""
    found: dict[bytes, frozenset[bytes]] = {}
    for row in await _AT_PLACES.find(connection, frozenset(places), tenant=tenant):
        found[row.digest] = found.get(row.digest, frozenset()) | {row.print}
    return found


async def keep_print(
    connection: AsyncConnection, tenant: str, place: bytes, print_: bytes, conversation_id: str
) -> None:
    """Needs a transaction; doing it twice is doing it once."""
    values = {"tenant": tenant, "digest": place, "print": print_}
    await connection.execute(
        insert_into(connection, prints)
        .values(**values, conversation_id=conversation_id, created_at=now_ms())
        .on_conflict_do_nothing()
    )
