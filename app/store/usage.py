"""Usage: one record for each answered call to a provider, and sums of the records.

Records are never changed. The cost of a call is stored with its record, because prices change later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import DAY_MS, Page, Paging, insert_into, moment, now_ms, owned, read_page, usage_records
from app.tokens.costs import DecisionRecord, Price, PriceSource, Purpose, SummaryStats, Tokens

MOST_GROUPS = 400
"""Maximum number of groups in a report: the earliest hours or days, or the models with the most prompt tokens."""

_MILLISECONDS = {"hour": 3_600_000, "day": DAY_MS}

_TOKENS = ("prompt", "completion", "cached", "written", "reasoning", "saved")
_REPORTED = Tokens.__struct_fields__
_RATES = Price.__struct_fields__
_SAME = (
    *("tenant", "id", "conversation_id", "request_id", "turn", "purpose", "upstream", "format", "model"),
    *("tier", "price_source", "priced_model", "cost", "saved_cost", "status", "context_status", "values_kept"),
)
"""Columns with the same names as fields of `UsageRecord`."""
_FIELDS = {
    **{name: name for name in _SAME},
    **{f"{name}_tokens": name for name in ("estimated", "forwarded", "saved")},
    **{f"{name}_tokens": f"tokens.{name}" for name in _REPORTED},
}
"""Fields of `UsageRecord` by column. The other columns are null in records without prices, decision or summary."""
_values = attrgetter(*_FIELDS.values())


class UsageRecord(Struct, frozen=True, kw_only=True):
    """One answered call to a provider."""

    tenant: str
    id: str = ""
    """Id that grows with each record, to order records of one millisecond. Empty until the ledger sets it."""
    conversation_id: str
    """Empty for a request whose body Steno did not read."""
    request_id: str
    """Id of the client request. All calls for the request have this id."""
    turn: int
    """Number of the request's turn, from 1; 0 without a turn, or if Steno did not read the body."""
    purpose: Purpose
    upstream: str
    model: str
    estimated: int | None = None
    """Estimated tokens of the client's request; None for a summary."""
    forwarded: int | None = None
    saved: int = 0
    tokens: Tokens
    """Tokens as the provider reported them."""
    price: Price | None = None
    """Price at the time of the call. If the provider reported the cost, `cost` does not follow from this price."""
    cost: float | None = None
    status: int
    context_status: str | None = None
    """Context status of the request; None for a summary."""
    format: str | None = None
    """Name of the wire format; None in a record of an earlier release."""
    tier: str | None = None
    searches: int = 0
    """Number of web searches that the provider charges for."""
    price_source: PriceSource | None = None
    priced_model: str | None = None
    values_kept: float | None = None
    """Share (0 to 1) of the messages' exact values that their summary contains; None if the messages have none."""
    decided: DecisionRecord | None = None
    """Decision for the request; None for a summary and in a record of an earlier release."""
    made: SummaryStats | None = None
    saved_cost: float | None = None
    """Estimated cost of the client's unchanged request, minus `cost`; None if one of the costs is unknown. For a
    summary: `-cost`."""


class StoredUsage(Struct, frozen=True):
    record: UsageRecord
    created_at: datetime


class UsageSum(Struct, frozen=True):
    """Sums over calls: counts, tokens and costs. Values that the provider did not report count as 0."""

    calls: int = 0
    failed: int = 0
    """Number of calls with a status other than 200."""
    summarized: int = 0
    """Number of calls with status 200 and the context status `summarized`. `trimmed` and `bypassed` count likewise."""
    trimmed: int = 0
    bypassed: int = 0
    unreported: int = 0
    """Number of calls with status 200 and an unknown number of prompt tokens."""
    unpriced: int = 0
    """Number of calls with status 200 and unknown cost."""
    priced: int = 0
    """Number of calls with known cost."""
    list_priced: int = 0
    """Number of calls priced by the public list prices (in US dollars)."""
    billed: int = 0
    """Number of calls whose provider reported the cost (in US dollars)."""
    prompt: int = 0
    completion: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    saved: int = 0
    too_large: int = 0
    """Number of calls whose request exceeded the limit until Steno shortened the request."""
    too_large_tokens: int = 0
    """Estimated tokens of the `too_large` requests, as the client sent them."""
    cost: float = 0.0
    saved_cost: float = 0.0
    """Sum of `UsageRecord.saved_cost`; negative if the clients' unchanged requests would have cost less."""
    too_large_saved_cost: float = 0.0
    compared: int = 0
    """Number of calls whose `saved_cost` is known."""
    too_large_compared: int = 0
    requests: int = 0
    """Number of client requests that caused the calls; 0 if not counted."""


