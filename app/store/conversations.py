"""Conversations: their rows, heads and pins, and lists of conversations and tenants.

A head is the digest of a position in a request's history. By the heads of earlier requests, Steno recognises the
conversation of a request. A user pins a position. The next request with a message at this position binds the pin to the
request's history. From then on the pin applies to this history alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.identity import Head
from app.conversation.reasons import Code
from app.store.chunks import delete_chunks_of, holding, note_use
from app.store.leases import revoke_leases
from app.store.tables import (
    Insert,
    Page,
    Paging,
    conversations,
    heads,
    histories,
    insert_into,
    is_among,
    masks,
    members,
    moment,
    now_ms,
    owned,
    pins,
    read_page,
    usage_records,
)

MOST_HEADS = 256
"""Maximum number of heads of one conversation in the write-behind queue. The oldest heads are dropped."""
MOST_TENANTS = 500
"""Maximum number of tenants in a list of the most recently active tenants."""

AS_INTENDED: tuple[str, ...] = (
    *(Code.COMPACTION_OFF, Code.SUMMARY_IN_BACKGROUND, Code.PUT_OFF_FOR_COST, Code.SERVER_STATE, Code.BACKGROUND),
    *(Code.PROMPT_TEMPLATE, Code.NATIVE_COMPACTION, Code.CLIENT_COMPACTION, Code.SUMMARY_CALL),
)
"""Reasons that are no failures: a choice of the client or the operator, or a compaction that Steno postponed."""


class ConversationState(Struct, frozen=True, kw_only=True):
    """State of a conversation after a request: columns of its row."""

    model: str
    turns: int
    messages: int
    status: str
    reason: str | None
    tokens_before: int
    tokens_after: int
    window: int
    forked_from: str | None
    coverage: str
    """The parts of the payload, as JSON."""
    summaries: tuple[str, ...]
    """Ids of the chunks in the payload."""
    plan: str | None = None
    """Steps of compaction that Steno tried for the request, with reasons, as JSON; None if no step was due. The row
    keeps the plan of an earlier request until a later request has a plan."""
    requests: int = 1


class ConversationSeen(ConversationState, frozen=True, kw_only=True):
    """State of a conversation after one request, or the merged states after several requests."""

    tenant: str
    conversation_id: str
    heads: tuple[tuple[bytes, int], ...]
    """Positions by which Steno recognises later requests: digest, and number of turns begun before the position."""

    def with_later(self, later: ConversationSeen) -> ConversationSeen:
        """Merge this state with a later state. Keep the newest `MOST_HEADS` heads, the newest last; a digest may occur
        more than once."""
        return replace(
            later,
            turns=max(self.turns, later.turns),
            requests=self.requests + later.requests,
            heads=(*self.heads, *later.heads)[-MOST_HEADS:],
            forked_from=self.forked_from or later.forked_from,
            plan=later.plan or self.plan,
        )


class StoredConversation(ConversationState, frozen=True, kw_only=True):
    """A conversation as of its latest request."""

    id: str
    created_at: datetime
    updated_at: datetime

    @property
    def saved(self) -> int:
        return self.tokens_before - self.tokens_after

    @property
    def failed(self) -> bool:
        """Whether the latest request has a reason that is not in `AS_INTENDED`."""
        return self.reason is not None and self.reason not in AS_INTENDED

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Parts of the latest payload, in order and without gaps."""
        return msgspec.json.decode(self.coverage or b"[]", type=list[dict[str, Any]])


class Wanted(Struct, frozen=True):
    """Filter of a list of conversations; all conditions must be met. `status` and `model` are of the latest request."""

    text: str = ""
    """Text that the conversation's id or one of its summaries contains."""
    status: str | None = None
    model: str | None = None


class SeenTenant(Struct, frozen=True):
    id: str
    conversations: int
    latest: datetime
    """Time of the tenant's last request."""


class Pin(Struct, frozen=True):
    """A message that stays verbatim in every payload of its conversation."""

    position: int
    """Index of the message, from 0. Leading instructions are not counted."""
    digest: bytes | None
    """Digest of the history up to and including the message; None until a request binds the pin."""
    created_at: datetime

    def holds_in(self, chain: Sequence[bytes]) -> bool:
        """Whether the history with these digests contains the pinned message."""
        # A digest covers the whole history before it, so in any chain it can only be at this index.
        return self.digest is not None and self.digest in chain[self.position + 1 : self.position + 2]


