"""Learned windows: the limits that providers gave when they refused a prompt, for each upstream, model and tenant."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import case, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.rows import owned
from app.store.tables import conversations, learned_windows

MOST_OF_TENANT = 100
"""Rows of one tenant at one upstream: whoever makes up names of models fills no table."""


class LearnedWindow(Struct, frozen=True):
    """A learned limit that still holds."""

    model: str
    tenant: str
    """Tenant that learnt it."""
    limit: int
    """Tokens."""
    seconds_left: float
    """Time until it is forgotten."""


async def read_learned_windows(connection: AsyncConnection, upstream: str, most: int) -> list[LearnedWindow]:
    """Limits that still hold, the latest to be learnt first."""
    row, left = learned_windows.c, learned_windows.c.expires_at - now_ms()
    rows = await connection.execute(
        select(row.model, row.tenant, row.limit_tokens, left.label("left"))
        # In a subquery the clock is read once, so that the index finds those that still hold.
        .where(row.upstream == upstream, row.expires_at > select(now_ms()).scalar_subquery())
        .order_by(row.expires_at.desc(), row.model, row.tenant)
        .limit(most)
    )
    return [LearnedWindow(row.model, row.tenant, row.limit_tokens, row.left / 1000) for row in rows]


async def learn_window(
    connection: AsyncConnection, upstream: str, model: str, tenant: str, limit: int, seconds: float
) -> None:
    """Store a limit, in tokens, for so many seconds; of two that hold the smaller stays. Expired rows go, and those of
    the tenant beyond the latest hundred."""
    await connection.execute(delete(learned_windows).where(learned_windows.c.expires_at <= now_ms()))
    statement = insert_into(connection, learned_windows).values(
        upstream=upstream,
        model=model,
        tenant=tenant,
        limit_tokens=limit,
        learnt_at=now_ms(),
        expires_at=now_ms() + round(seconds * 1000),
    )
    there, new = learned_windows.c.limit_tokens, statement.excluded
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=list(learned_windows.primary_key),
            set_={
                "limit_tokens": case((there < new.limit_tokens, there), else_=new.limit_tokens),
                "learnt_at": new.learnt_at,
                "expires_at": new.expires_at,
            },
        )
    )
    of_tenant = owned(learned_windows, tenant, upstream=upstream)
    oldest_kept = (
        select(learned_windows.c.expires_at)
        .where(of_tenant)
        .order_by(learned_windows.c.expires_at.desc())
        .offset(MOST_OF_TENANT - 1)
        .limit(1)
    )
    await connection.execute(
        delete(learned_windows).where(of_tenant, learned_windows.c.expires_at < oldest_kept.scalar_subquery())
    )


async def forget_window(connection: AsyncConnection, upstream: str, model: str, tenant: str, below: int) -> None:
    """Drop a tenant's limit under that many tokens; another replica may have learnt a larger one since."""
    await connection.execute(
        delete(learned_windows).where(
            owned(learned_windows, tenant, upstream=upstream, model=model), learned_windows.c.limit_tokens < below
        )
    )


async def read_models_used(connection: AsyncConnection, tenant: str, most: int = 1_000) -> list[str]:
    """The models in a tenant's conversations, the latest first."""
    rows = await connection.execute(
        select(conversations.c.model)
        .where(conversations.c.tenant == tenant)
        .group_by(conversations.c.model)
        .order_by(func.max(conversations.c.updated_at).desc(), conversations.c.model)
        .limit(most)
    )
    return list(rows.scalars())
