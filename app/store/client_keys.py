"""Client keys: what is kept of those that Steno itself gives out."""

from __future__ import annotations

from collections.abc import Sequence
from time import time

import msgspec
from msgspec import Struct
from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import client_keys


class KeyLimits(Struct, frozen=True, omit_defaults=True):
    """Limits of what a key may be used for; empty or None: any."""

    models: tuple[str, ...] = ()
    """Names or globs."""
    upstreams: tuple[str, ...] = ()
    tokens_per_day: int | None = None
    money_per_day: float | None = None
    money_per_conversation: float | None = None

    @property
    def has_money(self) -> bool:
        """True if it may spend so much."""
        return self.money_per_day is not None or self.money_per_conversation is not None

    @property
    def needs_measuring(self) -> bool:
        """True if a request may not pass of which nobody knows the model or the cost."""
        return bool(self.models or self.tokens_per_day or self.money_per_day or self.money_per_conversation)


class ClientKey(Struct, frozen=True, omit_defaults=True):
    """A key as it is kept. Times are seconds since 1970."""

    id: str
    digest: str
    owner: str
    """Name of the person or service whose conversations it leads to."""
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    limits: KeyLimits = KeyLimits()

    def holds_at(self, now: float) -> bool:
        """True if it is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


async def read_client_keys(connection: AsyncConnection) -> list[ClientKey]:
    """All keys, the oldest first."""
    table = client_keys.c
    found = await connection.execute(select(client_keys).order_by(table.created_at, table.id))
    return [msgspec.convert(row, ClientKey, from_attributes=True) for row in found]


async def add_client_key(connection: AsyncConnection, key: ClientKey) -> None:
    """Store a key. Needs a transaction."""
    limits = {name: value for name in KeyLimits.__struct_fields__ if (value := getattr(key.limits, name))}
    values = {name: getattr(key, name) for name in ("id", "digest", "owner", "created_at", "expires_at")}
    await connection.execute(insert(client_keys).values(**values, limits=limits))


async def revoke_client_keys(connection: AsyncConnection, ids: Sequence[str]) -> None:
    """End keys now. Needs a transaction."""
    await connection.execute(update(client_keys).where(client_keys.c.id.in_(ids)).values(revoked_at=time()))
