"""Usage records in partitions: divided while others write, made ahead, dropped whole, and none lost for want of one."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy import event, func, select, text, update

from app.store import Store, UsageRecord, partitions
from app.store.clock import now_ms
from app.store.tables import usage_days, usage_records
from app.store.usage_days import _add_up_again
from app.store.usage_records import read_report
from tests.integration.examples import STRANGER, TENANT, OpenStore
from tests.integration.test_retention import used

DAY = 86_400_000
KEPT = 30


@pytest.fixture
async def store(open_store: OpenStore, postgres_url: str) -> Store:
    store = open_store(postgres_url)
    store.tidying.kept_ms = KEPT * DAY
    await store.start()
    return store


async def today(store: Store) -> int:
    async with store.database.reading() as connection:
        return int(await connection.scalar(select(now_ms())) or 0) // DAY


def called(day: int, number: int = 1, tenant: str = TENANT) -> UsageRecord:
    """A record of a call on that day."""
    return used(f"{partitions._bound(day)}{number:08x}", tenant)


async def keep(store: Store, *records: UsageRecord) -> None:
    for record in records:
        store.writes.record_usage(record)
    await store.flush()


async def keep_since(store: Store, day: int, record: UsageRecord) -> None:
    """As if it had been stored on that day."""
    await keep(store, record)
    async with store.database.writing() as connection:
        own = usage_records.c.id == record.id
        await connection.execute(update(usage_records).where(own).values(created_at=day * DAY))
        tenants = usage_days.c.tenant == record.tenant, usage_records.c.tenant == record.tenant
        await _add_up_again(connection, *tenants)


async def places(store: Store) -> dict[str, str]:
    """The partition of each record, by id."""
    async with store.database.reading() as connection:
        rows = await connection.execute(text("SELECT id, tableoid::regclass::text FROM usage_records"))
        return {id_: name.removeprefix("usage_records_") for id_, name in rows}


async def names(store: Store) -> list[str]:
    async with store.database.reading() as connection:
        found = await connection.scalars(
            text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_records'::regclass")
        )
        return sorted(name.removeprefix("usage_records_") for name in found)


async def asked(store: Store, *statements: str) -> Any:
    async with store.database.writing() as connection:
        return [(await connection.execute(text(statement))).rowcount for statement in statements]


async def test_the_table_is_divided_while_others_write_and_read(store: Store, open_store: OpenStore) -> None:
    """No record is lost or refused, in a process that had prepared its statements before, too."""
    day = await today(store)
    await keep(store, called(day - 20))
    other = open_store(store.database.address.dsn)
    await other.start()
    is_over, written = asyncio.Event(), 0

    async def write() -> None:
        nonlocal written
        while not is_over.is_set():
            written += 1
            await keep(other, called(day, written))
            await other.rest(read_report, TENANT, (day - 30) * DAY, (day + 1) * DAY)
            await asyncio.sleep(0.005)

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.3)
    await store.tidying.keep_partitions()
    await asyncio.sleep(0.3)
    is_over.set()
    await writing
    assert set((await places(store)).values()) == {"before"}
    assert len(await places(store)) == written + 1
    report = await other.rest(read_report, TENANT, (day - 30) * DAY, (day + 1) * DAY)
    assert report.sums.messages.calls == written + 1
    assert (other.state, other.writes.dropped) == ("ok", 0)


async def test_a_divided_table_has_the_indexes_and_rights_that_it_had(store: Store) -> None:
    catalog = (
        "SELECT string_agg(indexdef, ';' ORDER BY indexname) FROM pg_indexes WHERE tablename = 'usage_records'",
        "SELECT string_agg(a::text, ';') FROM pg_class c, aclexplode(c.relacl) a WHERE c.relname = 'usage_records'",
    )

    async def seen() -> list[str]:
        async with store.database.reading() as connection:
            return [(await connection.scalar(text(one))) for one in catalog]

    await asked(store, "GRANT SELECT ON usage_records TO PUBLIC")
    indexes, rights = await seen()
    await store.tidying.keep_partitions()
    divided = await seen()
    assert divided == [indexes.replace("ON public.", "ON ONLY public."), rights]
    await keep(store, called(0), called(0))
    assert len(await places(store)) == 1


async def test_partitions_are_made_ahead_and_once(store: Store, open_store: OpenStore) -> None:
    other = open_store(store.database.address.dsn)
    other.tidying.kept_ms = KEPT * DAY
    await other.start()
    await asyncio.gather(store.tidying.keep_partitions(), other.tidying.keep_partitions())
    await store.tidying.keep_partitions()
    made = await names(store)
    assert len(made) == len(set(made)) >= 2
    day = await today(store)
    await keep(store, *(called(day + ahead) for ahead in range(partitions.AHEAD_DAYS)))
    assert "rest" not in (await places(store)).values()


async def test_a_record_for_which_there_is_no_partition_is_stored_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether Steno was stopped for long or a clock is wrong; the next partitions begin behind it."""
    monkeypatch.setattr(partitions, "BEFORE_DAYS", -2)
    monkeypatch.setattr(partitions, "AHEAD_DAYS", -10)
    await store.tidying.keep_partitions()
    day = await today(store)
    now, later = called(day), called(day + 400)
    await keep(store, now, later)
    assert await places(store) == {now.id: "rest", later.id: "rest"}
    monkeypatch.setattr(partitions, "AHEAD_DAYS", 7)
    await store.tidying.keep_partitions()
    await keep(store, tomorrow := called(day + 1))
    assert (await places(store)).pop(tomorrow.id) not in {"rest", "before"}
    assert len(await places(store)) == 3


