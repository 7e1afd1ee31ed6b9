"""Conversations and their heads: by which message histories a conversation is recognised."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Row,
    ScalarSelect,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.recognition import Head
from app.store.batches import Lookup
from app.store.chunks import delete_chunks_of, note_use
from app.store.clock import moment, now_ms
from app.store.database import Insert, insert_into
from app.store.lease import is_under_way, revoke_leases
from app.store.pages import Page, Paging, read_page
from app.store.pins import delete_pins
from app.store.rows import members, owned, rows_of
from app.store.tables import conversations, heads, histories, masks, usage_records

MOST_HEADS = 256
"""Most heads of a conversation between two flushes: the latest stay."""


class ConversationSeen(Struct, frozen=True):
    """A conversation as one request showed it."""

    tenant: str
    conversation_id: str
    model: str
    turns: int
    messages: int
    status: str
    tokens_before: int
    tokens_after: int
    window: int
    reason: str | None
    forked_from: str | None
    heads: tuple[tuple[bytes, int], ...]
    """(digest, turn) by which its next request will be recognised."""
    coverage: str
    """JSON: the parts of the payload."""
    summaries: tuple[str, ...]
    """Ids of the chunks that stand in the payload."""
    plan: str | None = None
    """JSON: what was tried, and why; None where nothing was due."""


class StoredConversation(Struct, frozen=True):
    """A conversation as all its requests showed it."""

    id: str
    model: str
    turns: int
    """The deepest turn of any request."""
    messages: int
    requests: int
    status: str
    reason: str | None
    tokens_before: int
    tokens_after: int
    window: int
    forked_from: str | None
    coverage: str
    plan: str | None
    """JSON: the plan of the latest request whose payload was changed, or due to be."""
    summaries: tuple[str, ...]
    created_at: datetime
    updated_at: datetime

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The parts of the latest payload in order, without gaps."""
        return msgspec.json.decode(self.coverage or b"[]", type=list[dict[str, Any]])


class Pulse(Struct, frozen=True):
    """A conversation at this moment."""

    compacting: bool
    """Whether some replica holds the lease of one of its ranges."""
    updated_at: datetime | None
    """Time at which its latest request was stored; None where nobody knows the conversation."""


@dataclass(slots=True)
class UnwrittenRequests:
    """The requests of one conversation since the last flush."""

    latest: ConversationSeen
    turns: int
    requests: int
    heads: dict[bytes, int]
    """The latest ones, the newest last."""

    @classmethod
    def of(cls, seen: ConversationSeen) -> UnwrittenRequests:
        return cls(seen, seen.turns, 1, dict(seen.heads))

    def add(self, seen: ConversationSeen) -> None:
        """Add the next request."""
        self._follow(seen, seen.turns, 1, seen.heads)

    def join(self, newer: UnwrittenRequests) -> None:
        self._follow(newer.latest, newer.turns, newer.requests, newer.heads.items())

    def _follow(self, latest: ConversationSeen, turns: int, requests: int, heads: Iterable[tuple[bytes, int]]) -> None:
        older, self.latest = self.latest, latest
        if older.forked_from or (older.plan and not latest.plan):
            forked_from = older.forked_from or latest.forked_from
            self.latest = replace(latest, forked_from=forked_from, plan=latest.plan or older.plan)
        self.turns = max(self.turns, turns)
        self.requests += requests
        self.heads.update(heads)
        while len(self.heads) > MOST_HEADS:
            del self.heads[next(iter(self.heads))]


_HEADS = Lookup(
    heads.c.digest,
    lambda seen_with: (
        select(heads.c.digest, heads.c.conversation_id, heads.c.turn, conversations.c.turns)
        .join(
            conversations, (conversations.c.tenant == heads.c.tenant) & (conversations.c.id == heads.c.conversation_id)
        )
        .where(heads.c.tenant == bindparam("tenant"), seen_with)
    ),
)


