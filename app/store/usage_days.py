"""Usage by day: what is in `usage_records`, added up as it is written.

A tenant's month may be millions of records, and adding them up takes seconds. So each day has its sums beside them, by
model, purpose and what was done to the context. They follow the records: those of a conversation that is deleted are
taken off again, and a day is deleted once all of it is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Insert, Select, delete, func, literal_column, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Purpose
from app.store.batches import Key, has_key, written
from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.prepared import Prepared
from app.store.tables import usage_days, usage_days_due, usage_records

DAY_MS = 86_400_000
TENANTS_AT_ONCE = 20
"""Whose days are added up in one transaction."""
MOST_MODELS = 20
"""That a report has, those with the largest prompts."""

_KEY = ("tenant", "day", "purpose", "model", "context_status")
_TOKENS = ("prompt", "completion", "cached", "written", "reasoning", "saved")


@dataclass(frozen=True, slots=True)
class DaySums:
    """Calls added up. What a provider did not say counts as nothing."""

    calls: int = 0
    failed: int = 0
    """Calls that a provider did not answer with 200."""
    priced: int = 0
    """Calls whose cost is known."""
    list_priced: int = 0
    """Of those, the ones whose cost is by the public list prices, in US dollars."""
    billed: int = 0
    """Of those, the ones whose cost is what their provider says it charged, also in US dollars."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    saved: int = 0
    cost: float = 0.0
    saved_cost: float = 0.0
    """What the client's own requests would have cost beyond this, where both are known; negative where less."""
    too_large: int = 0
    """Requests that came larger than the model's window leaves room for, and were answered."""
    too_large_tokens: int = 0
    """Tokens of those, as they came."""
    too_large_saved_cost: float = 0.0
    """What was saved on those."""


SUMS = tuple(field.name for field in fields(DaySums))


@dataclass(frozen=True, slots=True)
class DayUsage:
    """One day, purpose and fate of the context."""

    day: date
    purpose: Purpose
    context_status: str | None
    """None for summaries."""
    sums: DaySums


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """The answers of one model in a period."""

    model: str
    sums: DaySums
    saved_cost: float | None
    """Of its answers and of the summaries that it made; None where no cost is known."""


@dataclass(frozen=True, slots=True)
class UsageDays:
    days: Sequence[DayUsage]
    """In order; those on which nothing was called are not among them."""
    models: Sequence[ModelUsage]
    """The largest prompts first."""


async def count_records(connection: AsyncConnection, keys: Sequence[Key]) -> None:
    """Adds records that were just stored. Needs a transaction. Not idempotent."""
    await _COUNT.run(connection, keys=written(keys))


async def delete_records(connection: AsyncConnection, tenant: str, conversation_id: str) -> None:
    """A conversation's records, which are taken off their days. Needs a transaction."""
    own = (usage_records.c.tenant == tenant, usage_records.c.conversation_id == conversation_id)
    if connection.dialect.name == "postgresql":
        # In one statement: a record that another replica stores between two of them would be deleted and stay counted.
        gone = delete(usage_records).where(*own).returning(*usage_records.columns).cte("gone")
        await connection.execute(_added_to_days(connection, _sums_of(gone, sign=-1)))
    else:
        await connection.execute(_added_to_days(connection, _sums_of(usage_records, *own, sign=-1)))
        await connection.execute(delete(usage_records).where(*own))
    await connection.execute(delete(usage_days).where(usage_days.c.tenant == tenant, usage_days.c.calls <= 0))


async def is_any_due(connection: AsyncConnection) -> bool:
    """Whether there are days whose records are there and not added up yet."""
    return (await connection.execute(select(usage_days_due.c.day).limit(1))).first() is not None


async def add_up_due_days(connection: AsyncConnection) -> int:
    """Add up one day of some tenants, the latest that is due, and say of how many. Needs a transaction, which may take
    seconds where there are many records."""
    if connection.dialect.name == "postgresql":
        # Others may store records, or delete some: what they do is either among those that are added up here, or waits
        # and is added afterwards.
        await connection.execute(text("LOCK TABLE usage_days IN SHARE ROW EXCLUSIVE MODE"))
    due, days, of = usage_days_due.c, usage_days.c, usage_records.c
    latest = select(func.max(due.day)).scalar_subquery()
    found = await connection.execute(select(due.tenant, due.day).where(due.day == latest).limit(TENANTS_AT_ONCE))
    if not (rows := found.all()):
        return 0
    tenants, day = [row.tenant for row in rows], rows[0].day
    await connection.execute(delete(usage_days).where(days.tenant.in_(tenants), days.day == day))
    within = (of.tenant.in_(tenants), of.created_at >= day, of.created_at < day + DAY_MS)
    await connection.execute(_added_to_days(connection, _sums_of(usage_records, *within)))
    await connection.execute(delete(usage_days_due).where(due.tenant.in_(tenants), due.day == day))
    return len(rows)


