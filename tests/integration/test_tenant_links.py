"""Tenants that become one: everything that was stored of any of them is found under the one that is left."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select, update

from app.core.tokens.calibration import Sample
from app.store import CalibrationKey, Store, words_in
from app.store.calibration_rows import learn_calibrations, read_own_calibrations
from app.store.chunks import chunks_in
from app.store.conversation_rows import find_conversation
from app.store.learned_windows import learn_window
from app.store.message_rows import read_messages
from app.store.pages import Paging
from app.store.pins import find_pins, set_pins
from app.store.places import asides_at, keep_aside, keep_mask, masks_in
from app.store.search import search_texts
from app.store.tables import conversations, tenant_links, usage_days
from app.store.tenant_links import SETTLED_MS, find_proven, has_rows, keep_proven, move_some, read_due
from app.store.tenant_rows import TABLES
from tests.integration.examples import SERIES, OpenStore, chain, chunk, digest, put, seen, show
from tests.integration.test_usage_days import record

OLD, NEW, PERSON, APART = "tenant-old", "tenant-new", "person", "apart"
EVERY = Paging(100)


async def fill(store: Store, tenant: str, name: str = "c1", text: str = "The parcel arrived.", at: int = 0) -> None:
    """Store something of a tenant in every table that a request leaves rows in; `at`: places, which no two share."""
    show(store, "what came?", "a parcel", tenant=tenant, conversation_id=name)
    await store.flush()
    await put(store, chunk(at, at + 2, id=f"{tenant}-{name}", conversation_id=name, text=text), tenant=tenant)
    await store.rest_change(set_pins, tenant, name, [1])
    await store.request_change(keep_mask, tenant, "s", digest(at + 2), digest(at), name)
    await store.request_change(keep_aside, tenant, digest(at + 2), "[]", name)
    key = CalibrationKey("http://up", "gpt-4o", "openai", False, tenant)
    await store.task_change(learn_calibrations, {key: [Sample(100, 110)]})
    await store.task_change(learn_window, "http://up", "gpt-4o", tenant, 8_000, 3_600.0)
    for number in range(3):
        store.writes.record_usage(record(number, tenant=tenant, id=f"{tenant}-{name}-{number}", conversation_id=name))
    await store.flush()


async def rows(store: Store, tenant: str) -> dict[str, int]:
    """Number of a tenant's rows by table."""
    found: dict[str, int] = {}
    async with store.database.reading() as connection:
        for table in TABLES:
            number = await connection.scalar(select(func.count()).select_from(table).where(table.c.tenant == tenant))
            if number and table.name not in ("leases", "tenant_links"):
                found[table.name] = number
    return found


async def age_links(store: Store) -> None:
    """Make links so old that no request of before is under way."""
    async with store.database.writing() as connection:
        await connection.execute(update(tenant_links).values(created_at=tenant_links.c.created_at - 2 * SETTLED_MS))


async def test_a_new_tenant_finds_what_is_stored_of_the_old_one(store: Store) -> None:
    await fill(store, OLD)
    before = await rows(store, OLD)
    await store.links.merge(OLD, NEW)
    assert store.links.resolved(NEW, persons=False) == store.links.resolved(NEW, persons=True) == OLD
    assert (await store.links.move(), await rows(store, OLD)) == (0, before)