async def find_heads(
    connection: AsyncConnection, tenant: str, digests: Sequence[bytes], unwritten: Sequence[Head]
) -> list[Head]:
    """The heads among the digests; `unwritten` are those that still wait in this process."""
    rows = await _HEADS.find(connection, digests, tenant=tenant)
    found = {row.digest: Head(row.digest, row.conversation_id, row.turn, row.turns) for row in rows}
    found |= {head.digest: head for head in unwritten}
    tips = await _tips(connection, tenant, {head.conversation_id for head in unwritten})
    for head in unwritten:
        tips[head.conversation_id] = max(tips.get(head.conversation_id, 0), head.tip_turn)
    return [replace(head, tip_turn=tips.get(head.conversation_id, head.tip_turn)) for head in found.values()]


async def _tips(connection: AsyncConnection, tenant: str, ids: Collection[str]) -> dict[str, int]:
    tips = select(conversations.c.id, conversations.c.turns)
    rows = await rows_of(connection, list(ids), lambda batch: tips.where(owned(conversations, tenant, id=batch)))
    return {row.id: row.turns for row in rows}


async def write_conversations(connection: AsyncConnection, unwritten: Sequence[UnwrittenRequests]) -> int | None:
    """Store requests, and return the transaction's number, by which `is_committed` knows it: doing it twice counts the
    requests twice. None on SQLite.

    Needs a transaction. Rows are taken in order of their keys, so two replicas cannot deadlock.
    """
    ordered = sorted(unwritten, key=lambda s: (s.latest.tenant, s.latest.conversation_id))
    await connection.execute(_upsert_conversations(connection), [_conversation_row(seen) for seen in ordered])
    # By digest: of two conversations in one flush the later one stands, as it would in two flushes.
    rows = {(row["tenant"], row["digest"]): row for seen in ordered for row in _head_rows(seen)}
    if rows:
        await connection.execute(_upsert_heads(connection), [rows[key] for key in sorted(rows)])
    await note_use(connection, {(seen.latest.tenant, chunk) for seen in ordered for chunk in seen.latest.summaries})
    return await connection.scalar(select(func.txid_current())) if connection.dialect.name == "postgresql" else None


async def is_committed(connection: AsyncConnection, transaction: int) -> bool | None:
    """Whether the transaction was committed; None while it is under way. Only PostgreSQL can say."""
    status = await connection.scalar(select(func.txid_status(transaction)))
    return None if status == "in progress" else status == "committed"


async def read_conversations(connection: AsyncConnection, tenant: str, paging: Paging) -> Page[StoredConversation]:
    """A page of the tenant's conversations, by creation. Raises UnknownCursor if `after` is none of them."""
    rows = select(conversations).where(conversations.c.tenant == tenant)
    return await read_page(connection, conversations, rows, _conversation, paging)


async def find_conversation(
    connection: AsyncConnection, tenant: str, conversation_id: str
) -> StoredConversation | None:
    """The tenant's conversation with that id; None if there is none, or its first request is not flushed yet."""
    found = await connection.execute(select(conversations).where(owned(conversations, tenant, id=conversation_id)))
    row = found.first()
    return _conversation(row) if row else None


async def read_pulse(connection: AsyncConnection, tenant: str, conversation_id: str, ttl_ms: int) -> Pulse:
    """The conversation at this moment. `ttl_ms`: how long a lease lives."""
    own = owned(conversations, tenant, id=conversation_id)
    updated = await connection.scalar(select(conversations.c.updated_at).where(own))
    compacting = await is_under_way(connection, tenant, conversation_id, ttl_ms)
    return Pulse(compacting, None if updated is None else moment(updated))


