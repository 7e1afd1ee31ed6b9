"""Rows of one tenant in all tables, to be erased. A table that is added later is among them by its column."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct
from sqlalchemy import ColumnElement, Table, delete, func, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import moment
from app.store.lease import revoke_leases
from app.store.tables import (
    conversations,
    heads,
    leases,
    metadata,
)

TABLES: tuple[Table, ...] = tuple(table for table in metadata.sorted_tables if "tenant" in table.c)
_ERASED = tuple(table for table in TABLES if table is not leases)
# In the order in which requests lock their rows.
_IN_ORDER = (conversations, heads, *(table for table in _ERASED if table not in (conversations, heads)))
MOST_TENANTS = 500
"""Maximum number of tenants listed, most recent first."""


class SeenTenant(Struct, frozen=True):
    """A tenant as it is distinguished from others."""

    id: str
    conversations: int
    latest: datetime
    """Time of the last request in one of the conversations."""


async def latest_tenant(connection: AsyncConnection) -> str | None:
    """The tenant whose conversation had a request last: the first of `read_tenants`."""
    table = conversations.c
    return await connection.scalar(select(table.tenant).order_by(table.updated_at.desc(), table.tenant).limit(1))


async def is_tenant(connection: AsyncConnection, tenant: str) -> bool:
    """Whether the tenant has a conversation."""
    found = await connection.scalar(select(conversations.c.id).where(conversations.c.tenant == tenant).limit(1))
    return found is not None


async def read_tenants(connection: AsyncConnection) -> list[SeenTenant]:
    """Tenants with conversations, the latest first."""
    table, latest = conversations.c, func.max(conversations.c.updated_at).label("latest")
    rows = await connection.execute(
        select(table.tenant, func.count().label("number"), latest)
        .group_by(table.tenant)
        .order_by(latest.desc(), table.tenant)
        .limit(MOST_TENANTS)
    )
    return [SeenTenant(row.tenant, row.number, moment(row.latest)) for row in rows]


async def erase_some(connection: AsyncConnection, tenant: str, most: int) -> int:
    """Erase rows of one table, so that nothing is locked for long; return how many. Needs a transaction."""
    for table in _IN_ORDER:
        key, own = tuple_(*table.primary_key), table.c.tenant == tenant
        some = select(*table.primary_key).where(own).order_by(*table.primary_key).limit(most).with_for_update()
        removed = await connection.execute(delete(table).where(own, key.in_(some)))
        if removed.rowcount:
            return removed.rowcount
    return 0


async def erase_rest(connection: AsyncConnection, tenant: str) -> bool:
    """Erase what came meanwhile; False if nothing did. Needs a transaction."""
    await revoke_leases(connection, tenant)
    for table in (conversations, heads):
        own: ColumnElement[bool] = table.c.tenant == tenant
        await connection.execute(select(*table.primary_key).where(own).order_by(*table.primary_key).with_for_update())
    removed = [await connection.execute(delete(table).where(table.c.tenant == tenant)) for table in _IN_ORDER]
    return any(each.rowcount for each in removed)
