"""Usage records: one for each answered call to a provider. They are only ever added."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import (
    ClauseElement,
    ColumnElement,
    Row,
    Select,
    Subquery,
    and_,
    distinct,
    func,
    literal_column,
    null,
    or_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Decided, Made, Price, PriceSource, Purpose, Tokens
from app.store.batches import has_key, written
from app.store.clock import moment
from app.store.pages import Page, Paging, read_page
from app.store.prepared import Insert, Prepared, PreparedInsert
from app.store.rows import owned
from app.store.tables import clean, usage_days, usage_records
from app.store.usage_days import DAY_MS, SUMS, UsageSum, added_to_days, added_up, count_records, sum_in, sums_over

_REPORTED = Tokens.__struct_fields__
_RATES = Price.__struct_fields__

MOST_GROUPS = 400
"""Days or models that one report lists separately; of more models those with the largest prompts."""

Grouping = Literal["day", "model"]


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
    decided: Decided | None = None
    """Decision for the request; None for a summary, and in a record of an earlier release."""
    made: Made | None = None
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


class UsageSums(Struct, frozen=True):
    """Sums of the calls for answers, and of all others, which are for summaries."""

    messages: UsageSum
    summaries: UsageSum


class TurnUsage(Struct, frozen=True):
    """All calls of one turn, and the first that was answered: later ones hide the effect of a compaction."""

    turn: int
    sums: UsageSums
    first: UsageRecord | None


class UsageGroup(Struct, frozen=True):
    """The calls of one model, or of one day."""

    key: str
    """The model, or the day as it is in UTC: 2026-11-22."""
    sums: UsageSums


class UsageReport(Struct, frozen=True):
    """A tenant's calls in a period. How many requests they belong to is not counted: that would read them all twice."""

    sums: UsageSums
    groups: Sequence[UsageGroup] = ()
    """Models by the size of their prompts, the largest first; days in their order."""
    has_more: bool = False
    """Whether there are more groups than these."""


class UsagePage(Struct, frozen=True):
    """A page of a conversation's records, the turns they belong to, and the sums of all its records."""

    page: Page[StoredUsage]
    turns: Sequence[TurnUsage]
    sums: UsageSums


def _stored_and_counted(connection: AsyncConnection, statement: Insert) -> ClauseElement:
    """The insert. On PostgreSQL it also adds the records that were not there to their days."""
    new = statement.on_conflict_do_nothing()
    return added_to_days(connection, new) if connection.dialect.name == "postgresql" else new


_INSERT = PreparedInsert(usage_records, _stored_and_counted, clocks=("created_at",))
_THERE = Prepared(
    lambda connection: select(usage_records.c.tenant, usage_records.c.id).where(has_key(connection, usage_records))
)


async def write_usage(connection: AsyncConnection, records: Sequence[UsageRecord]) -> None:
    """Store records, and add them to their days. Needs a transaction; doing it twice is doing it once."""
    rows = [_row(record) for record in records]
    if connection.dialect.name == "postgresql":
        await _INSERT.write(connection, rows)
        return
    keys = {(clean(record.tenant), clean(record.id)) for record in records}
    there = await _THERE.run(connection, keys=written(list(keys)))
    await _INSERT.write(connection, rows)
    if new := keys.difference(there):
        await count_records(connection, list(new))


async def read_records(connection: AsyncConnection, tenant: str, conversation_id: str, paging: Paging) -> UsagePage:
    """A page of the conversation's records, with its sums; empty where nobody knows it. Raises UnknownCursor if `after`
    is none of its records."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    rows = select(usage_records).where(own)
    page = await read_page(connection, usage_records, rows, _stored, paging)
    shown = list(dict.fromkeys(stored.record.turn for stored in page.data))
    turns = await _turns(connection, own, shown)
    found = await connection.execute(_sums_of_requests().where(own).group_by(_FOR_ANSWERS))
    return UsagePage(page, [turns[turn] for turn in shown], _both(found.all()))


async def read_latest_records(connection: AsyncConnection, tenant: str, conversation_id: str, most: int) -> UsagePage:
    """The conversation's latest records, newest first, and the sums of all, without its turns."""
    own = owned(usage_records, tenant, conversation_id=conversation_id)
    rows = select(usage_records).where(own)
    page = await read_page(connection, usage_records, rows, _stored, Paging(most, order="desc"))
    found = await connection.execute(_sums_of_requests().where(own).group_by(_FOR_ANSWERS))
    return UsagePage(page, (), _both(found.all()))


