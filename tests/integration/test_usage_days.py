"""The sums by day: whatever is written, written again, deleted or erased, they are those of the records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import func, insert, select, text, update

from app.core.tokens.usage import Decided, Price, Tokens
from app.store import Store, StoreUnavailable, UsageRecord, migrations
from app.store import usage_days as usage_days_module
from app.store.database import Database
from app.store.pages import Paging
from app.store.tables import usage_days, usage_days_due, usage_records
from app.store.usage_days import DAY_MS, read_days
from app.store.usage_records import read_records, read_report, write_usage
from app.store.write_behind import WriteBehind
from tests.integration.examples import TENANT, OpenStore

STRANGER = "another tenant"


@pytest.fixture
async def store(open_store: OpenStore, database_url: str) -> Store:
    store = open_store(database_url)
    await store.start()
    return store


def record(number: int, **changes: Any) -> UsageRecord:
    written = UsageRecord(
        tenant=TENANT,
        id=f"u-{number}",
        conversation_id=f"c{number % 3}",
        request_id=f"r-{number}",
        turn=1,
        purpose="message",
        upstream="default",
        model=("gpt-4o", "gpt-4o-mini")[number % 2],
        estimated=2_000,
        forwarded=1_000,
        saved=1_000 * number,
        tokens=Tokens(prompt=100 + number, completion=10, cached=50),
        price=Price(prompt=2.0, completion=8.0),
        cost=0.25,
        saved_cost=0.002 * number,
        status=200,
        context_status=("full", "summarized")[number % 2],
    )
    return replace(written, **changes)


async def write(store: Store, records: Sequence[UsageRecord]) -> None:
    for each in records:
        store.writes.record_usage(each)
    await store.flush()


async def test_they_are_those_of_the_records(store: Store) -> None:
    await write(store, [record(number) for number in range(10)])
    await write(store, [record(10, purpose="summary", context_status=None), record(11, status=500, cost=None)])
    found = await store.rest(read_days, TENANT, 7)
    assert {(each.purpose, each.context_status): each.sums.calls for each in found.days} == {
        ("message", "full"): 5,
        ("message", "summarized"): 6,
        ("summary", None): 1,
    }
    assert sum(each.sums.prompt for each in found.days) == sum(100 + number for number in range(12))
    assert sum(each.sums.failed for each in found.days) == 1
    assert sum(each.sums.priced for each in found.days) == 11
    assert [(each.model, each.sums.calls) for each in found.models] == [("gpt-4o-mini", 6), ("gpt-4o", 5)]


async def test_what_was_saved_is_the_same_by_day_by_model_by_conversation_and_in_all(store: Store) -> None:
    """Some of it is not known, some was too large for its window, and summaries cost."""
    decided = Decided(window=2_000, limit=1_900, trigger=1_400)
    records = [
        *(record(number, saved_cost=(number - 4) / 8, decided=decided) for number in range(9)),
        record(9, saved_cost=None, cost=None),
        record(10, purpose="summary", saved=0, context_status=None, saved_cost=-0.25, model="summariser"),
        record(11, saved_cost=2.0, decided=replace(decided, limit=5_000)),
    ]
    await write(store, records)
    expected = sum(each.saved_cost or 0.0 for each in records)
    large = [each for each in records if each.is_too_large]
    assert [each.id for each in large] == [f"u-{number}" for number in range(1, 9)], "of u-0 nothing was left out"

    found = await store.rest(read_days, TENANT, 7)
    assert sum(each.sums.saved_cost for each in found.days) == expected
    assert sum(each.saved_cost or 0.0 for each in found.models) == expected
    assert next(each.saved_cost for each in found.models if each.model == "summariser") == -0.25
    assert sum(each.sums.too_large for each in found.days) == len(large)
    assert sum(each.sums.too_large_tokens for each in found.days) == 2_000 * len(large)
    assert sum(each.sums.too_large_saved_cost for each in found.days) == sum(each.saved_cost or 0.0 for each in large)

    told = await store.rest(read_report, TENANT, 0, 1 << 50, model=None, by="model")
    groups = [group.sums for group in told.groups]
    pages = [await store.rest(read_records, TENANT, f"c{name}", Paging(1, order="desc")) for name in range(3)]
    for all_sums in ([told.sums], groups, [page.sums for page in pages]):
        assert sum((of.messages.saved_cost or 0.0) + (of.summaries.saved_cost or 0.0) for of in all_sums) == expected
        assert sum(of.messages.too_large for of in all_sums) == len(large)
        assert sum(of.messages.too_large_tokens for of in all_sums) == 2_000 * len(large)

    await store.delete_conversation(TENANT, "c1")
    left = sum(each.saved_cost or 0.0 for each in records if each.conversation_id != "c1")
    assert sum(each.sums.saved_cost for each in (await store.rest(read_days, TENANT, 7)).days) == left


async def test_what_is_written_twice_is_added_once(store: Store) -> None:
    for records in (4, 6):
        async with store.database.writing() as connection:
            await write_usage(connection, [record(number) for number in range(records)])
    found = await store.rest(read_days, TENANT, 7)
    assert sum(each.sums.calls for each in found.days) == 6


async def test_what_a_flush_stored_that_failed_after_its_last_word_is_added_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written again, as nobody knows that it is there."""
    refusal = WriteBehind._refusal

    async def stores_and_fails(*parts: Any) -> None:
        await refusal(*parts)
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(WriteBehind, "_refusal", stores_and_fails)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await write(store, [record(1), record(2)])
    await write(store, [record(3)])
    await write(store, [record(4)])
    found = await store.rest(read_days, TENANT, 7)
    assert sum(each.sums.calls for each in found.days) == 4


