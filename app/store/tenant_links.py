"""Links between tenants: whose requests go to another tenant, and whose rows became another's.

Theory: everything stored carries its tenant, in its key and in the digests of its histories, so a tenant cannot be
renamed. It gets a second name instead: requests of an *alias* are served as the tenant that it leads to. Where both had
rows already, those of the alias are moved, a few at a time. Their digests still begin at the alias, which is then one
of the tenant's *roots*: a history is looked up from each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import Table, and_, delete, exists, func, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.calibration_rows import CalibrationKey
from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.message_rows import MESSAGES
from app.store.sealing import sealing_of
from app.store.summary_index import SUMMARIES
from app.store.tables import (
    asides,
    calibrations,
    conversations,
    heads,
    learned_windows,
    masks,
    messages,
    pins,
    prints,
    summary_chunks,
    tenant_links,
    usage_days,
    usage_days_due,
    usage_records,
)

SETTLED_MS = 60_000
"""Age of a link from which no request is served any more that came before it."""
_INDEXES = {summary_chunks: SUMMARIES, messages: MESSAGES}
# What a request needs first comes first. Leases stay: whoever holds one still stores what it makes.
_MOVED = (
    *(summary_chunks, heads, masks, prints, asides, pins, conversations, messages),
    *(usage_records, usage_days, usage_days_due, calibrations, learned_windows),
)
_links = tenant_links.c


State = Literal["plain", "apart", "due", "moved"]
"""State of a link: whether the alias has rows that are to be moved, or had some that were; `apart` if it is the tenant
of a key that a person has claimed."""


class Link(Struct, frozen=True):
    alias: str
    tenant: str
    leads: bool
    """True if requests of the alias are served as the tenant."""
    state: State


class Mark(Struct, frozen=True):
    """Sign that links were added or removed: another one."""

    number: int
    latest: int


async def read_mark(connection: AsyncConnection) -> Mark:
    latest = func.coalesce(func.max(_links.created_at), 0)
    found = await connection.execute(select(func.count(), latest).where(_links.expires_at.is_(None)))
    return Mark(*found.one())


async def read_links(connection: AsyncConnection) -> list[Link]:
    """Links of all tenants, the oldest first, but for those that expire."""
    rows = select(_links.alias, _links.tenant, _links.leads, _links.state).where(_links.expires_at.is_(None))
    found = await connection.execute(rows.order_by(_links.created_at, _links.alias, _links.tenant))
    return [Link(*row) for row in found]


async def find_proven(connection: AsyncConnection, alias: str, person: str | None) -> tuple[str, float] | None:
    """Person that a token's own tenant was proven to be, this one or any, and the seconds for which that holds; None
    without such a proof."""
    proofs = select(_links.tenant, (_links.expires_at - now_ms()).label("left")).where(
        _links.alias == alias, _links.expires_at > select(now_ms()).scalar_subquery()
    )
    if person is not None:
        proofs = proofs.where(_links.tenant == person)
    row = (await connection.execute(proofs.order_by(_links.expires_at.desc()).limit(1))).first()
    return None if row is None else (row.tenant, row.left / 1_000)


async def keep_proven(connection: AsyncConnection, alias: str, tenant: str, seconds: float) -> None:
    """Link a token's own tenant to a person's for so many seconds. Needs a transaction."""
    await connection.execute(delete(tenant_links).where(_links.expires_at < now_ms()))
    until = now_ms() + round(1_000 * seconds)
    values = {"alias": alias, "tenant": tenant, "leads": False, "state": "plain", "created_at": now_ms()}
    proof = insert_into(connection, tenant_links).values(**values, expires_at=until)
    await connection.execute(
        proof.on_conflict_do_update(
            index_elements=list(tenant_links.primary_key), set_={"expires_at": proof.excluded.expires_at}
        )
    )


async def has_rows(connection: AsyncConnection, tenant: str) -> bool:
    """Whether a tenant has conversations: whoever sent a request that was served has one."""
    return bool(await connection.scalar(select(exists().where(conversations.c.tenant == tenant))))


async def claim(connection: AsyncConnection, person: str, key: str, apart: str) -> bool:
    """Make the rows of a key's tenant a person's; False where it has none, or somebody has claimed them before. From
    then on requests with the key alone are served as the tenant `apart`: others may have the key, too.

    Needs a transaction.
    """
    if not await has_rows(connection, key) or not await _insert(connection, key, apart, state="apart"):
        return False
    leads = select(_links.tenant).where(_links.alias == person, _links.leads)
    tenant = await connection.scalar(leads) or person
    if tenant == person and not await has_rows(connection, person) and await _insert(connection, person, key):
        return True
    # In between another replica may have linked the person with another key.
    tenant = await connection.scalar(leads) or person
    await _insert(connection, key, tenant, leads=False, state="due")
    return True


async def merge(connection: AsyncConnection, old: str, new: str) -> None:
    """Serve requests of the tenant `new` as those of `old`, with the rows of both. Needs a transaction."""
    await connection.execute(update(tenant_links).where(_links.tenant == new).values(tenant=old, created_at=now_ms()))
    # Also where it has no rows yet: a replica that does not know of it may store some.
    if not await _insert(connection, new, old, state="due"):
        # A key that somebody claimed: requests with it alone stay apart.
        await _insert(connection, new, old, leads=False, state="due")


async def _insert(
    connection: AsyncConnection, alias: str, tenant: str, *, leads: bool = True, state: State = "plain"
) -> bool:
    values = {"alias": alias, "tenant": tenant, "leads": leads, "state": state, "created_at": now_ms()}
    added = await connection.execute(insert_into(connection, tenant_links).values(**values).on_conflict_do_nothing())
    return bool(added.rowcount)


async def forget_aliases(connection: AsyncConnection, tenant: str) -> None:
    """Remove links from a tenant whose rows are erased, but where they lead to rows of others. Needs a transaction."""
    is_others = exists().where(conversations.c.tenant == _links.tenant)
    await connection.execute(delete(tenant_links).where(_links.alias == tenant, ~is_others))


async def read_due(connection: AsyncConnection) -> list[Link]:
    """Links whose alias may still have rows, the oldest first."""
    rows = select(_links.alias, _links.tenant, _links.leads, _links.state).where(_links.state == "due")
    return [Link(*row) for row in await connection.execute(rows.order_by(_links.created_at, _links.alias))]


async def move_some(connection: AsyncConnection, alias: str, tenant: str, most: int) -> int:
    """Move rows of one table from an alias to its tenant; how many there were. Where both have the row, the tenant's
    own stays, and of a conversation the later. Needs a transaction."""
    for table in _MOVED:
        key = list(table.primary_key)
        own = select(table).where(table.c.tenant == alias).order_by(*key).limit(most).with_for_update()
        if not (rows := [dict(row._mapping) for row in await connection.execute(own)]):  # noqa: SLF001 - public
            continue
        keys = [tuple(row[column.name] for column in key) for row in rows]
        moved = sealing_of(connection).moved
        await _store_as(connection, table, [moved(table, row, tenant) for row in rows])
        if (index := _INDEXES.get(table)) is not None:
            await index.copy(connection, [row["id"] for row in rows], alias, tenant)
        await connection.execute(delete(table).where(table.c.tenant == alias, tuple_(*key).in_(keys)))
        return len(rows)
    await connection.execute(
        update(tenant_links)
        .where(
            and_(_links.alias == alias, _links.tenant == tenant, _links.state == "due"),
            _links.created_at < now_ms() - SETTLED_MS,
        )
        .values(state="moved")
    )
    return 0


async def _store_as(connection: AsyncConnection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    fresh = insert_into(connection, table)
    if table is calibrations:
        rows = [{**row, "id": _calibration_id(row)} for row in rows]
    if table is conversations:
        new, there = fresh.excluded, conversations.c
        changed = {column.name: new[column.name] for column in table.c if not column.primary_key}
        statement = fresh.on_conflict_do_update(
            index_elements=list(table.primary_key), set_=changed, where=new.updated_at > there.updated_at
        )
    elif table is usage_days:
        numbers = [column.name for column in table.c if not column.primary_key]
        sums = {name: table.c[name] + fresh.excluded[name] for name in numbers}
        statement = fresh.on_conflict_do_update(index_elements=list(table.primary_key), set_=sums)
    else:
        statement = fresh.on_conflict_do_nothing()
    await connection.execute(statement, list(rows))


def _calibration_id(row: dict[str, Any]) -> str:
    return CalibrationKey(row["upstream"], row["model"], row["formula"], row["tools"], row["tenant"]).id
