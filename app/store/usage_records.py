"""Usage records: one for each answered call to a provider. They are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Row, Select, distinct, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.pages import Page, Paging, read_page
from app.store.rows import owned
from app.store.tables import usage_records
from app.store.usage_reports import FOR_ANSWERS, UsageSums, sums_by_purpose, sums_in
from app.tokens.usage import DecisionRecord, Price, PriceSource, Purpose, SummaryStats, Tokens

_REPORTED = Tokens.__struct_fields__
_RATES = Price.__struct_fields__
_SAME = (
    *("tenant", "id", "conversation_id", "request_id", "turn", "purpose", "upstream", "format", "model"),
    *("tier", "price_source", "priced_model", "cost", "saved_cost", "status", "context_status", "values_kept"),
)
"""Columns that are named as the record's fields."""


class UsageRecord(Struct, frozen=True):
    """One call as it was answered."""

    tenant: str
    id: str
    """Grows with time: of records stored in the same millisecond the smaller one is the earlier."""
    conversation_id: str
    """Empty for a request that passed unread."""
    request_id: str
    """Shared by all calls that one request of the client led to."""
    turn: int
    """User messages in the request's history."""
    purpose: Purpose
    upstream: str
    model: str
    estimated: int | None
    """Estimated tokens of what came; None for a summary."""
    forwarded: int | None
    saved: int
    tokens: Tokens
    """Tokens as the provider reported them."""
    price: Price | None
    """Price at the time of the call, of the table: also where the provider's own bill is the cost."""
    cost: float | None
    status: int
    context_status: str | None
    """Context status of the request; None for a summary."""
    format: str | None = None
    """The wire format's name; None in a record of an earlier release, as are `tier` and `price_source`."""
    tier: str | None = None
    """The service tier as the answer says it."""
    searches: int = 0
    """Web searches that the provider charges for."""
    price_source: PriceSource | None = None
    """Source of the cost."""
    priced_model: str | None = None
    """Model whose price it is."""
    values_kept: float | None = None
    """Share of the exact values beside it that its text holds; None without any."""
    decided: DecisionRecord | None = None
    """Decision for the request; None for a summary, and in a record of an earlier release."""
    made: SummaryStats | None = None
    saved_cost: float | None = None
    """Cost of the client's own request beyond this, in currency units; None where one of them is not known. For a
    summary: its own cost, negative."""

    @property
    def is_too_large(self) -> bool:
        """Whether it came larger than the model's window leaves room for, and was answered."""
        decided = self.decided
        return self.saved > 0 and decided is not None and (self.estimated or 0) > decided.limit


class StoredUsage(Struct, frozen=True):
    """A record, and the time at which the database had it."""

    record: UsageRecord
    created_at: datetime


class TurnUsage(Struct, frozen=True):
    """All calls of one turn, and the first that was answered: later ones hide the effect of a compaction."""

    turn: int
    sums: UsageSums
    first: UsageRecord | None


class UsagePage(Struct, frozen=True):
    """A page of a conversation's records, the turns they belong to, and the sums of all its records."""

    page: Page[StoredUsage]
    turns: Sequence[TurnUsage]
    sums: UsageSums


