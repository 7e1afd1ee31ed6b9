"""Retention: what nobody used for so long is deleted, and nothing else; and all of one tenant, told and erased."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import Table, func, select, update

from app.store import CalibrationKey, Store, UsageRecord, retention
from app.store.calibrations import learn_calibrations, learn_window
from app.store.chunks import keep_mask, read_summaries
from app.store.conversations import set_pins
from app.store.leases import is_revoked_within
from app.store.retention import TABLES
from app.store.tables import (
    Paging,
    calibrations,
    conversations,
    heads,
    learned_windows,
    masks,
    metadata,
    now_ms,
    pins,
    summary_chunks,
    usage_records,
)
from app.tokens.calibration import Sample
from app.tokens.costs import Tokens
from tests.integration.examples import STRANGER, TENANT, OpenStore, chunk, digest, history_of, put, seen, take

DAYS = 30
DAY = 24 * 3_600_000
TIMES = {
    conversations: "updated_at",
    summary_chunks: "used_at",
    usage_records: "created_at",
    calibrations: "updated_at",
    learned_windows: "expires_at",
}


@pytest.fixture
async def store(open_store: OpenStore, shared_url: str) -> Store:
    """One that keeps things for thirty days."""
    store = open_store(shared_url)
    store.retention_days = DAYS
    await store.start()
    return store


def used(id_: str, tenant: str = TENANT, conversation_id: str = "c1") -> UsageRecord:
    return UsageRecord(
        tenant=tenant,
        id=id_,
        conversation_id=conversation_id,
        request_id="r",
        turn=1,
        purpose="message",
        upstream="default",
        model="gpt-4o",
        estimated=1,
        forwarded=1,
        saved=0,
        tokens=Tokens(1, 1),
        price=None,
        cost=None,
        status=200,
        context_status="full",
    )


async def live(store: Store, tenant: str = TENANT) -> None:
    """A conversation with everything that one may have; it uses a chunk of its own and one of another."""
    start = 10 if tenant == TENANT else 20
    made = [chunk(start, start + 1, id="own"), chunk(start + 1, start + 2, id="others", conversation_id="c2")]
    for one in made:
        await put(store, one, tenant=tenant)
    await store.request_change(keep_mask, tenant, "m", digest(start), digest(0), "c1")
    for name in ("c1", "c2"):
        used_here = ("own", "others") if name == "c1" else ()
        history = history_of("I am here.", f"So is {name}.", tenant=tenant, conversation_id=name)
        store.writes.record(seen(name, tenant=tenant, heads=((history.digests[-1], 1),), summaries=used_here))
        store.writes.record_usage(used(f"u-{name}", tenant, name))
        store.writes.record_history(history)
    await store.flush()
    await store.rest_change(set_pins, tenant, "c1", [0, 3])


async def taught(store: Store, tenant: str = TENANT) -> None:
    await store.task_change(
        learn_calibrations, {CalibrationKey("u", "m", "f", tools=False, tenant=tenant): [Sample(100, 120)]}
    )
    await store.task_change(learn_window, "u", "m", tenant, 1_000, 60)


async def age(store: Store, days: float, *tables: Table) -> None:
    """As if everything in them had happened so many days earlier."""
    async with store.database.writing() as connection:
        for table in tables:
            column = table.c[TIMES[table]]
            await connection.execute(update(table).values({column: now_ms() - int(days * DAY)}))


async def count(store: Store, *tables: Table, tenant: str | None = None) -> list[int]:
    found = []
    async with store.database.reading() as connection:
        for table in tables:
            rows = select(func.count()).select_from(table)
            if tenant is not None:
                rows = rows.where(table.c.tenant == tenant)
            found.append(int((await connection.execute(rows)).scalar_one()))
    return found


async def test_what_was_used_lately_is_kept(store: Store) -> None:
    await live(store)
    await taught(store)
    await age(store, DAYS - 0.1, *TIMES)
    before = await count(store, *metadata.sorted_tables)
    await retention.remove_unused(store)
    assert await count(store, *metadata.sorted_tables) == before


async def test_what_nobody_used_for_so_long_is_deleted_with_all_that_belongs_to_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches, however many there are."""
    monkeypatch.setattr("app.store.retention.ROWS", 1)
    monkeypatch.setattr("app.store.retention.PAUSE_SECONDS", 0.0)
    await live(store)
    await live(store, STRANGER)
    await taught(store)
    await age(store, DAYS + 1.1, *TIMES)
    await retention.remove_unused(store)
    assert set(await count(store, *metadata.sorted_tables)) == {0}


