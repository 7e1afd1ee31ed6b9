"""The audit trail: what operators did with what is tenants', on the pages and by commands. No keys, no texts.

Each act is recorded before it is done, and what cannot be recorded is not done.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b

from msgspec import Struct
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import moment, now_ms
from app.store.tables import operator_acts

KEPT_DAYS = 365
"""Days for which acts are kept, whatever else is deleted sooner."""


class Act(Struct, frozen=True):
    at: datetime
    who: str
    """Link that an operator signed in with, and the address he came from; or the user who ran a command."""
    did: str
    tenant: str
    subject: str
    """Conversation, by its digest (`hashed`), or link or key, by its id; empty where it was all of the tenant's."""


def hashed(tenant: str, conversation_id: str) -> str:
    """Digest by which a conversation is named here: clients may call it after somebody."""
    return blake2b(conversation_id.encode(), key=tenant.encode()[:64], digest_size=16).hexdigest()


async def record_act(connection: AsyncConnection, who: str, did: str, tenant: str = "", subject: str = "") -> None:
    """Record an act. Needs a transaction."""
    act = {"who": who, "did": did, "of_tenant": tenant, "subject": subject}
    await connection.execute(insert(operator_acts).values(at=now_ms(), **act))


async def read_acts(connection: AsyncConnection, most: int, tenant: str = "") -> list[Act]:
    """The latest acts, the newest first. `tenant`: the first characters of the id of whose they are about."""
    acts = operator_acts.c
    rows = await connection.execute(
        select(acts.at, acts.who, acts.did, acts.of_tenant, acts.subject)
        .where(acts.of_tenant.startswith(tenant, autoescape=True))
        .order_by(acts.number.desc())
        .limit(most)
    )
    return [Act(moment(row.at), *row[1:]) for row in rows]
