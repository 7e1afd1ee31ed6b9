"""The sums by day: whatever is written, written again, deleted or erased, they are those of the records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from app.core.tokens.usage import Price, Tokens
from app.store import Store, StoreUnavailable, UsageRecord
from app.store.tables import usage_days, usage_records
from app.store.usage_records import write_usage
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
        status=200,
        context_status=("full", "summarized")[number % 2],
    )
    return replace(written, **changes)


async def write(store: Store, records: Sequence[UsageRecord]) -> None:
    for each in records:
        store.record_usage(each)
    await store.flush()


async def test_they_are_those_of_the_records(store: Store) -> None:
    await write(store, [record(number) for number in range(10)])
    await write(store, [record(10, purpose="summary", context_status=None), record(11, status=500, cost=None)])
    found = await store.usage_days(TENANT, 7)
    assert {(each.purpose, each.context_status): each.sums.calls for each in found.days} == {
        ("message", "full"): 5,
        ("message", "summarized"): 6,
        ("summary", None): 1,
    }
    assert sum(each.sums.prompt for each in found.days) == sum(100 + number for number in range(12))
    assert sum(each.sums.failed for each in found.days) == 1
    assert sum(each.sums.priced for each in found.days) == 11
    saved = sum(each.sums.saved_cost for each in found.days)
    assert saved == pytest.approx(sum(1_000 * number * 2.0 for number in range(12)) / 1_000_000)
    assert [(each.model, each.sums.calls) for each in found.models] == [("gpt-4o-mini", 6), ("gpt-4o", 5)]


async def test_what_is_written_twice_is_added_once(store: Store) -> None:
    for records in (4, 6):
        async with store._database.writing() as connection:
            await write_usage(connection, [record(number) for number in range(records)])
    found = await store.usage_days(TENANT, 7)
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
    found = await store.usage_days(TENANT, 7)
    assert sum(each.sums.calls for each in found.days) == 4


async def test_a_conversation_takes_its_records_along(store: Store) -> None:
    await write(store, [record(number) for number in range(9)])
    await write(store, [record(number, tenant=STRANGER) for number in range(9)])
    await store.delete_conversation(TENANT, "c1")
    found = await store.usage_days(TENANT, 7)
    left = [number for number in range(9) if number % 3 != 1]
    assert sum(each.sums.calls for each in found.days) == len(left)
    assert sum(each.sums.prompt for each in found.days) == sum(100 + number for number in left)
    assert sum(each.sums.calls for each in (await store.usage_days(STRANGER, 7)).days) == 9
    for name in ("c0", "c2"):
        await store.delete_conversation(TENANT, name)
    async with store._database.reading() as connection:
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
    async with other._database.writing() as held:
        await held.execute(select(usage_days).where(usage_days.c.model == "first").with_for_update())
        deleting = asyncio.create_task(store.delete_conversation(TENANT, "c1"))
        await waits_for_a_lock(other)
        await write(other, [record(4, model="second")])
    await deleting
    async with store._database.reading() as connection:
        kept = await connection.execute(select(usage_records.c.model).where(usage_records.c.tenant == TENANT))
        assert sum(each.sums.calls for each in (await store.usage_days(TENANT, 7)).days) == len(kept.all())


async def waits_for_a_lock(store: Store) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with asyncio.timeout(20), store._database.reading() as connection:
        while not await connection.scalar(waiting):  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.01)


async def test_a_tenant_takes_its_days_along(store: Store) -> None:
    await write(store, [record(number) for number in range(9)])
    await store.erase_tenant(TENANT)
    assert (await store.usage_days(TENANT, 7)).days == []


async def test_the_migrations_add_up_what_is_there(store: Store) -> None:
    await write(store, [record(number) for number in range(10)] + [record(11, status=500, cost=None)])

    async def rows() -> list[Any]:
        async with store._database.reading() as connection:
            found = await connection.execute(select(usage_days).order_by(*usage_days.primary_key))
            return [tuple(row) for row in found]

    added = await rows()
    async with store._database.writing() as connection:
        await connection.execute(usage_days.delete())
        await connection.execute(text(_migration().ADD_UP))
    await store.add_days_up()  # What later releases count, too.
    assert [row[:-2] for row in await rows()] == [row[:-2] for row in added]
    assert [row[-2:] for row in await rows()] == [pytest.approx(row[-2:]) for row in added]


def _migration() -> Any:
    """Its file's name is none of a module."""
    path = Path(__file__).parents[2] / "alembic" / "versions" / "0019_usage_days.py"
    spec = spec_from_file_location("usage_days_migration", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