async def erase_conversation(connection: AsyncConnection, tenant: str, conversation_id: str) -> bool:
    """Delete all of a conversation; False if there was none. Needs a transaction."""
    # Leases first: a commit in flight holds its lease's row, so either it is done and its chunk is deleted below, or
    # it finds the epoch raised.
    await revoke_leases(connection, tenant, conversation_id)
    await _lock_as_flushes_do(connection, tenant, conversation_id)
    await delete_chunks_of(connection, tenant, conversation_id)
    for table in (usage_records, heads, masks, histories):
        await connection.execute(delete(table).where(owned(table, tenant, conversation_id=conversation_id)))
    deleted = await connection.execute(delete(conversations).where(owned(conversations, tenant, id=conversation_id)))
    # Last: whoever sets pins holds the conversation's row, so either they are there by now or it finds no conversation.
    await delete_pins(connection, tenant, conversation_id)
    return bool(deleted.rowcount)


async def _lock_as_flushes_do(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """Lock the conversation, then its heads by digest, which a flush may be giving to another one: no deadlock."""
    row = select(conversations.c.id).where(owned(conversations, tenant, id=conversation_id))
    await connection.execute(row.with_for_update())
    its_heads = select(heads.c.digest).where(owned(heads, tenant, conversation_id=conversation_id))
    await connection.execute(its_heads.order_by(heads.c.digest).with_for_update())


def _upsert_conversations(connection: AsyncConnection) -> Insert:
    statement = insert_into(connection, conversations).values(created_at=now_ms(), updated_at=now_ms())
    new, old = statement.excluded, conversations.c
    latest = ("model", "messages", "status", "reason", "tokens_before", "tokens_after", "window", "coverage")
    return statement.on_conflict_do_update(
        index_elements=[old.tenant, old.id],
        set_={
            **{name: new[name] for name in latest},
            "summaries": new.summaries,
            "head": new.head,
            "turns": case((new.turns > old.turns, new.turns), else_=old.turns),
            "requests": old.requests + new.requests,
            "forked_from": func.coalesce(old.forked_from, new.forked_from),
            "plan": func.coalesce(new.plan, old.plan),
            "updated_at": now_ms(),
        },
    )


def _upsert_heads(connection: AsyncConnection) -> Insert:
    """Upsert of heads. Of two conversations that share a history the newer one keeps the head, whichever was written
    last."""
    statement = insert_into(connection, heads)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[heads.c.tenant, heads.c.digest],
        set_={"conversation_id": new.conversation_id, "turn": new.turn},
        where=_created_at("excluded") >= func.coalesce(_created_at("heads"), literal_column("0")),
    )


def _created_at(head: str) -> ScalarSelect[int]:
    # By name: given the columns, SQLAlchemy adds `heads` to the subquery once more and compares with any of its rows.
    tenant: ColumnElement[str] = literal_column(f"{head}.tenant")
    conversation_id: ColumnElement[str] = literal_column(f"{head}.conversation_id")
    owner = conversations.alias()
    return select(owner.c.created_at).where(owner.c.tenant == tenant, owner.c.id == conversation_id).scalar_subquery()


def _conversation_row(seen: UnwrittenRequests) -> dict[str, Any]:
    latest = seen.latest
    same = ("tenant", "model", "messages", "status", "reason", "tokens_before", "tokens_after", "window")
    return {
        **{name: getattr(latest, name) for name in (*same, "forked_from", "coverage", "summaries", "plan")},
        "id": latest.conversation_id,
        "turns": seen.turns,
        "requests": seen.requests,
        "head": latest.heads[-1][0] if latest.heads else None,
    }


def _head_rows(seen: UnwrittenRequests) -> list[dict[str, Any]]:
    tenant, conversation_id = seen.latest.tenant, seen.latest.conversation_id
    return [
        {"tenant": tenant, "digest": digest, "conversation_id": conversation_id, "turn": turn}
        for digest, turn in seen.heads.items()
    ]


def _conversation(row: Row[Any]) -> StoredConversation:
    return StoredConversation(**members(row, "tenant", "head"))
