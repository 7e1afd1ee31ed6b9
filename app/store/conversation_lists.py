"""Lists of conversations for people: searched, filtered, and sorted by what is asked for, a page at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct
from sqlalchemy import ColumnElement, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.conversation.reasons import Code
from app.store.chunks import holding
from app.store.errors import UnknownCursor
from app.store.rows import members, owned
from app.store.tables import conversations

Sorting = Literal["updated", "created", "saved", "size", "requests"]

AS_INTENDED: tuple[str, ...] = (
    *(Code.COMPACTION_OFF, Code.SUMMARY_IN_BACKGROUND, Code.PUT_OFF_FOR_COST, Code.SERVER_STATE, Code.BACKGROUND),
    *(Code.PROMPT_TEMPLATE, Code.NATIVE_COMPACTION, Code.CLIENT_COMPACTION, Code.SUMMARY_CALL),
)
"""Reasons of what somebody asked for, or what is on its way."""

_TABLE = conversations.c
_KEYS: Mapping[Sorting, ColumnElement[int]] = {
    "updated": _TABLE.updated_at,
    "created": _TABLE.created_at,
    "saved": _TABLE.tokens_before - _TABLE.tokens_after,
    "size": _TABLE.tokens_before,
    "requests": _TABLE.requests,
}


class Wanted(Struct, frozen=True):
    """Conditions that a listed conversation meets, all of them."""

    text: str = ""
    """Part of an id, or of what one of its summaries holds."""
    status: str | None = None
    """Status of the latest request; the members below are about that request, too."""
    model: str | None = None
    saved: bool = False
    """Whether less must have been sent than came."""
    failed: bool = False
    """Whether something must have failed: there is a reason, and none that is as intended."""


class ListedConversation(Struct, frozen=True):
    """A conversation as of its latest request, without the parts of its payload."""

    id: str
    model: str
    turns: int
    requests: int
    status: str
    reason: str | None
    tokens_before: int
    tokens_after: int
    window: int
    forked_from: str | None
    created_at: datetime
    updated_at: datetime

    @property
    def saved(self) -> int:
        return self.tokens_before - self.tokens_after

    @property
    def failed(self) -> bool:
        """Whether something could not be done, as in `Wanted.failed`."""
        return self.reason is not None and self.reason not in AS_INTENDED


class ConversationList(Struct, frozen=True):
    """Part of a list; `next` as `after` gives the next part, None at the end."""

    data: Sequence[ListedConversation]
    next: str | None


async def search_conversations(
    connection: AsyncConnection, tenant: str, wanted: Wanted, sorting: Sorting, *, limit: int, after: str | None
) -> ConversationList:
    """A page of the conversations that are wanted, the largest key first. Raises UnknownCursor for an `after` that no
    list gave."""
    key = _KEYS[sorting].label("key")
    found = select(_TABLE.id, key).where(_TABLE.tenant == tenant, *_conditions(tenant, wanted))
    if after is not None:
        found = found.where(tuple_(_KEYS[sorting], _TABLE.id) < tuple_(*_read_cursor(after)))
    found = found.order_by(key.desc(), _TABLE.id.desc()).limit(limit + 1)
    # In two steps: sorted together, all columns of all rows would be read, and those of a payload are long.
    places = {row.id: row.key for row in await connection.execute(found)}
    shown = list(places)[:limit]
    rows = await connection.execute(
        select(*(_TABLE[name] for name in ListedConversation.__struct_fields__)).where(
            owned(conversations, tenant, id=shown)
        )
    )
    listed = {row.id: ListedConversation(**members(row)) for row in rows}
    more = len(places) > limit
    return ConversationList(
        [listed[id_] for id_ in shown if id_ in listed], f"{places[shown[-1]]}.{shown[-1]}" if more else None
    )


def _conditions(tenant: str, wanted: Wanted) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.text:
        conditions.append(_holds(tenant, wanted.text))
    if wanted.status is not None:
        conditions.append(_TABLE.status == wanted.status)
    if wanted.model is not None:
        conditions.append(_TABLE.model == wanted.model)
    if wanted.saved:
        conditions.append(_TABLE.tokens_after < _TABLE.tokens_before)
    if wanted.failed:
        conditions.append(_TABLE.reason.not_in(AS_INTENDED))
    return conditions


def _holds(tenant: str, text: str) -> ColumnElement[bool]:
    found = holding(tenant, text).subquery()
    return or_(_TABLE.id.icontains(text, autoescape=True), _TABLE.id.in_(select(found.c.conversation_id)))


def _read_cursor(after: str) -> tuple[int, str]:
    key, point, id_ = after.partition(".")
    if not point or not key.removeprefix("-").isdecimal() or len(key) > 18:
        raise UnknownCursor(f"The list holds no {after!r:.100} to continue after.")
    return int(key), id_
