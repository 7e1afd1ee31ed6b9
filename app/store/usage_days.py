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

from sqlalchemy import ColumnElement, Delete, FromClause, Insert, Select, delete, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Purpose
from app.store.batches import Key, has_key, written
from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.prepared import Prepared
from app.store.tables import usage_days, usage_records

DAY_MS = 86_400_000
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
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    saved: int = 0
    cost: float = 0.0
    saved_cost: float = 0.0
    """What the saved tokens would have cost at the price of the prompts, where that is known."""


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
        gone = delete(usage_records).where(*own)
        await connection.execute(added_to_days(connection, gone, sign=-1))
    else:
        await connection.execute(_added_to_days(connection, _sums_of(usage_records, *own, sign=-1)))
        await connection.execute(delete(usage_records).where(*own))
    await connection.execute(delete(usage_days).where(usage_days.c.tenant == tenant, usage_days.c.calls <= 0))


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
    by_model = await connection.execute(
        select(of.model, *sums)
        .where(*within, of.purpose == "message")
        .group_by(of.model)
        .order_by(func.sum(of.prompt).desc(), of.model)
        .limit(MOST_MODELS)
    )
    return UsageDays(
        [DayUsage(moment(row.day).date(), row.purpose, row.context_status or None, _read(row)) for row in by_day],
        [ModelUsage(row.model, _read(row)) for row in by_model],
    )


def _sums_of(records: FromClause, *conditions: ColumnElement[bool], sign: int = 1) -> Select[Any]:
    of = records.c
    answered = of.status == 200
    day = (of.created_at - of.created_at % DAY_MS).label("day")
    status = func.coalesce(of.context_status, "").label("fate")

    def counted(*which: ColumnElement[bool]) -> ColumnElement[int]:
        return sign * (func.count().filter(*which) if which else func.count())

    sums = {
        "calls": counted(),
        "failed": counted(~answered),
        "priced": counted(of.cost.is_not(None)),
        "list_priced": counted(of.cost.is_not(None), of.price_source == "registry"),
        **{name: sign * func.coalesce(func.sum(of[f"{name}_tokens"]), 0) for name in _TOKENS},
        "cost": sign * func.coalesce(func.sum(of.cost), 0.0),
        "saved_cost": sign * func.coalesce(func.sum(of.saved_tokens * of.prompt_rate), 0.0) / 1_000_000,
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


def added_to_days(connection: AsyncConnection, change: Insert | Delete, sign: int = 1) -> Insert:
    """A statement that changes records, and adds those that it changed to their days. PostgreSQL alone knows such."""
    changed = change.returning(*usage_records.columns).cte("changed")
    return _added_to_days(connection, _sums_of(changed, sign=sign))


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
    whole = {name: int(getattr(row, name)) for name in SUMS if not name.endswith("cost")}
    return DaySums(**whole, cost=float(row.cost), saved_cost=float(row.saved_cost))