async def test_a_conversation_takes_its_records_along(store: Store) -> None:
    await write(store, [record(number) for number in range(9)])
    await write(store, [record(number, tenant=STRANGER) for number in range(9)])
    await store.delete_conversation(TENANT, "c1")
    found = await store.rest(read_days, TENANT, 7)
    left = [number for number in range(9) if number % 3 != 1]
    assert sum(each.sums.calls for each in found.days) == len(left)
    assert sum(each.sums.prompt for each in found.days) == sum(100 + number for number in left)
    assert sum(each.sums.calls for each in (await store.rest(read_days, STRANGER, 7)).days) == 9
    for name in ("c0", "c2"):
        await store.delete_conversation(TENANT, name)
    async with store.database.reading() as connection:
        rows = await connection.execute(select(usage_days).where(usage_days.c.tenant == TENANT))
        assert rows.all() == []


async def test_what_another_replica_stores_while_a_conversation_is_deleted_is_counted_as_it_stays(
    open_store: OpenStore, postgres_url: str
) -> None:
    """On PostgreSQL a statement sees what was committed before it began."""
    store, other = open_store(postgres_url), open_store(postgres_url)
    for each in (store, other):
        await each.start()
    await write(store, [record(1, model="first")])
    async with other.database.writing() as held:
        await held.execute(select(usage_days).where(usage_days.c.model == "first").with_for_update())
        deleting = asyncio.create_task(store.delete_conversation(TENANT, "c1"))
        await waits_for_a_lock(other)
        await write(other, [record(4, model="second")])
    await deleting
    async with store.database.reading() as connection:
        kept = await connection.execute(select(usage_records.c.model).where(usage_records.c.tenant == TENANT))
        assert sum(each.sums.calls for each in (await store.rest(read_days, TENANT, 7)).days) == len(kept.all())


async def waits_for_a_lock(store: Store) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(20), store.database.reading() as connection:
        while not await connection.scalar(waiting):  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.01)


async def test_a_tenant_takes_its_days_along(store: Store) -> None:
    await write(store, [record(number) for number in range(9)])
    await store.erase_tenant(TENANT)
    assert (await store.rest(read_days, TENANT, 7)).days == []


YEAR_2023 = 1_700_000_000_000


async def before_there_were_days(url: str) -> None:
    """A database of the release before, with three days of two tenants."""
    database = Database(url)
    await migrations.upgrade(database, "0017")
    async with database.writing() as connection:
        for number in range(200):
            tenant, day = (TENANT, STRANGER)[number % 2], number % 3
            row = {
                "tenant": tenant,
                "id": f"use_{number}",
                "conversation_id": "c1",
                "request_id": "r",
                "turn": 1,
                "purpose": "message",
                "upstream": "default",
                "model": f"model {number % 5}",
                "status": 200,
                "prompt_tokens": number,
                "saved_tokens": 1,
                "created_at": YEAR_2023 + day * DAY_MS + number,
            }
            names = ", ".join(row)
            values = ", ".join(f":{name}" for name in row)
            await connection.execute(text(f"INSERT INTO usage_records ({names}) VALUES ({values})"), row)  # noqa: S608
    await database.close()


