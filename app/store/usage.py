"""Usage: one record for each answered call to a provider, only ever added, and the sums of records.

What a call cost is kept with its record: prices change, and what was spent does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import ColumnElement, Row, Select, distinct, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import (
    DAY_MS,
    HOUR_MS,
    Page,
    Paging,
    insert_into,
    moment,
    now_ms,
    owned,
    read_once,
    read_page,
    usage_records,
)
from app.tokens.usage import DecisionRecord, Price, PriceSource, Purpose, SummaryStats, Tokens

MOST_GROUPS = 400
"""Days or models that one report lists; of more models those with the largest prompts."""
MOST_MODELS = 20

Grouping = Literal["day", "model"]

_TOKENS = ("prompt", "completion", "cached", "written", "reasoning", "saved")
_REPORTED = Tokens.__struct_fields__
_RATES = Price.__struct_fields__
_SAME = (
    *("tenant", "id", "conversation_id", "request_id", "turn", "purpose", "upstream", "format", "model"),
    *("tier", "price_source", "priced_model", "cost", "saved_cost", "status", "context_status", "values_kept"),
)
"""Columns that are named as the record's fields."""


class UsageRecord(Struct, frozen=True, kw_only=True):
    """One call as it was answered."""

    tenant: str
    id: str = ""
    """Grows with time: of records stored in the same millisecond the smaller one is the earlier. Empty until the ledger
    has it."""
    conversation_id: str
    """Empty for a request that passed unread."""
    request_id: str
    """Shared by all calls that one request of the client led to."""
    turn: int
    """User messages in the request's history."""
    purpose: Purpose
    upstream: str
    model: str
    estimated: int | None = None
    """Estimated tokens of what came; None for a summary."""
    forwarded: int | None = None
    saved: int = 0
    tokens: Tokens
    """Tokens as the provider reported them."""
    price: Price | None = None
    """Price at the time of the call, of the table: also where the provider's own bill is the cost."""
    cost: float | None = None
    status: int
    context_status: str | None = None
    """Context status of the request; None for a summary."""
    format: str | None = None
    """The wire format's name; None in a record of an earlier release, as are `tier` and `price_source`."""
    tier: str | None = None
    searches: int = 0
    """Web searches that the provider charges for."""
    price_source: PriceSource | None = None
    priced_model: str | None = None
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
    record: UsageRecord
    created_at: datetime


class UsageSum(Struct, frozen=True):
    """Calls added up, with their counts, tokens and costs. What a provider did not say counts as nothing.

    A request is too large that came larger than the model's window leaves room for, and was answered.
    """

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
    too_large_tokens: int = 0
    """Tokens of these requests as they came."""
    cost: float = 0.0
    saved_cost: float = 0.0
    """Cost of the client's own requests beyond this, where both are known; negative where less."""
    too_large_saved_cost: float = 0.0
    compared: int = 0
    """Calls of which the saved cost is known."""
    too_large_compared: int = 0
    requests: int = 0
    """Requests of the client that the calls belong to; 0 where they are not counted."""


COSTS = ("cost", "saved_cost", "too_large_saved_cost")
SUMS = tuple(name for name in UsageSum.__struct_fields__ if name != "requests")


class UsageSums(Struct, frozen=True):
    """Sums of the calls for answers, and of all others, which are for summaries."""

    messages: UsageSum = UsageSum()
    summaries: UsageSum = UsageSum()

    @property
    def saved_cost(self) -> float | None:
        """Saved cost of answers and summaries; None where it is known of no call."""
        if not self.messages.compared + self.summaries.compared:
            return None
        return self.messages.saved_cost + self.summaries.saved_cost


class UsagePage(Struct, frozen=True):
    """A page of a conversation's records, and the sums of all its records."""

    page: Page[StoredUsage]
    sums: UsageSums


class UsageGroup(Struct, frozen=True):
    key: str
    """The model, or the day as it is in UTC: 2026-11-22."""
    sums: UsageSums


