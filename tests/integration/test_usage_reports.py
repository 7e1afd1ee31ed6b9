"""Usage reports: a tenant's records over a period, by model and by day, and read by the index that is there for it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from app.store import Store, UsageRecord, UsageReport, UsageSum
from app.store import usage as reports
from app.store.tables import Paging, usage_records
from app.store.usage import add_sums, read_records, read_report
from app.tokens.costs import DecisionRecord, Tokens
from tests.integration.examples import STRANGER, TENANT
from tests.integration.test_usage import PRICE, record

DAY = 86_400_000
NOON = 20_000 * DAY + DAY // 2
"""Of 2024-10-04."""


async def put(store: Store, at: int, **changes: Any) -> None:
    """A call as if it had been stored at that time."""
    one = record(**changes)
    store.writes.record_usage(one)
    await store.flush()
    async with store.database.writing() as connection:
        await connection.execute(update(usage_records).where(usage_records.c.id == one.id).values(created_at=at))


async def report(store: Store, since: int = NOON, until: int = NOON + DAY, **options: Any) -> UsageReport:
    return await store.rest(read_report, TENANT, since, until, **options)


async def test_a_report_adds_up_all_conversations_of_the_period(store: Store) -> None:
    await put(store, NOON, tokens=Tokens(100, 10, 40, 5, 30), cost=0.5, price=PRICE, price_source="registry", saved=7)
    await put(store, NOON + DAY - 1, conversation_id="c2", tokens=Tokens(200, 20), cost=0.25)
    await put(store, NOON, purpose="summary", tokens=Tokens(1_000, 50, 900))
    await put(store, NOON - 1, tokens=Tokens(7, 7))
    await put(store, NOON + DAY, tokens=Tokens(7, 7))
    found = await report(store)
    messages, summaries = found.sums.messages, found.sums.summaries
    assert (messages.calls, messages.prompt, messages.completion) == (2, 300, 30)
    assert (messages.cached, messages.written, messages.saved, messages.cost) == (40, 30, 7, 0.75)
    assert (messages.unpriced, messages.list_priced) == (0, 1)
    assert (summaries.calls, summaries.prompt, summaries.cached, summaries.unpriced) == (1, 1_000, 900, 1)
    assert (found.groups, found.has_more) == ((), False)


async def test_a_report_holds_the_tenants_own_calls_alone(store: Store) -> None:
    await put(store, NOON)
    await put(store, NOON, tenant=STRANGER)
    assert (await report(store, by="model")).sums.messages.calls == 1


async def test_a_report_of_one_model_holds_no_other(store: Store) -> None:
    for model in ("gpt-4o", "gpt-4o-mini"):
        await put(store, NOON, model=model)
    found = await report(store, model="gpt-4o-mini", by="model")
    assert (found.sums.messages.calls, [group.key for group in found.groups]) == (1, ["gpt-4o-mini"])


async def test_models_are_told_by_the_size_of_their_prompts(store: Store) -> None:
    await put(store, NOON, model="small", tokens=Tokens(10, 1))
    await put(store, NOON, model="silent", tokens=Tokens())
    await put(store, NOON, model="large", tokens=Tokens(100, 1))
    await put(store, NOON, model="large", purpose="summary", tokens=Tokens(50, 1))
    groups = (await report(store, by="model")).groups
    assert [(group.key, group.sums.messages.prompt, group.sums.summaries.prompt) for group in groups] == [
        ("large", 100, 50),
        ("small", 10, 0),
        ("silent", 0, 0),
    ]


async def test_days_are_told_in_their_order_as_they_are_in_utc(store: Store) -> None:
    for at, prompt in ((NOON + DAY // 2 - 1, 1), (NOON + DAY // 2, 2), (NOON + 3 * DAY, 4), (NOON, 8)):
        await put(store, at, tokens=Tokens(prompt, 1))
    groups = (await report(store, until=NOON + 4 * DAY, by="day")).groups
    assert [(group.key, group.sums.messages.prompt) for group in groups] == [
        (datetime(2024, 10, 4, tzinfo=UTC), 9),
        (datetime(2024, 10, 5, tzinfo=UTC), 2),
        (datetime(2024, 10, 7, tzinfo=UTC), 4),
    ]


async def test_more_groups_than_are_told_are_counted_in_the_sums(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MOST_GROUPS", 2)
    for prompt in (1, 2, 3):
        await put(store, NOON, model=f"m{prompt}", tokens=Tokens(prompt, 1))
    found = await report(store, by="model")
    assert ([group.key for group in found.groups], found.has_more) == (["m3", "m2"], True)
    assert found.sums.messages.prompt == 6
    assert not (await report(store, model="m1", by="model")).has_more


def priced(number: int, **changes: Any) -> UsageRecord:
    return record(
        f"c{number % 3}",
        model=("gpt-4o", "gpt-4o-mini")[number % 2],
        estimated=2_000,
        saved=1_000 * number,
        tokens=Tokens(prompt=100 + number, completion=10, cached=50),
        price=PRICE,
        cost=0.25,
        saved_cost=0.002 * number,
        context_status=("full", "summarized")[number % 2],
        **changes,
    )


async def write(store: Store, records: Sequence[UsageRecord]) -> None:
    for each in records:
        store.writes.record_usage(each)
    await store.flush()


async def test_hours_are_told_with_the_context_status_of_their_answers(store: Store) -> None:
    for at in (NOON - 1, NOON, NOON, NOON + DAY // 24):
        await put(store, at, context_status="full")
    for status in (200, 500):
        await put(store, NOON, context_status="summarized", status=status)
    await put(store, NOON, purpose="summary", context_status=None)
    await put(store, NOON, tenant=STRANGER)
    noon = datetime(2024, 10, 4, 12, tzinfo=UTC)
    first, second = (await report(store, by="hour")).groups
    assert (first.key, second.key) == (noon, noon + timedelta(hours=1))
    answers = first.sums.messages
    assert (answers.calls, answers.summarized, answers.trimmed, answers.bypassed, answers.failed) == (4, 1, 0, 0, 1)
    assert (first.sums.summaries.calls, second.sums.messages.calls) == (1, 1)


async def test_what_was_saved_is_the_same_by_day_by_model_by_conversation_and_in_all(store: Store) -> None:
    """Some of it is not known, some was too large for its window, and summaries cost."""
    decided = DecisionRecord(window=2_000, limit=1_900, trigger=1_400)
    summary = replace(priced(10), purpose="summary", saved=0, context_status=None, saved_cost=-0.25, model="summariser")
    records = [
        *(replace(priced(number), saved_cost=(number - 4) / 8, decided=decided) for number in range(9)),
        replace(priced(9), saved_cost=None, cost=None),
        summary,
        replace(priced(11), saved_cost=2.0, decided=replace(decided, limit=5_000)),
    ]
    await write(store, records)
    expected = sum(each.saved_cost or 0.0 for each in records)
    large = [each for each in records if each.saved and each.decided and (each.estimated or 0) > each.decided.limit]
    assert large == records[1:9], "of the first one nothing was left out"

    days = await store.rest(read_report, TENANT, 0, 1 << 50, by="day")
    told = await store.rest(read_report, TENANT, 0, 1 << 50, by="model")
    assert sum(each.sums.saved_cost or 0.0 for each in told.groups) == expected
    assert next(each.sums.saved_cost for each in told.groups if each.key == "summariser") == -0.25
    pages = [await store.rest(read_records, TENANT, f"c{name}", Paging(1, order="desc")) for name in range(3)]
    in_parts = (
        [part for group in days.groups for part in (group.sums.messages, group.sums.summaries)],
        [told.sums.messages, told.sums.summaries],
        [part for group in told.groups for part in (group.sums.messages, group.sums.summaries)],
        [part for page in pages for part in (page.sums.messages, page.sums.summaries)],
    )
    for parts in in_parts:
        sums: UsageSum = add_sums(parts)
        assert sums.saved_cost == expected
        assert (sums.too_large, sums.too_large_tokens) == (len(large), 2_000 * len(large))
        assert sums.too_large_saved_cost == sum(each.saved_cost or 0.0 for each in large)