COSTS = ("cost", "saved_cost", "too_large_saved_cost")
SUMS = tuple(name for name in UsageSum.__struct_fields__ if name != "requests")


class UsageSums(Struct, frozen=True):
    """Sums of the calls for answers, whose purpose is `message`, and of all other calls, which are for summaries."""

    messages: UsageSum = UsageSum()
    summaries: UsageSum = UsageSum()

    @property
    def saved_cost(self) -> float | None:
        """Saved cost of answers and summaries; None if it is unknown for all calls."""
        if not self.messages.compared + self.summaries.compared:
            return None
        return self.messages.saved_cost + self.summaries.saved_cost


class UsagePage(Struct, frozen=True):
    page: Page[StoredUsage]
    sums: UsageSums


class UsageGroup(Struct, frozen=True):
    key: Any
    """Model, or beginning of an hour or a day in UTC."""
    sums: UsageSums


class UsageReport(Struct, frozen=True):
    """Sums over a tenant's calls in a period. `UsageSum.requests` is not counted, and stays 0."""

    sums: UsageSums
    groups: Sequence[UsageGroup]
    """Models by prompt tokens, the most first; hours or days in order of time."""
    has_more: bool


async def write_usage(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Store records. Idempotent; needs a transaction."""
    if not records:
        return
    statement = insert_into(connection, usage_records).values(created_at=now_ms()).on_conflict_do_nothing()
    rows = [_row(record) for record in records]
    absent = dict.fromkeys(sorted(set().union(*rows)))
    await connection.execute(statement, [absent | row for row in rows])


async def read_records(connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging) -> UsagePage:
    """Return a page of the conversation's records, with the sums over all its records. The page of an unknown
    conversation is empty. Raises UnknownCursor."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    page = await read_page(connection, sa.select(usage_records).where(own), _stored, paging)
    found = await connection.execute(_sums_by_purpose(_REQUESTS).where(own).group_by(_FOR_ANSWERS))
    return UsagePage(page, _sums_in(found.all()))


async def read_report(
    connection: AsyncConnection,
    tenant: str,
    since_ms: int,
    until_ms: int,
    *,
    model: str | None = None,
    by: Literal["hour", "day", "model"] | None = None,
) -> UsageReport:
    """Add up the records of one model, or of all models. Times are in milliseconds since 1970, `until_ms` exclusive."""
    table = usage_records.c
    within = [table.tenant == tenant, table.created_at >= since_ms, table.created_at < until_ms]
    if model is not None:
        within.append(table.model == model)
    groups: Sequence[UsageGroup] = () if by is None else await _groups(connection, within, by)
    has_more = len(groups) > MOST_GROUPS
    if groups and not has_more:
        parts = [each.sums for each in groups]
        sums = UsageSums(add_sums(part.messages for part in parts), add_sums(part.summaries for part in parts))
    else:
        found = await connection.execute(_sums_by_purpose().where(*within).group_by(_FOR_ANSWERS))
        sums = _sums_in(found.all())
    return UsageReport(sums, groups[:MOST_GROUPS], has_more)


async def _groups(connection: AsyncConnection, within: Sequence[sa.ColumnElement[bool]], by: str) -> list[UsageGroup]:
    """Return at most `MOST_GROUPS + 1` groups. The additional group shows that the report is incomplete."""
    table, size = usage_records.c, _MILLISECONDS.get(by)
    key: sa.ColumnElement[Any] = sa.literal_column("period" if size else "model")
    first = key if size else sa.func.sum(sa.func.sum(table.prompt_tokens)).over(partition_by=key).desc().nulls_last()
    grouped = _sums_by_purpose((table.created_at // size).label("period") if size else table.model)
    # A group has at most two rows: answers and summaries.
    statement = grouped.where(*within).group_by(_FOR_ANSWERS, key).order_by(first, key).limit(2 * MOST_GROUPS + 2)
    groups: dict[Any, list[sa.Row[Any]]] = {}
    for row in await connection.execute(statement):
        groups.setdefault(moment(row.period * size) if size else row.model, []).append(row)
    return [UsageGroup(key, _sums_in(rows)) for key, rows in groups.items()][: MOST_GROUPS + 1]


def _sums_by_purpose(*columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select sums and these columns. The caller must group by `_FOR_ANSWERS` and the columns."""
    return sa.select((usage_records.c.purpose == "message").label("for_answers"), *_SUMS, *columns)


def _sums_in(rows: Sequence[sa.Row[Any]]) -> UsageSums:
    sums = {bool(row.for_answers): _sum_in(row) for row in rows}
    return UsageSums(sums.get(True, UsageSum()), sums.get(False, UsageSum()))


def _sum_in(row: sa.Row[Any]) -> UsageSum:
    # PostgreSQL returns sums of large numbers as decimals.
    sums: dict[str, Any] = {name: (float if name in COSTS else int)(getattr(row, name) or 0) for name in SUMS}
    return UsageSum(**sums, requests=getattr(row, "requests", 0))


def add_sums(sums: Iterable[UsageSum]) -> UsageSum:
    """Add up sums, without `requests`, because one request may count in several sums."""
    parts = list(sums)
    return UsageSum(**{name: sum(getattr(part, name) for part in parts) for name in SUMS})


def _columns() -> list[sa.ColumnElement[Any]]:
    table = usage_records.c
    answered, priced, compared = table.status == 200, table.cost.is_not(None), table.saved_cost.is_not(None)
    too_large = table.saved_tokens > 0, table.estimated_tokens > table.limit_tokens

    def counted(*which: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
        return sa.func.count().filter(*which)

    sums = {
        "calls": sa.func.count(),
        "failed": counted(~answered),
        **{name: counted(answered, table.context_status == name) for name in ("summarized", "trimmed", "bypassed")},
        "unreported": counted(answered, table.prompt_tokens.is_(None)),
        "unpriced": counted(answered, table.cost.is_(None)),
        "priced": counted(priced),
        "list_priced": counted(priced, table.price_source == "registry"),
        "billed": counted(priced, table.price_source == "provider"),
        **{name: sa.func.sum(table[f"{name}_tokens"]) for name in _TOKENS},
        "too_large": counted(*too_large),
        "too_large_tokens": sa.func.sum(table.estimated_tokens).filter(*too_large),
        "cost": sa.func.sum(table.cost),
        "saved_cost": sa.func.sum(table.saved_cost),
        "too_large_saved_cost": sa.func.sum(table.saved_cost).filter(*too_large),
        "compared": counted(compared),
        "too_large_compared": counted(compared, *too_large),
    }
    return [sums[name].label(name) for name in SUMS]


_SUMS = _columns()
_REQUESTS = sa.func.count(sa.distinct(usage_records.c.request_id)).label("requests")
_FOR_ANSWERS: sa.ColumnElement[bool] = sa.literal_column("for_answers")


def _row(record: UsageRecord) -> dict[str, Any]:
    """Return the record's values by column, without null. About half of the columns are null."""
    row = dict(zip(_FIELDS, _values(record), strict=True)) | {"searches": record.searches or None}
    if record.price is not None:
        row |= {f"{name}_rate": rate for name, rate in asdict(record.price).items()}
    if (decided := record.decided) is not None:
        row |= {"window_tokens": decided.window, "limit_tokens": decided.limit, "trigger_tokens": decided.trigger}
        row |= {"actions": ",".join(decided.actions), "reason": decided.reason}
        row["waited_seconds"] = decided.waited_seconds
    if (made := record.made) is not None:
        row |= {"replaced_tokens": made.replaced, "summary_tokens": made.summary}
        row |= {"seconds": made.seconds, "summary_id": made.summary_id}
    return {name: value for name, value in row.items() if value is not None}


def _stored(row: sa.Row[Any]) -> StoredUsage:
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
        # In earlier releases all prices came from the operator's settings.
        price_source=row.price_source or ("settings" if priced else None),
        decided=decided,
        made=made,
    )
    return StoredUsage(record, moment(row.created_at))
