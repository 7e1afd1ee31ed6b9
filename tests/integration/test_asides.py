"""Asides: what belongs to an answer and its client does not have, for as long as a turn may run."""

from __future__ import annotations

from sqlalchemy import update

from app.store import Store
from app.store.places import asides_at, keep_aside
from app.store.tables import asides
from tests.integration.examples import STRANGER, TENANT, digest, seen

PLACES = [digest(number) for number in range(20)]
DAY_MS = 86_400_000


async def keep(store: Store, place: int, text: str, conversation_id: str = "c") -> None:
    await store.request_change(keep_aside, TENANT, digest(place), text, conversation_id)


async def test_the_latest_of_a_place_is_found_and_by_its_tenant_alone(store: Store) -> None:
    await keep(store, 1, "one")
    await keep(store, 2, "before")
    await keep(store, 2, "two\0")
    found = {digest(1): "one", digest(2): "two\ufffd"}
    assert await store.request(asides_at, TENANT, PLACES) == found
    assert await store.request(asides_at, STRANGER, PLACES) == {}


async def test_they_go_with_their_conversation(store: Store) -> None:
    for number, name in enumerate(("c", "d")):
        store.writes.record(seen(name))
        await keep(store, number, name, name)
    assert await store.delete_conversation(TENANT, "c")
    assert await store.request(asides_at, TENANT, PLACES) == {digest(1): "d"}


async def test_they_are_removed_a_day_later_however_long_other_things_are_kept(store: Store) -> None:
    assert store.tidying.kept_ms is None
    for place, age_ms in ((1, DAY_MS - 60_000), (2, DAY_MS + 60_000)):
        await keep(store, place, "kept")
        async with store.database.writing() as connection:
            own = update(asides).where(asides.c.id == digest(place).hex())
            await connection.execute(own.values(created_at=asides.c.created_at - age_ms))
    await store.tidying.remove_unused()
    assert await store.request(asides_at, TENANT, PLACES) == {digest(1): "kept"}
