"""Revocations: known to every replica, for as long as what was revoked could have gone on."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select, update

from app.store import Store
from app.store.clock import now_ms
from app.store.revocations import find_revocations, revoke, use_once
from app.store.tables import revocations
from tests.integration.examples import OpenStore


async def test_what_one_replica_revokes_all_know(open_store: OpenStore, shared_url: str) -> None:
    first, second = open_store(shared_url), open_store(shared_url)
    await first.start()
    await second.start()
    await first.change_at_once(revoke, "mine", 60)
    assert set(await second.at_once(find_revocations, ["mine", "others"])) == {"mine"}


async def test_what_is_revoked_again_is_revoked_from_then_on(store: Store) -> None:
    await store.change_at_once(revoke, "operators", 60)
    await _age(store, 10_000)
    (before,) = (await store.at_once(find_revocations, ["operators"])).values()
    await store.change_at_once(revoke, "operators", 60)
    (after,) = (await store.at_once(find_revocations, ["operators"])).values()
    assert after - before >= 10_000


async def test_a_revocation_goes_with_the_next_one_once_nothing_is_left_to_revoke(store: Store) -> None:
    await store.change_at_once(revoke, "old", 60)
    await _age(store, 61_000)
    await store.change_at_once(revoke, "new", 60)
    assert set(await store.at_once(find_revocations, ["old", "new"])) == {"new"}


async def test_a_revocation_lasts_as_long_as_what_it_ended_could(store: Store) -> None:
    await store.change_at_once(revoke, "mine", 60)
    async with store.database.reading() as connection:
        left = await connection.scalar(select(func.max(revocations.c.expires_at) - now_ms()))
    assert left is not None
    assert 50_000 < left <= 60_000


async def test_what_is_good_once_is_used_up_by_one_of_many_at_all_replicas(
    open_store: OpenStore, shared_url: str
) -> None:
    stores = [open_store(shared_url) for _ in range(2)]
    for store in stores:
        await store.start()
    used = await asyncio.gather(*(stores[n % 2].change_at_once(use_once, "link a", 60) for n in range(8)))
    assert sorted(used) == [*[False] * 7, True]
    assert await stores[0].change_at_once(use_once, "link b", 60)


async def _age(store: Store, milliseconds: int) -> None:
    moments = {name: revocations.c[name] - milliseconds for name in ("revoked_at", "expires_at")}
    async with store.database.writing() as connection:
        await connection.execute(update(revocations).values(moments))
