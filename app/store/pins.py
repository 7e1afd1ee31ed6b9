"""Pins: set by position, bound by the next request to show it, and held from then on by that history alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import moment, now_ms
from app.store.database import Database
from app.store.rows import owned
from app.store.tables import conversations, pins


class Pin(Struct, frozen=True):
    """A message that stays verbatim in every payload of its conversation."""

    position: int
    """Counted after the leading instructions, from 0."""
    digest: bytes | None
    """The chain's digest after the message; None until a request has shown it."""
    created_at: datetime

    def holds_in(self, chain: Sequence[bytes]) -> bool:
        """Whether the chain is of a history that has the pinned message."""
        # A digest stands for the whole history before it, so no chain holds it at another place.
        return self.digest is not None and self.digest in chain[self.position + 1 : self.position + 2]


def to_bind(found: Sequence[Pin], chain: Sequence[bytes]) -> dict[int, bytes]:
    """The digests that this chain gives to pins that have none, by position."""
    positions = (pin.position for pin in found if pin.digest is None)
    return {position: chain[position + 1] for position in positions if position + 1 < len(chain)}


# Built once: every request that is over the trigger asks it.
_OF_A_CONVERSATION = (
    select(pins.c.position, pins.c.digest, pins.c.created_at)
    .where(pins.c.tenant == bindparam("tenant"), pins.c.conversation_id == bindparam("conversation_id"))
    .order_by(pins.c.position)
)


async def find_pins(connection: AsyncConnection, tenant: str, conversation_id: str) -> list[Pin]:
    """The conversation's pins by position; empty also where nobody knows it."""
    rows = await connection.execute(_OF_A_CONVERSATION, {"tenant": tenant, "conversation_id": conversation_id})
    return [Pin(row.position, row.digest, moment(row.created_at)) for row in rows]


async def pins_in(
    database: Database, tenant: str, conversation_id: str, chain: Sequence[bytes], *, bind: bool = True
) -> tuple[int, ...]:
    """The positions of the conversation's pinned messages in this chain, ascending.

    Pins that no request has shown yet are bound to it; a dry run only looks (`bind=False`).
    """
    async with database.reading() as connection:
        found = await find_pins(connection, tenant, conversation_id)
    fresh = to_bind(found, chain)
    if fresh and bind:
        async with database.writing() as connection:
            found, fresh = await bind_pins(connection, tenant, conversation_id, fresh), {}
    return tuple(pin.position for pin in found if pin.position in fresh or pin.holds_in(chain))


async def bind_pins(
    connection: AsyncConnection, tenant: str, conversation_id: str, digests: Mapping[int, bytes]
) -> list[Pin]:
    """Bind pins to their digests, and return all pins. Needs a transaction; of two branches that bind at once the first
    one keeps the pin."""
    await connection.execute(
        update(pins).where(
            owned(pins, tenant, conversation_id=conversation_id),
            pins.c.position == bindparam("at"),
            pins.c.digest.is_(None),
        ),
        # In order of their keys, so that two replicas cannot deadlock.
        [{"at": position, "digest": digests[position]} for position in sorted(digests)],
    )
    return await find_pins(connection, tenant, conversation_id)


async def set_pins(
    connection: AsyncConnection, tenant: str, conversation_id: str, positions: Sequence[int]
) -> list[Pin] | None:
    """Replace the pins, and return the new ones, none of them bound; None if nobody knows the conversation. Needs a
    transaction."""
    known = await connection.execute(
        select(conversations.c.id)
        .where(owned(conversations, tenant, id=conversation_id))
        # Who deletes the conversation, or replaces the pins at the same time, waits.
        .with_for_update()
    )
    if known.first() is None:
        return None
    await delete_pins(connection, tenant, conversation_id)
    if positions:
        keys = {"tenant": tenant, "conversation_id": conversation_id}
        await connection.execute(
            insert(pins).values(created_at=now_ms()), [{**keys, "position": p} for p in sorted(set(positions))]
        )
    return await find_pins(connection, tenant, conversation_id)


async def delete_pins(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Delete the conversation's pins, bound or not. Needs a transaction."""
    await connection.execute(delete(pins).where(owned(pins, tenant, conversation_id=conversation_id)))