async def test_rows_of_both_are_found_in_every_table(store: Store) -> None:
    await fill(store, OLD)
    await fill(store, NEW, "c2", "The invoice arrived.", at=10)
    before, added = await rows(store, OLD), await rows(store, NEW)
    left_out = {"leases", "tenant_links", "prints", "usage_days_due", "tallies", "operator_acts"}
    assert before.keys() == added.keys() >= {table.name for table in TABLES} - left_out
    await store.links.merge(OLD, NEW)
    assert store.links.roots(OLD) == (NEW,)
    moved = await store.links.move()
    assert await rows(store, NEW) == {}
    now = await rows(store, OLD)
    both = {"calibrations": before["calibrations"], "learned_windows": 1, "usage_days": before["usage_days"]}
    assert now == {name: number + added[name] for name, number in before.items()} | both
    assert moved == sum(added.values()) - added["summary_words"] - added["message_words"]
    assert await store.rest(find_conversation, OLD, "c2") is not None
    found = await store.request(chunks_in, OLD, SERIES, chain(20))
    assert {each.id for each in found} == {f"{OLD}-c1", f"{NEW}-c2"}
    assert await store.request(masks_in, OLD, "s", chain(3)) == [(digest(2), digest(0))]
    assert await store.request(masks_in, OLD, "s", chain(20)[10:]) == [(digest(12), digest(10))]
    assert await store.request(asides_at, OLD, chain(20)) == {digest(2): "[]", digest(12): "[]"}
    assert [pin.position for pin in await store.rest(find_pins, OLD, "c2")] == [1]
    assert len((await store.rest(read_messages, OLD, "c2", EVERY)).page.data) == 2
    for word, id_ in (("parcel", f"{OLD}-c1"), ("invoice", f"{NEW}-c2")):
        hits = await store.rest(search_texts, OLD, words_in(word), "summaries", Paging(100, order="desc"))
        assert [hit.id for hit in hits.data] == [id_]
    own = await store.rest(read_own_calibrations, OLD, EVERY)
    assert {calibration.key.id for calibration in own.data} == {
        CalibrationKey("http://up", "gpt-4o", "openai", False, OLD).id
    }


async def test_days_are_added_up(store: Store) -> None:
    for tenant in (OLD, NEW):
        await fill(store, tenant)
    async with store.database.reading() as connection:
        sums = select(func.sum(usage_days.c.calls), func.sum(usage_days.c.cost))
        before = (await connection.execute(sums)).one()
    await store.links.merge(OLD, NEW)
    await store.links.move()
    async with store.database.reading() as connection:
        assert (await connection.execute(sums.where(usage_days.c.tenant == OLD))).one() == before


async def test_of_a_conversation_that_both_have_the_later_state_stays(store: Store) -> None:
    for tenant, status in ((OLD, "full"), (NEW, "summarized")):
        store.writes.record(seen("same", tenant=tenant, status=status))
        await store.flush()
        await asyncio.sleep(0.01)
    await store.links.merge(OLD, NEW)
    await store.links.move()
    found = await store.rest(find_conversation, OLD, "same")
    assert found is not None
    assert found.status == "summarized"


async def test_what_an_unknowing_replica_stores_is_moved_later(store: Store) -> None:
    await store.links.merge(OLD, NEW)
    await store.links.move()
    store.writes.record(seen("late", tenant=NEW))
    await store.flush()
    await age_links(store)
    assert await store.links.move() == 1
    assert await store.task(read_due) == []
    assert await store.rest(find_conversation, OLD, "late") is not None


async def test_moving_goes_on_where_another_stopped(store: Store) -> None:
    await fill(store, NEW)
    await store.links.merge(OLD, NEW)
    [link] = await store.task(read_due)
    for _ in range(3):
        assert await store.task_change(move_some, link.alias, link.tenant, 1)
    assert await rows(store, NEW)
    await store.links.move()
    assert await rows(store, NEW) == {}


async def test_a_third_tenant_finds_what_the_second_became(store: Store) -> None:
    await fill(store, OLD)
    await store.links.merge(OLD, NEW)
    await fill(store, "third", "c3")
    await store.links.merge("third", OLD)
    await store.links.move()
    assert store.links.resolved(NEW, persons=False) == store.links.resolved(OLD, persons=False) == "third"
    assert sorted(store.links.roots("third")) == [NEW, OLD]
    assert await store.rest(find_conversation, "third", "c1") is not None


# Persons


async def test_a_person_has_what_was_stored_for_his_key_and_the_key_alone_begins_anew(store: Store) -> None:
    await fill(store, OLD)
    assert await store.links.claim(PERSON, OLD, APART)
    assert store.links.resolved(PERSON, persons=True) == OLD
    assert store.links.resolved(OLD, persons=True) == APART
    assert store.links.resolved(OLD, persons=False) == OLD


async def test_what_one_has_claimed_nobody_claims_again(store: Store) -> None:
    await fill(store, OLD)
    assert await store.links.claim(PERSON, OLD, APART)
    assert not await store.links.claim("another", OLD, APART)
    assert store.links.resolved("another", persons=True) == "another"


