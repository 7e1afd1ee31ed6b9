"""Usage by day: what is in `usage_records`, added up as it is written.

A tenant's month may be millions of records, and adding them up takes seconds. So each day has its sums beside them, by
model, purpose and what was done to the context. They follow the records: those of a conversation that is deleted are
taken off again, and a day is deleted once all of it is too old.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    ColumnElement,
    Delete,
    FromClause,
    Insert,
    Select,
    and_,
    delete,
    exists,
    func,
    literal_column,
    not_,
    select,
    text,
    tuple_,
    union,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Purpose
from app.store.batches import Key, has_key, written
from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.prepared import Prepared
from app.store.tables import usage_days, usage_days_due, usage_records

DAY_MS = 86_400_000
TENANTS_AT_ONCE = 20
"""Tenants whose days are added up in one transaction."""
MOST_MODELS = 20
"""Most models of a report, those with the largest prompts."""

_KEY = ("tenant", "day", "purpose", "model", "context_status")
_TOKENS = ("prompt", "completion", "cached", "written", "reasoning", "saved")
_DUE = union(
    select(usage_days_due.c.tenant, usage_days_due.c.day),
    select(usage_days.c.tenant, usage_days.c.day).where(usage_days.c.unreported.is_(None)),
).subquery()
"""Days whose sums are not those of their records: from before there were sums, or added up by an earlier release, which
did not count all that is counted now and may still go on during a rollout."""


class UsageSum(Struct, frozen=True):
    """Calls added up, with their counts, tokens and costs. What a provider did not say counts as nothing."""

    calls: int = 0
    failed: int = 0
    """Calls that a provider did not answer with 200."""
    unreported: int = 0
    """Calls with status 200 of which the prompt's tokens are not known."""
    unpriced: int = 0
    """Calls with status 200 of which the cost is not known."""
    priced: int = 0
    """Calls whose cost is known."""
    list_priced: int = 0
    """Calls whose cost is by the public list prices, in US dollars."""
    billed: int = 0
    """Calls whose cost is what their provider says it charged, also in US dollars."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    saved: int = 0
    too_large: int = 0
    """Requests that came larger than the model's window leaves room for, and were answered."""
    too_large_tokens: int = 0
    """Tokens of the requests that were too large, as they came."""
    cost: float = 0.0
    saved_cost: float = 0.0
    """Cost of the client's own requests beyond this, where both are known; negative where less."""
    too_large_saved_cost: float = 0.0
    """Saved cost of the requests that were too large."""
    compared: int = 0
    """Calls of which the saved cost is known."""
    too_large_compared: int = 0
    """Calls of which the saved cost is known and whose request was too large."""
    requests: int = 0
    """Requests of the client that the calls belong to; 0 where they are not counted."""


COSTS = ("cost", "saved_cost", "too_large_saved_cost")
SUMS = tuple(name for name in UsageSum.__struct_fields__ if name != "requests")


def sum_in(row: Any) -> UsageSum:
    """Sums in a row with a column for each."""
    # PostgreSQL adds large numbers up as decimals.
    sums: dict[str, Any] = {name: (float if name in COSTS else int)(getattr(row, name) or 0) for name in SUMS}
    return UsageSum(**sums, requests=getattr(row, "requests", 0))


class DayUsage(Struct, frozen=True):
    """One day, purpose and fate of the context."""

    day: date
    purpose: Purpose
    context_status: str | None
    """None for summaries."""
    sums: UsageSum


class ModelUsage(Struct, frozen=True):
    """The answers of one model in a period."""

    model: str
    sums: UsageSum
    saved_cost: float | None
    """Saved cost of its answers and of the summaries that it made; None where no cost is known."""


class UsageDays(Struct, frozen=True):
    days: Sequence[DayUsage]
    """Days in order, but for those on which nothing was called."""
    models: Sequence[ModelUsage]
    """Models, the largest prompts first."""


async def count_records(connection: AsyncConnection, keys: Sequence[Key]) -> None:
    """Adds records that were just stored. Needs a transaction. Not idempotent."""
    await _COUNT.run(connection, keys=written(keys))


async def delete_records(connection: AsyncConnection, *which: ColumnElement[bool]) -> None:
    """Delete records, and take them off their days. Needs a transaction."""
    if connection.dialect.name == "postgresql":
        # In one statement: a record that another replica stores between two of them would be deleted and stay counted.
        await connection.execute(added_to_days(connection, delete(usage_records).where(*which), sign=-1))
    else:
        await connection.execute(_added_to_days(connection, _sums_of(usage_records, *which, sign=-1)))
        await connection.execute(delete(usage_records).where(*which))


async def delete_some_records(connection: AsyncConnection, which: ColumnElement[bool], most: int) -> int:
    """Delete so many of these records, the oldest first, with what they are in their days; how many there were. Needs a
    transaction."""
    key, days = (usage_records.c.tenant, usage_records.c.id), (usage_days.c.tenant, usage_days.c.day)
    # In the order of the index: the planner may otherwise read the whole table to find the few that are old.
    some = select(*key, usage_records.c.created_at).where(which).order_by(usage_records.c.created_at).limit(most)
    some = some.with_for_update(skip_locked=True)
    if found := (await connection.execute(some)).all():
        await delete_records(connection, tuple_(*key).in_([(row.tenant, row.id) for row in found]))
        touched = {(row.tenant, row.created_at - row.created_at % DAY_MS) for row in found}
        await connection.execute(delete(usage_days).where(tuple_(*days).in_(sorted(touched)), usage_days.c.calls <= 0))
    return len(found)