class UsageReport(Struct, frozen=True):
    """A tenant's calls in a period, without the number of requests they belong to."""

    sums: UsageSums
    groups: Sequence[UsageGroup]
    """Models by the size of their prompts, the largest first; days in their order."""
    has_more: bool


class PeriodUsage(Struct, frozen=True):
    start: datetime
    purpose: Purpose
    context_status: str | None
    """None for summaries."""
    sums: UsageSum


class UsageOverview(Struct, frozen=True):
    """A tenant's calls of the last days, for the inspector, and its models, the largest prompts first."""

    periods: Sequence[PeriodUsage]
    """Days, or the hours of one, in order, but for those in which nothing was called."""
    models: Sequence[UsageGroup]


async def write_usage(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Store records. Idempotent; needs a transaction."""
    if not records:
        return
    statement = insert_into(connection, usage_records).values(created_at=now_ms()).on_conflict_do_nothing()
    await connection.execute(statement, [_row(record) for record in records])


async def read_records(connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging) -> UsagePage:
    """A page of the conversation's records, with its sums; empty if the conversation is not known. Raises UnknownCursor
    if `after` is none of its records."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    page = await read_page(connection, usage_records, select(usage_records).where(own), _stored, paging)
    found = await connection.execute(_sums_by_purpose(_REQUESTS).where(own).group_by(_FOR_ANSWERS))
    return UsagePage(page, _sums_in(found.all()))


async def read_report(
    connection: AsyncConnection,
    tenant: str,
    since_ms: int,
    until_ms: int,
    *,
    model: str | None = None,
    by: Grouping | None = None,
) -> UsageReport:
    """Add up the records from `since_ms` on and before `until_ms` (since 1970), of one model or of all."""
    table = usage_records.c
    within = [table.tenant == tenant, table.created_at >= since_ms, table.created_at < until_ms]
    if model is not None:
        within.append(table.model == model)
    groups: Sequence[UsageGroup] = () if by is None else await _groups(connection, within, by, MOST_GROUPS + 1)
    has_more = len(groups) > MOST_GROUPS
    if groups and not has_more:
        parts = [each.sums for each in groups]
        sums = UsageSums(add_sums(part.messages for part in parts), add_sums(part.summaries for part in parts))
    else:
        found = await connection.execute(_sums_by_purpose().where(*within).group_by(_FOR_ANSWERS))
        sums = _sums_in(found.all())
    return UsageReport(sums, groups[:MOST_GROUPS], has_more)


async def read_overview(connection: AsyncConnection, tenant: str, days: int) -> UsageOverview:
    """Usage of the tenant by day in UTC, in the last so many days with today; of one day by hour, in the last 24."""
    table, (number, size) = usage_records.c, (24, HOUR_MS) if days == 1 else (days, DAY_MS)
    current = read_once(now_ms() - now_ms() % size)
    within = [table.tenant == tenant, table.created_at >= current - (number - 1) * size]
    key: list[ColumnElement[Any]] = [literal_column(name) for name in ("period", "purpose", "context_status")]
    period = (table.created_at // size).label("period")
    statement = select(period, table.purpose, table.context_status, *_SUMS).where(*within)
    found = await connection.execute(statement.group_by(*key).order_by(*key))
    return UsageOverview(
        [PeriodUsage(moment(row.period * size), row.purpose, row.context_status, _sum_in(row)) for row in found],
        await _groups(connection, within, "model", MOST_MODELS),
    )


async def _groups(
    connection: AsyncConnection, within: Sequence[ColumnElement[bool]], by: Grouping, most: int
) -> list[UsageGroup]:
    key = _DAY if by == "day" else literal_column("model")
    prompts = func.sum(func.sum(usage_records.c.prompt_tokens)).over(partition_by=key)
    first = key if by == "day" else prompts.desc().nulls_last()
    grouped = _sums_by_purpose(_DAY_OF_RECORD if by == "day" else usage_records.c.model)
    # A group has two rows at most.
    statement = grouped.where(*within).group_by(_FOR_ANSWERS, key).order_by(first, key).limit(2 * most)
    rows: dict[Any, list[Row[Any]]] = {}
    for row in await connection.execute(statement):
        rows.setdefault(getattr(row, by), []).append(row)
    groups = [UsageGroup(_name(key), _sums_in(of_group)) for key, of_group in rows.items()]
    return groups[:most]


def _sums_by_purpose(*columns: ColumnElement[Any]) -> Select[Any]:
    """Sums over records beside other columns, to be grouped by `_FOR_ANSWERS`."""
    return select((usage_records.c.purpose == "message").label("for_answers"), *_SUMS, *columns)


def _sums_in(rows: Sequence[Row[Any]]) -> UsageSums:
    """The sums in rows of `_sums_by_purpose`."""
    sums = {bool(row.for_answers): _sum_in(row) for row in rows}
    return UsageSums(sums.get(True, UsageSum()), sums.get(False, UsageSum()))


def _sum_in(row: Row[Any]) -> UsageSum:
    # PostgreSQL adds large numbers up as decimals.
    sums: dict[str, Any] = {name: (float if name in COSTS else int)(getattr(row, name) or 0) for name in SUMS}
    return UsageSum(**sums, requests=getattr(row, "requests", 0))


def add_sums(sums: Iterable[UsageSum]) -> UsageSum:
    """The sum of sums, without the number of requests, which may belong to several of them."""
    parts = list(sums)
    return UsageSum(**{name: sum(getattr(part, name) for part in parts) for name in SUMS})


def _columns() -> list[ColumnElement[Any]]:
    table = usage_records.c
    answered, priced, compared = table.status == 200, table.cost.is_not(None), table.saved_cost.is_not(None)
    too_large = table.saved_tokens > 0, table.estimated_tokens > table.limit_tokens

    def counted(*which: ColumnElement[bool]) -> ColumnElement[int]:
        return func.count().filter(*which)

    sums = {
        "calls": func.count(),
        "failed": counted(~answered),
        "unreported": counted(answered, table.prompt_tokens.is_(None)),
        "unpriced": counted(answered, table.cost.is_(None)),
        "priced": counted(priced),
        "list_priced": counted(priced, table.price_source == "registry"),
        "billed": counted(priced, table.price_source == "provider"),
        **{name: func.sum(table[f"{name}_tokens"]) for name in _TOKENS},
        "too_large": counted(*too_large),
        "too_large_tokens": func.sum(table.estimated_tokens).filter(*too_large),
        "cost": func.sum(table.cost),
        "saved_cost": func.sum(table.saved_cost),
        "too_large_saved_cost": func.sum(table.saved_cost).filter(*too_large),
        "compared": counted(compared),
        "too_large_compared": counted(compared, *too_large),
    }
    return [sums[name].label(name) for name in SUMS]


_SUMS = _columns()
_REQUESTS = func.count(distinct(usage_records.c.request_id)).label("requests")
_FOR_ANSWERS: ColumnElement[bool] = literal_column("for_answers")
_DAY: ColumnElement[int] = literal_column("day")
_DAY_OF_RECORD = (usage_records.c.created_at // DAY_MS).label("day")


def _date(day: int) -> date:
    return moment(day * DAY_MS).date()


def _name(key: str | int) -> str:
    return key if isinstance(key, str) else _date(key).isoformat()


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
    decided, made = None, None
    if row.window_tokens is not None:
        actions = tuple(filter(None, row.actions.split(",")))
        tokens = row.window_tokens, row.limit_tokens, row.trigger_tokens
        decided = DecisionRecord(*tokens, actions, row.reason, row.waited_seconds)
    if row.replaced_tokens is not None:
        made = SummaryStats(row.seconds, row.replaced_tokens, row.summary_tokens, row.summary_id)
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
        decided=decided,
        made=made,
    )
    return StoredUsage(record, moment(row.created_at))