async def read_report(
    connection: AsyncConnection,
    tenant: str,
    since_ms: int,
    until_ms: int,
    *,
    model: str | None = None,
    by: Grouping | None = None,
) -> UsageReport:
    """Sum up the records from `since_ms` on and before `until_ms` (since 1970), of one model or of all."""
    parts = await _parts(connection, tenant, since_ms, until_ms, model, by)
    sums = [func.coalesce(func.sum(parts.c[name]), 0).label(name) for name in SUMS]
    added = select(parts.c.for_answers, *sums).group_by(parts.c.for_answers)
    totals = _both((await connection.execute(added)).all())
    if by is None:
        return UsageReport(totals)
    key = parts.c.key
    first = key if by == "day" else -func.sum(func.sum(parts.c.prompt)).over(partition_by=key)
    grouped = added.add_columns(key).group_by(key).order_by(first, key).limit(2 * MOST_GROUPS + 2)
    found = await connection.execute(grouped)
    rows: dict[Any, list[Row[Any]]] = {}
    for row in found:
        rows.setdefault(row.key, []).append(row)
    groups = [UsageGroup(_named(key), _both(of_group)) for key, of_group in rows.items()]
    return UsageReport(totals, groups[:MOST_GROUPS], len(groups) > MOST_GROUPS)