async def write_usage(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Store records. Needs a transaction; doing it twice is doing it once."""
    statement = insert_into(connection, usage_records).values(created_at=now_ms()).on_conflict_do_nothing()
    await connection.execute(statement, [_row(record) for record in records])


async def read_records(connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging) -> UsagePage:
    """A page of the conversation's records, with its sums; empty where nobody knows it. Raises UnknownCursor if `after`
    is none of its records."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    rows = select(usage_records).where(own)
    page = await read_page(connection, usage_records, rows, _stored, paging)
    shown = list(dict.fromkeys(stored.record.turn for stored in page.data))
    turns = await _turns(connection, own, shown)
    found = await connection.execute(_sums_of_requests().where(own).group_by(FOR_ANSWERS))
    return UsagePage(page, [turns[turn] for turn in shown], sums_in(found.all()))


async def read_latest_records(connection: AsyncConnection, tenant: str, conversation_id: str, most: int) -> UsagePage:
    """The conversation's latest records, newest first, and the sums of all, without its turns."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    rows = select(usage_records).where(own)
    page = await read_page(connection, usage_records, rows, _stored, Paging(most, order="desc"))
    found = await connection.execute(_sums_of_requests().where(own).group_by(FOR_ANSWERS))
    return UsagePage(page, (), sums_in(found.all()))


async def _turns(connection: AsyncConnection, own: ColumnElement[bool], turns: Sequence[int]) -> dict[int, TurnUsage]:
    table = usage_records.c
    wanted = (own, table.turn.in_(turns))
    by_turn = _sums_of_requests().add_columns(table.turn).where(*wanted).group_by(table.turn, FOR_ANSWERS)
    sums = await connection.execute(by_turn)
    rows = sums.all()
    place = func.row_number().over(partition_by=table.turn, order_by=(table.created_at, table.id)).label("place")
    answered = (table.purpose == "message", table.status == 200)
    numbered = select(usage_records, place).where(*wanted, *answered).subquery()
    found = await connection.execute(select(numbered).where(numbered.c.place == 1))
    first = {row.turn: _stored(row).record for row in found}
    return {
        turn: TurnUsage(turn, sums_in([row for row in rows if row.turn == turn]), first.get(turn)) for turn in turns
    }


def _sums_of_requests() -> Select[Any]:
    return sums_by_purpose().add_columns(func.count(distinct(usage_records.c.request_id)).label("requests"))


def _row(record: UsageRecord) -> dict[str, Any]:
    decided, made, price = record.decided, record.made, record.price
    return {
        **{name: getattr(record, name) for name in _SAME},
        **{f"{name}_tokens": getattr(record, name) for name in ("estimated", "forwarded", "saved")},
        **{f"{name}_tokens": getattr(record.tokens, name) for name in _REPORTED},
        **{f"{name}_rate": price and getattr(price, name) for name in _RATES},
        "searches": record.searches or None,
        "window_tokens": decided and decided.window,
        "limit_tokens": decided and decided.limit,
        "trigger_tokens": decided and decided.trigger,
        "actions": decided and ",".join(decided.actions),
        "reason": decided and decided.reason,
        "waited_seconds": decided and decided.waited_seconds,
        "replaced_tokens": made and made.replaced,
        "summary_tokens": made and made.summary,
        "seconds": made and made.seconds,
        "summary_id": made and made.summary_id,
    }


def _stored(row: Row[Any]) -> StoredUsage:
    priced = row.prompt_rate is not None
    record = UsageRecord(
        **{name: getattr(row, name) for name in _SAME if name != "price_source"},
        estimated=row.estimated_tokens,
        forwarded=row.forwarded_tokens,
        saved=row.saved_tokens,
        tokens=Tokens(**{name: getattr(row, f"{name}_tokens") for name in _REPORTED}),
        searches=row.searches or 0,
        price=Price(**{name: getattr(row, f"{name}_rate") for name in _RATES}) if priced else None,
        # Before there was a choice, all prices were the operator's.
        price_source=row.price_source or ("settings" if priced else None),
        decided=_decided(row),
        made=_made(row),
    )
    return StoredUsage(record, moment(row.created_at))


def _decided(row: Row[Any]) -> DecisionRecord | None:
    if row.window_tokens is None:
        return None
    return DecisionRecord(
        window=row.window_tokens,
        limit=row.limit_tokens,
        trigger=row.trigger_tokens,
        actions=tuple(filter(None, row.actions.split(","))),
        reason=row.reason,
        waited_seconds=row.waited_seconds,
    )


def _made(row: Row[Any]) -> SummaryStats | None:
    if row.replaced_tokens is None:
        return None
    return SummaryStats(row.seconds, row.replaced_tokens, row.summary_tokens, row.summary_id)
