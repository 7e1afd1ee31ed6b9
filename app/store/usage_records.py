"""Usage records: one for each answered call to a provider. They are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, delete, distinct, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Price, Purpose, Tokens
from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.pages import Order, Page, read_page
from app.store.tables import usage_records

_SUMS = {name: f"{name}_tokens" for name in ("prompt", "completion", "cached", "reasoning", "saved")}
_COUNTS = ("requests", "calls", "unreported", "unpriced", *_SUMS)


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """One call as it was answered."""

    tenant: str
    id: str
    """Grows with time: of records stored in the same millisecond the smaller one is the earlier."""
    conversation_id: str
    request_id: str
    """Shared by all calls that one request of the client led to."""
    turn: int
    """User messages in the request's history."""
    purpose: Purpose
    upstream: str
    model: str
    estimated: int | None
    """Tokens of what came, None for a summary."""
    forwarded: int | None
    saved: int
    tokens: Tokens
    """As reported."""
    price: Price | None
    """As it was then."""
    cost: float | None
    status: int
    context_status: str | None
    """Of the request, None for a summary."""


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """A record, and when the database had it."""

    record: UsageRecord
    created_at: datetime


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Calls of one purpose together. What a provider did not say counts as nothing."""

    requests: int = 0
    calls: int = 0
    unreported: int = 0
    """Calls with status 200 of which the prompt's tokens are not known."""
    unpriced: int = 0
    """Calls with status 200 of which the cost is not known."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    saved: int = 0
    cost: float | None = None

    def __add__(self, other: UsageSum) -> UsageSum:
        costs = [one.cost for one in (self, other) if one.cost is not None]
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return UsageSum(**counts, cost=sum(costs) if costs else None)


@dataclass(frozen=True, slots=True)
class UsageSums:
    """Of the calls for answers, and of those for summaries, also such as were made in the background."""

    messages: UsageSum
    summaries: UsageSum


@dataclass(frozen=True, slots=True)
class TurnUsage:
    """All calls of one turn, and the first that was answered: later ones hide the effect of a compaction."""

    turn: int
    sums: UsageSums
    first: UsageRecord | None


@dataclass(frozen=True, slots=True)
class UsagePage:
    """A page of a conversation's records, the turns they belong to, and the sums of all its records."""

    page: Page[StoredUsage]
    turns: Sequence[TurnUsage]
    sums: UsageSums


async def write_usage(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Needs a transaction; doing it twice is doing it once."""
    await connection.execute(
        insert_into(connection, usage_records).values(created_at=now_ms()).on_conflict_do_nothing(),
        [_columns(record) for record in records],
    )


async def read_usage(
    connection: AsyncConnection, tenant: str, conversation_id: str, *, limit: int, after: str | None, order: Order
) -> UsagePage:
    """Empty where nobody knows the conversation. Raises UnknownCursor if `after` is none of its records."""
    own = (usage_records.c.tenant == tenant, usage_records.c.conversation_id == conversation_id)
    rows = select(usage_records).where(*own)
    page = await read_page(connection, usage_records, rows, _stored, limit=limit, after=after, order=order)
    shown = list(dict.fromkeys(stored.record.turn for stored in page.data))
    turns = await _turns(connection, own, shown)
    found = await connection.execute(_sums().where(*own).group_by(usage_records.c.purpose))
    return UsagePage(page, [turns[turn] for turn in shown], _by_purpose(found.all()))


async def delete_usage(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """All of the conversation. Needs a transaction."""
    await connection.execute(
        delete(usage_records).where(
            usage_records.c.tenant == tenant, usage_records.c.conversation_id == conversation_id
        )
    )


async def _turns(
    connection: AsyncConnection, own: Sequence[ColumnElement[bool]], turns: Sequence[int]
) -> dict[int, TurnUsage]:
    table = usage_records.c
    wanted = (*own, table.turn.in_(turns))
    sums = await connection.execute(_sums().add_columns(table.turn).where(*wanted).group_by(table.turn, table.purpose))
    rows = sums.all()
    place = func.row_number().over(partition_by=table.turn, order_by=(table.created_at, table.id)).label("place")
    answered = (table.purpose == "message", table.status == 200)
    numbered = select(usage_records, place).where(*wanted, *answered).subquery()
    found = await connection.execute(select(numbered).where(numbered.c.place == 1))
    first = {row.turn: _stored(row).record for row in found}
    return {
        turn: TurnUsage(turn, _by_purpose([row for row in rows if row.turn == turn]), first.get(turn)) for turn in turns
    }


def _sums() -> Select[Any]:
    table = usage_records.c
    answered = table.status == 200
    return select(
        table.purpose,
        func.count(distinct(table.request_id)).label("requests"),
        func.count().label("calls"),
        func.count().filter(answered, table.prompt_tokens.is_(None)).label("unreported"),
        func.count().filter(answered, table.cost.is_(None)).label("unpriced"),
        *(func.coalesce(func.sum(table[column]), 0).label(name) for name, column in _SUMS.items()),
        func.sum(table.cost).label("cost"),
    )


def _by_purpose(rows: Sequence[Row[Any]]) -> UsageSums:
    of = {row.purpose: _sum(row) for row in rows}
    return UsageSums(of.pop("message", UsageSum()), sum(of.values(), start=UsageSum()))


def _sum(row: Row[Any]) -> UsageSum:
    # PostgreSQL adds large numbers up as decimals.
    return UsageSum(**{name: int(row._mapping[name]) for name in _COUNTS}, cost=row.cost)  # noqa: SLF001 - public


def _columns(record: UsageRecord) -> dict[str, Any]:
    columns = asdict(record)
    tokens, price = columns.pop("tokens"), columns.pop("price") or dict.fromkeys(("prompt", "completion", "cached"))
    counts = {name: columns.pop(name) for name in ("estimated", "forwarded", "saved")} | tokens
    return (
        columns
        | {f"{name}_tokens": count for name, count in counts.items()}
        | {f"{name}_rate": rate for name, rate in price.items()}
    )


def _stored(row: Row[Any]) -> StoredUsage:
    priced = row.prompt_rate is not None
    record = UsageRecord(
        tenant=row.tenant,
        id=row.id,
        conversation_id=row.conversation_id,
        request_id=row.request_id,
        turn=row.turn,
        purpose=row.purpose,
        upstream=row.upstream,
        model=row.model,
        estimated=row.estimated_tokens,
        forwarded=row.forwarded_tokens,
        saved=row.saved_tokens,
        tokens=Tokens(row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.reasoning_tokens),
        price=Price(row.prompt_rate, row.completion_rate, row.cached_rate) if priced else None,
        cost=row.cost,
        status=row.status,
        context_status=row.context_status,
    )
    return StoredUsage(record, moment(row.created_at))