async def find_heads(
    connection: AsyncConnection, tenant: str, digests: Sequence[bytes], unwritten: Sequence[Head]
) -> list[Head]:
    """Return the heads with these digests, from the database and from the queued heads `unwritten`."""
    of_tenant, of_id = conversations.c.tenant == heads.c.tenant, conversations.c.id == heads.c.conversation_id
    columns = heads.c.digest, heads.c.conversation_id, heads.c.turn, conversations.c.turns
    rows = await connection.execute(
        sa.select(*columns)
        .join(conversations, of_tenant & of_id)
        .where(heads.c.tenant == tenant, is_among(connection, heads.c.digest, digests))
    )
    found = {row.digest: Head(*row) for row in rows}
    found |= {head.digest: head for head in unwritten}
    if not unwritten:
        return list(found.values())
    ids = is_among(connection, conversations.c.id, {head.conversation_id for head in unwritten})
    turns = sa.select(conversations.c.id, conversations.c.turns).where(owned(conversations, tenant), ids)
    tips = {row.id: row.turns for row in await connection.execute(turns)}
    for head in unwritten:
        tips[head.conversation_id] = max(tips.get(head.conversation_id, 0), head.tip_turn)
    return [replace(head, tip_turn=tips.get(head.conversation_id, head.tip_turn)) for head in found.values()]


async def write_conversations(connection: AsyncConnection, unwritten: Sequence[ConversationSeen]) -> None:
    """Store the states of conversations. Not idempotent: each call adds to `requests`. Needs a transaction."""
    if not unwritten:
        return
    # Rows are locked in order of their keys, so two replicas cannot deadlock.
    ordered = sorted(unwritten, key=lambda seen: (seen.tenant, seen.conversation_id))
    rows = [
        {
            **{name: getattr(seen, name) for name in ConversationState.__struct_fields__},
            "tenant": seen.tenant,
            "id": seen.conversation_id,
            "head": seen.heads[-1][0] if seen.heads else None,
        }
        for seen in ordered
    ]
    await connection.execute(_upsert_conversations(connection), rows)
    # If two conversations of one flush share a digest, the last conversation in this order gets the head.
    its_heads = {
        (seen.tenant, digest): {"conversation_id": seen.conversation_id, "turn": turn}
        for seen in ordered
        for digest, turn in seen.heads
    }
    if its_heads:
        new = [{"tenant": tenant, "digest": digest, **head} for (tenant, digest), head in sorted(its_heads.items())]
        await connection.execute(_upsert_heads(connection), new)
    await note_use(connection, {(seen.tenant, chunk) for seen in ordered for chunk in seen.summaries})


def _upsert_conversations(connection: AsyncConnection) -> Insert:
    statement = insert_into(connection, conversations).values(created_at=now_ms(), updated_at=now_ms())
    new, old = statement.excluded, conversations.c
    return statement.on_conflict_do_update(
        index_elements=[old.tenant, old.id],
        set_={
            **{name: new[name] for name in (*ConversationState.__struct_fields__, "head")},
            "turns": sa.case((new.turns > old.turns, new.turns), else_=old.turns),
            "requests": old.requests + new.requests,
            "forked_from": sa.func.coalesce(old.forked_from, new.forked_from),
            "plan": sa.func.coalesce(new.plan, old.plan),
            "updated_at": now_ms(),
        },
    )


def _upsert_heads(connection: AsyncConnection) -> Insert:
    """Upsert heads. If two conversations share a history, the head belongs to the conversation that was created later,
    even if Steno writes the other conversation last."""
    statement = insert_into(connection, heads)
    new = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=[heads.c.tenant, heads.c.digest],
        set_={"conversation_id": new.conversation_id, "turn": new.turn},
        where=_created_at("excluded") >= sa.func.coalesce(_created_at("heads"), sa.literal_column("0")),
    )


def _created_at(head: str) -> sa.ColumnElement[int]:
    # As text: for column objects SQLAlchemy would add `heads` to the subquery, and compare with all its rows.
    owner = f"owner.tenant = {head}.tenant AND owner.id = {head}.conversation_id"
    return sa.literal_column(f"(SELECT owner.created_at FROM conversations AS owner WHERE {owner})")  # noqa: S608 - constants


async def read_conversations(connection: AsyncConnection, tenant: str, paging: Paging) -> Page[StoredConversation]:
    """Return a page of the tenant's conversations, by time of creation. Raises UnknownCursor."""
    rows = sa.select(conversations).where(conversations.c.tenant == tenant)
    return await read_page(connection, rows, _conversation, paging)


async def find_conversation(
    connection: AsyncConnection, tenant: str, conversation_id: str
) -> StoredConversation | None:
    """Return the conversation; None if it does not exist, or its first request is not flushed yet."""
    found = await connection.execute(sa.select(conversations).where(owned(conversations, tenant, id=conversation_id)))
    row = found.first()
    return _conversation(row) if row else None


def _conversation(row: sa.Row[Any]) -> StoredConversation:
    return StoredConversation(**members(row, "tenant", "head"))