async def delete_tenants_days(connection: AsyncConnection, tenant: str) -> bool:
    """Delete all records and days of the tenant; False if there were none. Needs a transaction."""
    records = await connection.execute(delete(usage_records).where(usage_records.c.tenant == tenant))
    days = await _add_up_again(connection, usage_days.c.tenant == tenant, usage_records.c.tenant == tenant)
    # After them, as where due days are added up: in another order the two could deadlock.
    due = await connection.execute(delete(usage_days_due).where(usage_days_due.c.tenant == tenant))
    return bool(records.rowcount or days or due.rowcount)


async def _add_up_again(connection: AsyncConnection, which: ColumnElement[bool], records: ColumnElement[bool]) -> int:
    """Add up these days from their records, and return how many of them there were before. What others store meanwhile
    is either among these records, or added by them afterwards: they wait for the rows that are deleted here."""
    removed = await connection.execute(delete(usage_days).where(which))
    sums = _sums_of(usage_records, records).subquery()
    others = usage_days.alias()
    is_there = exists().where(
        *(others.c[name] == sums.c[mine] for name, mine in zip(_KEY, sums.c.keys(), strict=False))
    )
    await connection.execute(_added_to_days(connection, select(sums).where(not_(is_there))))
    return removed.rowcount


async def is_any_due(connection: AsyncConnection) -> bool:
    """Whether there are days whose records are not added up yet, or not in full."""
    return (await connection.execute(select(_DUE.c.day).limit(1))).first() is not None


async def add_up_due_days(connection: AsyncConnection) -> int:
    """Add up one day of some tenants, the latest that is due, and say of how many. Needs a transaction, which may take
    seconds where there are many records."""
    if connection.dialect.name == "postgresql":
        # Others may store records, or delete some: what they do is either among those that are added up here, or waits
        # and is added afterwards.
        await connection.execute(text("LOCK TABLE usage_days IN SHARE ROW EXCLUSIVE MODE"))
    due, days, of = usage_days_due.c, usage_days.c, usage_records.c
    latest = select(func.max(_DUE.c.day)).scalar_subquery()
    found = await connection.execute(select(_DUE).where(_DUE.c.day == latest).limit(TENANTS_AT_ONCE))
    if not (rows := found.all()):
        return 0
    tenants, day = [row.tenant for row in rows], rows[0].day
    within = and_(of.tenant.in_(tenants), of.created_at >= day, of.created_at < day + DAY_MS)
    await _add_up_again(connection, and_(days.tenant.in_(tenants), days.day == day), within)
    await connection.execute(delete(usage_days_due).where(due.tenant.in_(tenants), due.day == day))
    return len(rows)


async def read_days(connection: AsyncConnection, tenant: str, days: int) -> UsageDays:
    """Usage of the tenant in the last so many days in UTC, today included, by day and by model."""
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
        [DayUsage(moment(row.day).date(), row.purpose, row.context_status or None, sum_in(row)) for row in by_day],
        [ModelUsage(row.model, sum_in(row), row.saved_by_all) for row in by_model],
    )


async def added_up(connection: AsyncConnection, tenant: str, first: int, last: int) -> Sequence[int]:
    """The days, from the first on and before the last, whose sums are known, in order. Of the others there are no
    records, or an earlier release stored them."""
    days = usage_days.c
    due = select(_DUE.c.day).where(_DUE.c.tenant == tenant)
    within = (days.tenant == tenant, days.day >= first, days.day < last, days.day.not_in(due))
    return (await connection.scalars(select(days.day).where(*within).distinct().order_by(days.day))).all()


def sums_over(records: FromClause) -> dict[str, ColumnElement[Any]]:
    """Each sum over records by its name; a cost is null where none of them has one."""
    of = records.c
    answered, priced, compared = of.status == 200, of.cost.is_not(None), of.saved_cost.is_not(None)
    too_large = of.saved_tokens > 0, of.estimated_tokens > of.limit_tokens

    def counted(*which: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count().filter(*which)

    return {
        "calls": func.count(),
        "failed": counted(~answered),
        "unreported": counted(answered, of.prompt_tokens.is_(None)),
        "unpriced": counted(answered, of.cost.is_(None)),
        "priced": counted(priced),
        "list_priced": counted(priced, of.price_source == "registry"),
        "billed": counted(priced, of.price_source == "provider"),
        **{name: func.coalesce(func.sum(of[f"{name}_tokens"]), 0) for name in _TOKENS},
        "too_large": counted(*too_large),
        "too_large_tokens": func.coalesce(func.sum(of.estimated_tokens).filter(*too_large), 0),
        "cost": func.sum(of.cost),
        "saved_cost": func.sum(of.saved_cost),
        "too_large_saved_cost": func.sum(of.saved_cost).filter(*too_large),
        "compared": counted(compared),
        "too_large_compared": counted(compared, *too_large),
    }


def _sums_of(records: FromClause, *conditions: ColumnElement[bool], sign: int = 1) -> Select[Any]:
    """The sums of these records by the key of their day, to be added to it, or taken off with `sign=-1`."""
    of, sums = records.c, sums_over(records)
    day = (of.created_at - of.created_at % DAY_MS).label("day")
    status = func.coalesce(of.context_status, "").label("fate")
    added = ((sign * (func.coalesce(sums[name], 0.0) if name in COSTS else sums[name])).label(name) for name in SUMS)
    key: list[ColumnElement[Any]] = [of.tenant, literal_column("day"), of.purpose, of.model, literal_column("fate")]
    # In the order of their keys, so that two replicas cannot deadlock.
    rows = select(of.tenant, day, of.purpose, of.model, status, *added).where(*conditions)
    return rows.group_by(*key).order_by(*key)


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
