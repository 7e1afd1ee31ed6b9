"""Learned windows: the limits that providers told when they refused a prompt, for each upstream and model."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import now_ms
from app.store.database import insert_into
from app.store.tables import conversations, learned_windows


@dataclass(frozen=True, slots=True)
class LearnedWindow:
    model: str
    limit: int
    """Tokens."""
    seconds_left: float
    """Until it is forgotten."""


async def read_learned_windows(connection: AsyncConnection, upstream: str, most: int) -> list[LearnedWindow]:
    """Those that still hold, the latest to be learnt first."""
    left = learned_windows.c.expires_at - now_ms()
    rows = await connection.execute(
        select(learned_windows.c.model, learned_windows.c.limit_tokens, left.label("left"))
        .where(learned_windows.c.upstream == upstream, learned_windows.c.expires_at > now_ms())
        .order_by(learned_windows.c.expires_at.desc(), learned_windows.c.model)
        .limit(most)
    )
    return [LearnedWindow(row.model, row.limit_tokens, row.left / 1000) for row in rows]


async def learn_window(connection: AsyncConnection, upstream: str, model: str, limit: int, ttl_ms: int) -> None:
    """Of two limits that hold the smaller stays. Expired rows go."""
    await connection.execute(delete(learned_windows).where(learned_windows.c.expires_at <= now_ms()))
    statement = insert_into(connection, learned_windows).values(
        upstream=upstream, model=model, limit_tokens=limit, learnt_at=now_ms(), expires_at=now_ms() + ttl_ms
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


async def forget_window(connection: AsyncConnection, upstream: str, model: str, below: int) -> None:
    """Drop a limit under that many tokens; another replica may have learnt a larger one since."""
    await connection.execute(
        delete(learned_windows).where(
            learned_windows.c.upstream == upstream,
            learned_windows.c.model == model,
            learned_windows.c.limit_tokens < below,
        )
    )


async def read_models_used(connection: AsyncConnection, tenant: str, most: int) -> list[str]:
    """The models in a tenant's conversations, the latest first."""
    rows = await connection.execute(
        select(conversations.c.model)
        .where(conversations.c.tenant == tenant)
        .group_by(conversations.c.model)
        .order_by(func.max(conversations.c.updated_at).desc(), conversations.c.model)
        .limit(most)
    )
    return list(rows.scalars())