async def _parts(
    connection: AsyncConnection, tenant: str, since_ms: int, until_ms: int, model: str | None, by: Grouping | None
) -> Subquery:
    """Parts of a period: the sums of its whole days, and the records of what is left."""
    days = await added_up(connection, tenant, -(-since_ms // DAY_MS) * DAY_MS, until_ms // DAY_MS * DAY_MS)
    begins, ends = [since_ms, *(day + DAY_MS for day in days)], [*days, until_ms]
    left = [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
    parts = [_of_days(tenant, days, by)] if days else []
    parts += [_of_records(tenant, left, by)] if left else []
    if model is not None:
        parts = [part.where(literal_column("model") == model) for part in parts]
    return union_all(*parts).subquery()


def _of_days(tenant: str, days: Sequence[int], by: Grouping | None) -> Select[Any]:
    table = usage_days.c
    key = {None: null(), "model": table.model, "day": table.day // DAY_MS}[by]
    columns = (table.purpose == "message").label("for_answers"), *(table[name] for name in SUMS)
    return select(*columns, key.label("key")).where(table.tenant == tenant, table.day.in_(days))


def _of_records(tenant: str, periods: Sequence[tuple[int, int]], by: Grouping | None) -> Select[Any]:
    table = usage_records.c
    key = {None: null(), "model": table.model, "day": table.created_at // DAY_MS}[by]
    # Each with the tenant, so that the index finds each.
    within = or_(
        *(and_(table.tenant == tenant, table.created_at >= begin, table.created_at < end) for begin, end in periods)
    )
    grouped = (_FOR_ANSWERS,) if by is None else (_FOR_ANSWERS, literal_column("key"))
    return _sums().add_columns(key.label("key")).where(within).group_by(*grouped)


async def sums_of_requests(
    connection: AsyncConnection, tenant: str, conversation_id: str, requests: Sequence[str]
) -> dict[str, UsageSums]:
    """Usage of these requests of the conversation, as far as anything is known of them."""
    table, rows = usage_records.c, dict[str, list[Row[Any]]]()
    own = owned(usage_records, tenant, conversation_id=conversation_id, request_id=list(requests))
    grouped = _sums().add_columns(table.request_id).where(own).group_by(table.request_id, _FOR_ANSWERS)
    for row in await connection.execute(grouped):
        rows.setdefault(row.request_id, []).append(row)
    return {request: _both(of_request) for request, of_request in rows.items()}


async def _turns(connection: AsyncConnection, own: ColumnElement[bool], turns: Sequence[int]) -> dict[int, TurnUsage]:
    table = usage_records.c
    wanted = (own, table.turn.in_(turns))
    by_turn = _sums_of_requests().add_columns(table.turn).where(*wanted).group_by(table.turn, _FOR_ANSWERS)
    sums = await connection.execute(by_turn)
    rows = sums.all()
    place = func.row_number().over(partition_by=table.turn, order_by=(table.created_at, table.id)).label("place")
    answered = (table.purpose == "message", table.status == 200)
    numbered = select(usage_records, place).where(*wanted, *answered).subquery()
    found = await connection.execute(select(numbered).where(numbered.c.place == 1))
    first = {row.turn: _stored(row).record for row in found}
    return {turn: TurnUsage(turn, _both([row for row in rows if row.turn == turn]), first.get(turn)) for turn in turns}


_FOR_ANSWERS: ColumnElement[bool] = literal_column("for_answers")


def _sums() -> Select[Any]:
    """Sums over records, to be grouped by `_FOR_ANSWERS`."""
    # In the order in which they are united with days.
    sums = sums_over(usage_records)
    for_answers = (usage_records.c.purpose == "message").label("for_answers")
    return select(for_answers, *(sums[name].label(name) for name in SUMS))


def _sums_of_requests() -> Select[Any]:
    return _sums().add_columns(func.count(distinct(usage_records.c.request_id)).label("requests"))


def _both(rows: Sequence[Row[Any]]) -> UsageSums:
    sums = {bool(row.for_answers): sum_in(row) for row in rows}
    return UsageSums(sums.get(True, UsageSum()), sums.get(False, UsageSum()))


def _named(key: str | int) -> str:
    return key if isinstance(key, str) else moment(key * DAY_MS).date().isoformat()


_of_call = attrgetter(
    *("tenant", "id", "conversation_id", "request_id", "turn", "purpose", "upstream", "format", "model"),
    *("estimated", "forwarded", "saved"),
)
_of_tokens = attrgetter(*_REPORTED)
_of_price = attrgetter(*_RATES)
_NO_PRICE = (None,) * len(_RATES)
_of_decided = attrgetter("window", "limit", "trigger", "reason", "waited_seconds")
_NOTHING_DECIDED = (None,) * 5
_of_made = attrgetter("replaced", "summary", "seconds", "summary_id")
_NOTHING_MADE = (None,) * 4


def _row(record: UsageRecord) -> tuple[Any, ...]:
    """Row of a record, in the order of the table's columns."""
    decided, made, price = record.decided, record.made, record.price
    window, limit, trigger, reason, waited = _NOTHING_DECIDED if decided is None else _of_decided(decided)
    replaced, summary, seconds, summary_id = _NOTHING_MADE if made is None else _of_made(made)
    return (
        *_of_call(record),
        *(window, limit, trigger, replaced, summary),
        *_of_tokens(record.tokens),
        *(record.searches or None, record.tier),
        *(_NO_PRICE if price is None else _of_price(price)),
        *(record.price_source, record.priced_model, record.cost, record.saved_cost),
        *(record.status, record.context_status),
        *(None if decided is None else ",".join(decided.actions), reason, waited),
        *(seconds, summary_id, record.values_kept),
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
        format=row.format,
        model=row.model,
        estimated=row.estimated_tokens,
        forwarded=row.forwarded_tokens,
        saved=row.saved_tokens,
        tokens=Tokens(**{name: getattr(row, f"{name}_tokens") for name in _REPORTED}),
        searches=row.searches or 0,
        tier=row.tier,
        price=Price(**{name: getattr(row, f"{name}_rate") for name in _RATES}) if priced else None,
        # Before there was a choice, all prices were the operator's.
        price_source=row.price_source or ("settings" if priced else None),
        priced_model=row.priced_model,
        cost=row.cost,
        status=row.status,
        context_status=row.context_status,
        values_kept=row.values_kept,
        decided=_decided(row),
        made=_made(row),
        saved_cost=row.saved_cost,
    )
    return StoredUsage(record, moment(row.created_at))


def _decided(row: Row[Any]) -> Decided | None:
    if row.window_tokens is None:
        return None
    return Decided(
        window=row.window_tokens,
        limit=row.limit_tokens,
        trigger=row.trigger_tokens,
        actions=tuple(filter(None, row.actions.split(","))),
        reason=row.reason,
        waited_seconds=row.waited_seconds,
    )


def _made(row: Row[Any]) -> Made | None:
    if row.replaced_tokens is None:
        return None
    return Made(row.seconds, row.replaced_tokens, row.summary_tokens, row.summary_id)