async def test_a_chunk_that_somebody_uses_outlives_the_conversation_that_made_it(store: Store) -> None:
    await live(store)
    await age(store, DAYS + 0.1, *TIMES)
    store.writes.record(seen("c1", summaries=("others",)))
    await store.flush()
    await retention.remove_unused(store)
    assert await count(store, conversations, summary_chunks) == [1, 1]
    page = await store.rest(read_summaries, TENANT, "c1", Paging(9))
    assert [(one.id, one.conversation_id) for one in page.data] == [("others", "c2")]
    assert await count(store, heads, masks, pins, usage_records) == [1, 1, 2, 0]


async def test_a_use_is_noted_to_the_hour(store: Store) -> None:
    await live(store)

    async def noted() -> list[int]:
        async with store.database.reading() as connection:
            return list((await connection.execute(select(summary_chunks.c.used_at))).scalars())

    before = await noted()
    store.writes.record(seen("c1", summaries=("own", "others")))
    await store.flush()
    assert await noted() == before
    await age(store, 0.5, summary_chunks)
    earlier = await noted()
    store.writes.record(seen("c1", summaries=("own", "others", "of nobody")))
    await store.flush()
    assert all(after > one for after, one in zip(await noted(), earlier, strict=True))


async def test_everything_is_kept_for_ever_where_that_is_set(store: Store) -> None:
    store.retention_days = None
    await live(store)
    await age(store, 10_000, conversations, summary_chunks, usage_records)
    before = await count(store, *metadata.sorted_tables)
    await retention.remove_unused(store)
    assert await count(store, *metadata.sorted_tables) == before


async def test_replicas_may_tidy_side_by_side(open_store: OpenStore, shared_url: str) -> None:
    replicas = [open_store(shared_url) for _ in range(3)]
    for replica in replicas:
        replica.retention_days = DAYS
        await replica.start()
    for number in range(250):
        replicas[0].writes.record(seen(f"c{number}", heads=((digest(number), 1), (digest(1_000 + number), 2))))
    await replicas[0].flush()
    await age(replicas[0], DAYS + 0.1, conversations)
    replicas[1].writes.record(seen("c7", heads=((digest(7), 1),)))
    await asyncio.gather(*(retention.remove_unused(replica) for replica in replicas), replicas[1].flush())
    await retention.remove_unused(replicas[1])
    assert await count(replicas[0], conversations) == [1]


# All of one tenant


async def test_a_tenant_is_erased_and_no_other(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.store.ERASED_ROWS", 1)
    for tenant in (TENANT, STRANGER):
        await live(store, tenant)
        await taught(store, tenant)
    others = await count(store, *TABLES, tenant=STRANGER)
    store.writes.record(seen("waits"))
    store.writes.record_usage(used("waits"))
    assert await store.erase_tenant(TENANT)
    await store.flush()
    left = dict(zip((table.name for table in TABLES), await count(store, *TABLES, tenant=TENANT), strict=True))
    assert set(left.values()) == {0}
    assert await count(store, *TABLES, tenant=STRANGER) == others
    assert not await store.erase_tenant(TENANT)


async def test_what_is_being_made_for_an_erased_tenant_is_not_stored(store: Store) -> None:
    lease = await take(store, 0, 4)
    theirs = await take(store, 0, 4, tenant=STRANGER)
    await store.erase_tenant(TENANT)
    assert await store.keep_chunks(lease, [chunk(0, 4)]) is None
    assert not await store.renew_lease(lease)
    assert await store.release_lease(lease)
    for tenant, milliseconds, found in ((TENANT, 60_000, True), (TENANT, -60_000, False), (STRANGER, 60_000, False)):
        assert await store.task(is_revoked_within, tenant, lease.range, milliseconds) is found
    assert await store.keep_chunks(theirs, [chunk(0, 4)])
    assert await store.keep_chunks(await take(store, 0, 4), [chunk(0, 4)])