async def test_of_a_key_without_rows_nothing_is_claimed(store: Store) -> None:
    assert not await store.links.claim(PERSON, OLD, APART)
    assert store.links.resolved(OLD, persons=True) == OLD


async def test_what_was_stored_for_a_second_key_is_moved(store: Store) -> None:
    await fill(store, OLD)
    await fill(store, NEW, "c2")
    await store.links.claim(PERSON, OLD, APART)
    await store.links.claim(PERSON, NEW, "also apart")
    await store.links.move()
    assert (store.links.resolved(PERSON, persons=True), store.links.roots(OLD)) == (OLD, (NEW,))
    assert await store.rest(find_conversation, OLD, "c2") is not None
    assert store.links.resolved(NEW, persons=True) == "also apart"


async def test_a_person_who_has_rows_keeps_his_name(store: Store) -> None:
    await fill(store, PERSON)
    await fill(store, OLD, "c2")
    await store.links.claim(PERSON, OLD, APART)
    await store.links.move()
    assert store.links.resolved(PERSON, persons=True) == PERSON
    assert await store.rest(find_conversation, PERSON, "c2") is not None


async def test_of_many_who_claim_at_once_one_has_it(open_store: OpenStore, shared_url: str) -> None:
    stores = [open_store(shared_url) for _ in range(3)]
    for each in stores:
        await each.start()
    await fill(stores[0], OLD)
    claims = [each.links.claim(f"person {number}", OLD, APART) for number, each in enumerate(stores)]
    assert sorted(await asyncio.gather(*claims)) == [False, False, True]
    for each in stores:
        await each.links.look()
        leads = [each.links.resolved(f"person {number}", persons=True) for number in range(3)]
        assert sorted(lead == OLD for lead in leads) == [False, False, True]


async def test_a_link_is_seen_by_others(open_store: OpenStore, shared_url: str) -> None:
    one, other = open_store(shared_url), open_store(shared_url)
    await one.start()
    await other.start()
    mark = other.links.mark
    await one.links.merge(OLD, NEW)
    await other.links.look()
    assert other.links.resolved(NEW, persons=False) == OLD
    assert other.links.mark != mark


# Erased, exported


async def test_erasing_takes_all_names_and_what_was_to_be_moved(store: Store) -> None:
    await fill(store, OLD)
    await fill(store, NEW, "c2")
    await store.links.claim(PERSON, OLD, APART)
    await store.links.merge(OLD, NEW)
    assert await store.erase_tenant(OLD)
    for tenant in (OLD, NEW):
        assert await rows(store, tenant) == {}
    async with store.database.reading() as connection:
        assert (await connection.scalar(select(func.count()).select_from(tenant_links))) == 0
    assert store.links.resolved(PERSON, persons=True) == PERSON


async def test_erasing_leaves_others_what_they_stored_with_the_same_key(store: Store) -> None:
    await fill(store, OLD)
    await store.links.claim(PERSON, OLD, APART)
    await fill(store, APART)
    await store.erase_tenant(OLD)
    assert store.links.resolved(OLD, persons=True) == APART
    assert await store.task(has_rows, APART)


async def test_an_export_has_what_was_to_be_moved(store: Store) -> None:
    await fill(store, OLD)
    await fill(store, NEW, "c2")
    await store.links.merge(OLD, NEW)
    names = {row["id"] async for kind, row in store.export(OLD) if kind == conversations.name}
    assert names == {"c1", "c2"}


# Proofs


async def test_a_proof_holds_for_its_time_and_its_person(store: Store) -> None:
    await store.task_change(keep_proven, OLD, PERSON, 100.0)
    for wanted in (PERSON, None):
        proof = await store.request(find_proven, OLD, wanted)
        assert proof is not None
        assert proof[0] == PERSON
        assert 90 < proof[1] <= 100
    assert await store.request(find_proven, OLD, "another") is None
    assert await store.request(find_proven, NEW, None) is None
    await store.task_change(keep_proven, OLD, PERSON, -1.0)
    assert await store.request(find_proven, OLD, None) is None
    await store.links.look()
    assert store.links.resolved(OLD, persons=True) == OLD
