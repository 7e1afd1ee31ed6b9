"""Places in a history, by their digests: from where tool results are masked, and what was said at that point.

A mask is a boundary before which answered tool results are masked; it is only ever added.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.batches import Lookup
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import masks

_IN_A_CHAIN = Lookup(
    masks.c.digest,
    lambda in_the_chain: select(masks.c.digest, masks.c.start_digest).where(
        masks.c.tenant == bindparam("tenant"), masks.c.settings == bindparam("settings"), in_the_chain
    ),
)


async def masks_in(
    connection: AsyncConnection, tenant: str, settings: str, chain: Sequence[bytes]
) -> list[tuple[bytes, bytes]]:
    """The boundaries that lie in the chain, each with where the summaries ended when it was set."""
    known = frozenset(chain)
    rows = await _IN_A_CHAIN.find(connection, known, tenant=tenant, settings=settings)
    return [(row.digest, row.start_digest) for row in rows if row.start_digest in known]


async def keep_mask(
    connection: AsyncConnection, tenant: str, settings: str, digest: bytes, start: bytes, conversation_id: str
) -> None:
    """Needs a transaction; doing it twice is doing it once."""
    values = {"tenant": tenant, "settings": settings, "digest": digest, "start_digest": start}
    await connection.execute(
        insert_into(connection, masks)
        .values(**values, conversation_id=conversation_id, created_at=now_ms())
        .on_conflict_do_nothing()
    )