async def test_retention_drops_a_partition_and_no_record_that_is_too_young(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = await today(store)
    monkeypatch.setattr(partitions, "BEFORE_DAYS", -50)
    monkeypatch.setattr(partitions, "AHEAD_DAYS", -50)
    store.tidying.kept_ms = 100 * DAY
    await store.tidying.keep_partitions()
    store.tidying.kept_ms = KEPT * DAY
    for begin in range(-50, 8, 3):  # As if they had been made in time.
        bounds = f"FROM ('{partitions._bound(day + begin)}') TO ('{partitions._bound(day + begin + 3)}')"
        await asked(store, f"CREATE TABLE usage_records_d{begin + 50} PARTITION OF usage_records FOR VALUES {bounds}")
    old, older, late, young = called(day - 36), called(day - 48), called(day - 41), called(day - 5)
    for record, since in ((old, day - 36), (older, day - 48), (late, day - 1), (young, day - 5)):
        await keep_since(store, since, record)
    deleted = 0

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal deleted
        deleted += "DELETE FROM usage_records" in statement

    event.listen(store.database.engine.sync_engine, "before_cursor_execute", note)
    await store.tidying.keep_partitions()
    await store.tidying.remove_unused()
    assert set(await places(store)) == {late.id, young.id}
    assert deleted == 0
    async with store.database.reading() as connection:
        assert set(await connection.scalars(select(usage_days.c.day // DAY))) == {day - 1, day - 5}
    await store.erase_tenant(TENANT)
    assert await places(store) == {}


async def test_what_is_in_no_partition_of_its_own_is_removed_row_by_row(store: Store) -> None:
    """From the table of before, once it is as old as what goes with a partition."""
    day = await today(store)
    await store.tidying.keep_partitions()
    spared = partitions.spared_ms(KEPT * DAY) // DAY
    await keep_since(store, day - KEPT - spared - 1, gone := called(day - KEPT - spared - 1))
    await keep_since(store, day - KEPT - 1, kept := called(day - KEPT - 1, tenant=STRANGER))
    await store.tidying.remove_unused()
    assert set(await places(store)) == {kept.id} != {gone.id}
    async with store.database.reading() as connection:
        days = await connection.execute(select(usage_days.c.tenant, func.sum(usage_days.c.calls)).group_by("tenant"))
        assert dict(days.all()) == {STRANGER: 1}


@pytest.mark.parametrize("at", ["VALIDATE", "LOCK TABLE", "ATTACH"])
async def test_a_division_that_fails_leaves_the_table_as_it_was(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    day = await today(store)
    execute = asyncpg.Connection.execute

    async def failing(connection: Any, statement: str, *arguments: Any, **options: Any) -> Any:
        if at in statement:
            raise asyncpg.PostgresError("no")
        return await execute(connection, statement, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(asyncpg.Connection, "execute", failing)
        with pytest.raises(Exception, match="refused"):
            await store.tidying.keep_partitions()
    await keep(store, called(day + 300))
    assert await names(store) == []
    async with store.database.reading() as connection:
        checks = "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = 'usage_records'::regclass"
        assert await connection.scalar(text(checks)) == 0


async def test_a_table_that_a_view_shows_stays_as_it_is(store: Store) -> None:
    """It would show the first partition and nothing else."""
    await asked(store, "CREATE VIEW seen AS TABLE usage_records")
    await store.tidying.keep_partitions()
    assert await names(store) == []


async def test_a_role_that_does_not_own_the_table_leaves_it_as_it_is(store: Store, open_store: OpenStore) -> None:
    role = f"steno_{uuid4().hex}"
    rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public"
    await asked(store, f"CREATE ROLE {role} LOGIN", f"GRANT {rights} TO {role}")
    other = open_store(store.database.address.dsn.replace("postgres:@", f"{role}:@"))
    other.tidying.kept_ms = KEPT * DAY
    await other.start()
    try:
        for keeper, is_divided in ((other, False), (store, True), (other, True)):
            await keeper.tidying.keep_partitions()
            assert bool(await names(store)) == is_divided
        await keep(other, called(await today(store)))
    finally:
        await other.close()
        await asked(store, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
