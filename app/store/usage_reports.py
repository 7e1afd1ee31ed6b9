"""Usage reports: the usage records of one tenant in a period, added up by day or by model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import ColumnElement, Row, Select, func, literal_column, select
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.clock import DAY_MS, moment, now_ms
from app.store.rows import owned
from app.store.tables import usage_records
from app.tokens.usage import Purpose

MOST_GROUPS = 400
"""Days or models that one report lists; of more models those with the largest prompts."""
MOST_MODELS = 20
"""Models in the overview."""

Grouping = Literal["day", "model"]

_TOKENS = ("prompt", "completion", "cached", "written", "reasoning", "saved")


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


class UsageGroup(Struct, frozen=True):
    """The calls of one model, or of one day."""

    key: str
    """The model, or the day as it is in UTC: 2026-11-22."""
    sums: UsageSums


class UsageReport(Struct, frozen=True):
    """A tenant's calls in a period, without the number of requests they belong to."""

    sums: UsageSums
    groups: Sequence[UsageGroup] = ()
    """Models by the size of their prompts, the largest first; days in their order."""
    has_more: bool = False
    """Whether there are more groups than these."""


class DayUsage(Struct, frozen=True):
    """One day, purpose and context status."""

    day: date
    purpose: Purpose
    context_status: str | None
    """None for summaries."""
    sums: UsageSum


class UsageOverview(Struct, frozen=True):
    """A tenant's calls of the last days, for the inspector."""

    days: Sequence[DayUsage]
    """Days in order, but for those on which nothing was called."""
    models: Sequence[UsageGroup]
    """Models, the largest prompts first."""


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
    if by is None:
        return UsageReport(await _totals(connection, within))
    groups = await _groups(connection, within, by, MOST_GROUPS + 1)
    has_more = len(groups) > MOST_GROUPS
    totals = await _totals(connection, within) if has_more else _added(group.sums for group in groups)
    return UsageReport(totals, groups[:MOST_GROUPS], has_more)


async def read_overview(connection: AsyncConnection, tenant: str, days: int) -> UsageOverview:
    """Usage of the tenant in the last so many days in UTC, today included."""
    table = usage_records.c
    # In a subquery the clock is read once, so that the index finds the days.
    today = select(now_ms() - now_ms() % DAY_MS).scalar_subquery()
    within = [table.tenant == tenant, table.created_at >= today - (days - 1) * DAY_MS]
    key: tuple[ColumnElement[Any], ...] = (_DAY, literal_column("purpose"), literal_column("context_status"))
    by_day = select(_DAY_OF_RECORD, table.purpose, table.context_status, *_SUMS).where(*within)
    found = await connection.execute(by_day.group_by(*key).order_by(*key))
    return UsageOverview(
        [DayUsage(_date(row.day), row.purpose, row.context_status, sum_in(row)) for row in found],
        await _groups(connection, within, "model", MOST_MODELS),
    )


async def sums_of_requests(
    connection: AsyncConnection, tenant: str, conversation_id: str, requests: Sequence[str]
) -> dict[str, UsageSums]:
    """Usage of these requests of the conversation, as far as anything is known of them."""
    table, rows = usage_records.c, dict[str, list[Row[Any]]]()
    own = owned(usage_records, tenant, conversation_id=conversation_id, request_id=list(requests))
    grouped = sums_by_purpose().add_columns(table.request_id).where(own).group_by(table.request_id, FOR_ANSWERS)
    for row in await connection.execute(grouped):
        rows.setdefault(row.request_id, []).append(row)
    return {request: sums_in(of_request) for request, of_request in rows.items()}


async def _totals(connection: AsyncConnection, within: Sequence[ColumnElement[bool]]) -> UsageSums:
    found = await connection.execute(sums_by_purpose().where(*within).group_by(FOR_ANSWERS))
    return sums_in(found.all())


async def _groups(
    connection: AsyncConnection, within: Sequence[ColumnElement[bool]], by: Grouping, most: int
) -> list[UsageGroup]:
    key = _DAY if by == "day" else literal_column("model")
    prompts = func.sum(func.sum(usage_records.c.prompt_tokens)).over(partition_by=key)
    first = key if by == "day" else prompts.desc().nulls_last()
    grouped = sums_by_purpose().add_columns(_DAY_OF_RECORD if by == "day" else usage_records.c.model)
    # A group has two rows at most.
    statement = grouped.where(*within).group_by(FOR_ANSWERS, key).order_by(first, key).limit(2 * most)
    rows: dict[Any, list[Row[Any]]] = {}
    for row in await connection.execute(statement):
        rows.setdefault(getattr(row, by), []).append(row)
    groups = [UsageGroup(_name(key), sums_in(of_group)) for key, of_group in rows.items()]
    return groups[:most]


def sums_by_purpose() -> Select[Any]:
    """Sums over records, to be grouped by `FOR_ANSWERS`."""
    return select((usage_records.c.purpose == "message").label("for_answers"), *_SUMS)


def sums_in(rows: Sequence[Row[Any]]) -> UsageSums:
    """The sums in rows of `sums_by_purpose`."""
    sums = {bool(row.for_answers): sum_in(row) for row in rows}
    return UsageSums(sums.get(True, UsageSum()), sums.get(False, UsageSum()))


def sum_in(row: Row[Any]) -> UsageSum:
    """The sums in a row with a column for each."""
    # PostgreSQL adds large numbers up as decimals.
    sums: dict[str, Any] = {name: (float if name in COSTS else int)(getattr(row, name) or 0) for name in SUMS}
    return UsageSum(**sums, requests=getattr(row, "requests", 0))


def add_sums(sums: Iterable[UsageSum]) -> UsageSum:
    """The sum of sums, without the number of requests, which may belong to several of them."""
    parts = list(sums)
    return UsageSum(**{name: sum(getattr(part, name) for part in parts) for name in SUMS})


def _added(sums: Iterable[UsageSums]) -> UsageSums:
    parts = list(sums)
    return UsageSums(add_sums(part.messages for part in parts), add_sums(part.summaries for part in parts))


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
FOR_ANSWERS: ColumnElement[bool] = literal_column("for_answers")
_DAY: ColumnElement[int] = literal_column("day")
_DAY_OF_RECORD = (usage_records.c.created_at // DAY_MS).label("day")


def _date(day: int) -> date:
    return moment(day * DAY_MS).date()


def _name(key: str | int) -> str:
    return key if isinstance(key, str) else _date(key).isoformat()