async def sums(store: Store) -> list[tuple[str, int, str, int, int]]:
    days = usage_days.c
    columns = (days.tenant, days.day, days.model, days.calls, days.prompt)
    async with store.database.reading() as connection:
        rows = await connection.execute(select(*columns).where(days.calls > 0).order_by(*columns))
        return [tuple(row) for row in rows]


async def due(store: Store) -> int:
    async with store.database.reading() as connection:
        return await connection.scalar(select(func.count()).select_from(usage_days_due)) or 0


async def reported(store: Store) -> int:
    """Calls of those three days, of one tenant."""
    report = await store.rest(read_report, TENANT, YEAR_2023 - DAY_MS, YEAR_2023 + 5 * DAY_MS)
    return report.sums.messages.calls


async def recorded(store: Store) -> list[tuple[str, int, str, int, int]]:
    """The sums as they must be."""
    of, day = usage_records.c, usage_records.c.created_at - usage_records.c.created_at % DAY_MS
    async with store.database.reading() as connection:
        rows = await connection.execute(
            select(of.tenant, day, of.model, func.count(), func.sum(of.prompt_tokens))
            .group_by(of.tenant, day, of.model)
            .order_by(of.tenant, day, of.model)
        )
        return [(*row[:4], int(row[4])) for row in rows]


@pytest.mark.slow
async def test_days_of_an_earlier_release_are_added_up_after_the_start_and_not_before_it(
    open_store: OpenStore, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Millions of records take minutes: the migration only notes which days there are. Whoever stops in the middle goes
    on where he was, and what is stored and deleted meanwhile is counted as it stays."""
    monkeypatch.setattr("app.store.usage_days.TENANTS_AT_ONCE", 1)
    monkeypatch.setattr("app.store.tidying.START_SECONDS", 600.0)
    await before_there_were_days(empty_url)
    first = open_store(empty_url)
    await first.start()
    assert (await sums(first), await due(first)) == ([], 6)
    assert await reported(first) == 100
    async with first.database.migrating() as connection:
        await usage_days_module.add_up_due_days(connection)
    assert await due(first) == 5
    assert await reported(first) == 100
    await write(first, [record(1)])
    await first.delete_conversation(STRANGER, "c1")
    await first.close()
    second = open_store(empty_url)
    await second.start()
    await second.tidying.add_days_up()
    assert await due(second) == 0
    assert await reported(second) == 100
    assert await sums(second) == await recorded(second)
    await second.tidying.add_days_up()
    assert await sums(second) == await recorded(second)


async def test_a_day_that_cannot_be_added_up_is_still_due(
    open_store: OpenStore, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums and what is left to do are stored together, or neither is."""
    monkeypatch.setattr("app.store.tidying.START_SECONDS", 600.0)
    await before_there_were_days(empty_url)
    store = open_store(empty_url)
    await store.start()

    async def cut_off() -> None:
        async with store.database.migrating() as connection:
            await usage_days_module.add_up_due_days(connection)
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        await cut_off()
    assert (await sums(store), await due(store)) == ([], 6)


async def test_replicas_add_days_up_side_by_side_while_others_are_stored(
    open_store: OpenStore, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.usage_days.TENANTS_AT_ONCE", 1)
    monkeypatch.setattr("app.store.tidying.START_SECONDS", 600.0)
    monkeypatch.setattr("app.store.tidying.PAUSE_SECONDS", 0.0)
    await before_there_were_days(empty_url)
    stores = [open_store(empty_url) for _ in range(3)]
    for store in stores:
        await store.start()
    today = int(time.time() * 1000) // DAY_MS * DAY_MS
    async with stores[0].database.writing() as connection:
        # As where the migration ran on a day on which records came before and come afterwards.
        await connection.execute(insert(usage_days_due).values(tenant=TENANT, day=today))
    await write(stores[2], [record(9)])
    async with stores[2].database.writing() as connection:
        # As if it had been recorded before there were days.
        await connection.execute(update(usage_days).values(calls=0, prompt=0))
    assert (await stores[0].rest(read_report, TENANT, today, today + DAY_MS)).sums.messages.calls == 1
    await asyncio.gather(
        *(store.tidying.add_days_up() for store in stores[:2]),
        *(write(stores[2], [record(number)]) for number in range(9)),
    )
    assert await sums(stores[0]) == await recorded(stores[0])