async def erase_conversation(connection: AsyncConnection, tenant: str, conversation_id: str) -> bool:
    """Delete all rows of a conversation; return False if the conversation is unknown. Needs a transaction."""
    # Leases first, because a commit locks its lease's row. The chunk of an earlier commit is deleted below. A later
    # commit finds a higher epoch and stores nothing.
    await revoke_leases(connection, tenant, conversation_id)
    # Lock the conversation, then its heads by digest, as a flush does, because a flush may move heads to another
    # conversation. An unknown conversation has no heads. If a flush adds its row and heads now, both stay.
    own = owned(conversations, tenant, id=conversation_id)
    is_known = await connection.scalar(sa.select(conversations.c.id).where(own).with_for_update()) is not None
    if is_known:
        its_heads = sa.select(heads.c.digest).where(owned(heads, tenant, conversation_id=conversation_id))
        await connection.execute(its_heads.order_by(heads.c.digest).with_for_update())
    await delete_chunks_of(connection, tenant, conversation_id)
    for table in (usage_records, masks, *((heads, histories) if is_known else ())):
        await connection.execute(sa.delete(table).where(owned(table, tenant, conversation_id=conversation_id)))
    if is_known:
        await connection.execute(sa.delete(conversations).where(own))
    # Pins last. `set_pins` locks the conversation's row: it has stored its pins by now, or will find no row.
    await connection.execute(sa.delete(pins).where(owned(pins, tenant, conversation_id=conversation_id)))
    return is_known


async def search_conversations(
    connection: AsyncConnection, tenant: str, wanted: Wanted, paging: Paging
) -> Page[StoredConversation]:
    """Return a page of the matching conversations, by time of the latest request. Raises UnknownCursor."""
    rows = sa.select(conversations).where(conversations.c.tenant == tenant, *_conditions(tenant, wanted))
    return await read_page(connection, rows, _conversation, paging, by="updated_at")


def _conditions(tenant: str, wanted: Wanted) -> list[sa.ColumnElement[bool]]:
    table, conditions = conversations.c, list[sa.ColumnElement[bool]]()
    if wanted.text:
        found = holding(tenant, wanted.text).subquery()
        in_summary = table.id.in_(sa.select(found.c.conversation_id))
        conditions.append(sa.or_(table.id.icontains(wanted.text, autoescape=True), in_summary))
    if wanted.status is not None:
        conditions.append(table.status == wanted.status)
    if wanted.model is not None:
        conditions.append(table.model == wanted.model)
    return conditions


async def is_tenant(connection: AsyncConnection, tenant: str) -> bool:
    found = await connection.scalar(sa.select(conversations.c.id).where(conversations.c.tenant == tenant).limit(1))
    return found is not None


async def has_other_tenants(connection: AsyncConnection, tenant: str) -> bool:
    other = sa.select(conversations.c.id).where(conversations.c.tenant != tenant).limit(1)
    return await connection.scalar(other) is not None


async def read_tenants(connection: AsyncConnection) -> list[SeenTenant]:
    """Return the tenants that have conversations, the most recently active first, at most `MOST_TENANTS`."""
    table, latest = conversations.c, sa.func.max(conversations.c.updated_at).label("latest")
    tenants = sa.select(table.tenant, sa.func.count().label("number"), latest).group_by(table.tenant)
    rows = await connection.execute(tenants.order_by(latest.desc(), table.tenant).limit(MOST_TENANTS))
    return [SeenTenant(row.tenant, row.number, moment(row.latest)) for row in rows]


async def find_pins(connection: AsyncConnection, tenant: str, conversation_id: str) -> list[Pin]:
    """Return the conversation's pins by position; an empty list if the conversation is unknown."""
    found = sa.select(pins).where(owned(pins, tenant, conversation_id=conversation_id)).order_by(pins.c.position)
    return [Pin(**members(row, "tenant", "conversation_id")) for row in await connection.execute(found)]


async def bind_pins(
    connection: AsyncConnection, tenant: str, conversation_id: str, digests: Mapping[int, bytes]
) -> list[Pin]:
    """Bind the unbound pins at these positions to these digests, and return all pins of the conversation. If two
    branches bind a pin at once, the first branch gets the pin. Needs a transaction."""
    own = owned(pins, tenant, conversation_id=conversation_id, digest=None)
    # Rows are locked in order of their keys, so two replicas cannot deadlock.
    bound = [{"at": position, "digest": digests[position]} for position in sorted(digests)]
    await connection.execute(sa.update(pins).where(own, pins.c.position == sa.bindparam("at")), bound)
    return await find_pins(connection, tenant, conversation_id)


async def set_pins(
    connection: AsyncConnection, tenant: str, conversation_id: str, positions: Sequence[int]
) -> list[Pin] | None:
    """Replace the pins, and return the new, unbound pins; None if the conversation is unknown. Needs a transaction."""
    known = sa.select(conversations.c.id).where(owned(conversations, tenant, id=conversation_id))
    # The lock makes other transactions that delete the conversation or replace its pins wait.
    if await connection.scalar(known.with_for_update()) is None:
        return None
    keys = {"tenant": tenant, "conversation_id": conversation_id}
    await connection.execute(sa.delete(pins).where(owned(pins, **keys)))
    if new := [{**keys, "position": position} for position in sorted(set(positions))]:
        await connection.execute(sa.insert(pins).values(created_at=now_ms()), new)
    return await find_pins(connection, tenant, conversation_id)