async def read_days(connection: AsyncConnection, tenant: str, days: int) -> UsageDays:
    """The last so many days of the tenant, today included."""
    of = usage_days.c
    # In a subquery the clock is read once, so that the key's index finds the days.
    today = select(now_ms() - now_ms() % DAY_MS).scalar_subquery()
    within = (of.tenant == tenant, of.day > today - days * DAY_MS)
    sums = [func.sum(of[name]).label(name) for name in SUMS]
    by_day = await connection.execute(
        select(of.day, of.purpose, of.context_status, *sums)
        .where(*within)
        .group_by(of.day, of.purpose, of.context_status)
        .order_by(of.day, of.purpose, of.context_status)
    )
    answers = of.purpose == "message"
    of_answers = [func.coalesce(func.sum(of[name]).filter(answers), 0).label(name) for name in SUMS]
    saved = func.sum(of.saved_cost).filter(of.priced > 0).label("saved_by_all")
    by_model = await connection.execute(
        select(of.model, saved, *of_answers)
        .where(*within)
        .group_by(of.model)
        .order_by(func.sum(of.prompt).filter(answers).desc().nulls_last(), of.model)
        .limit(MOST_MODELS)
    )
    return UsageDays(
        [DayUsage(moment(row.day).date(), row.purpose, row.context_status or None, _read(row)) for row in by_day],
        [ModelUsage(row.model, _read(row), row.saved_by_all) for row in by_model],
    )


def _sums_of(records: FromClause, *conditions: ColumnElement[bool], sign: int = 1) -> Select[Any]:
    of = records.c
    answered = of.status == 200
    day = (of.created_at - of.created_at % DAY_MS).label("day")
    status = func.coalesce(of.context_status, "").label("fate")

    too_large = of.saved_tokens > 0, of.estimated_tokens > of.limit_tokens

    def counted(*which: ColumnElement[bool]) -> ColumnElement[int]:
        return sign * (func.count().filter(*which) if which else func.count())

    sums = {
        "calls": counted(),
        "failed": counted(~answered),
        "priced": counted(of.cost.is_not(None)),
        "list_priced": counted(of.cost.is_not(None), of.price_source == "registry"),
        "billed": counted(of.cost.is_not(None), of.price_source == "provider"),
        **{name: sign * func.coalesce(func.sum(of[f"{name}_tokens"]), 0) for name in _TOKENS},
        "cost": sign * func.coalesce(func.sum(of.cost), 0.0),
        "saved_cost": sign * func.coalesce(func.sum(of.saved_cost), 0.0),
        "too_large": counted(*too_large),
        "too_large_tokens": sign * func.coalesce(func.sum(of.estimated_tokens).filter(*too_large), 0),
        "too_large_saved_cost": sign * func.coalesce(func.sum(of.saved_cost).filter(*too_large), 0.0),
    }
    grouped: list[ColumnElement[Any]] = [
        *(of.tenant, literal_column("day")),
        *(of.purpose, of.model, literal_column("fate")),
    ]
    return (
        select(of.tenant, day, of.purpose, of.model, status, *(sums[name].label(name) for name in SUMS))
        .where(*conditions)
        .group_by(*grouped)
        # In the order of their keys, so that two replicas cannot deadlock.
        .order_by(*grouped)
    )


def _added_to_days(connection: AsyncConnection, sums: Select[Any]) -> Insert:
    statement = insert_into(connection, usage_days).from_select([*_KEY, *SUMS], sums)
    new, old = statement.excluded, usage_days.c
    added = {name: old[name] + new[name] for name in SUMS}
    return statement.on_conflict_do_update(index_elements=[old[name] for name in _KEY], set_=added)


_COUNT = Prepared(
    lambda connection: _added_to_days(connection, _sums_of(usage_records, has_key(connection, usage_records)))
)


def _read(row: Any) -> DaySums:
    # PostgreSQL adds large numbers up as decimals.
    sums: dict[str, Any] = {name: (float if name.endswith("cost") else int)(getattr(row, name)) for name in SUMS}
    return DaySums(**sums)
