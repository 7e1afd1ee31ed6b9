"""Tallies: what several processes count is one sum, and nobody waits for it."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from app.store import Store, StoreUnavailable
from app.store.tables import tallies
from app.store.tallies import DAY, MINUTE, Tallies, Window, add_up, remove_old_tallies
from tests.integration.examples import STRANGER, TENANT, OpenStore
from tests.unit.clock import Clock

A_DAY = Window("tokens", DAY)
FAR = 5_000_000_000_000
"""A time in 2128, in milliseconds since 1970."""


async def test_what_two_replicas_count_is_one_sum(open_store: OpenStore, shared_url: str) -> None:
    one, other = open_store(shared_url), open_store(shared_url)
    await one.start()
    await other.start()
    first, second = Tallies(), Tallies()
    first.add(TENANT, A_DAY, 40)
    second.add(TENANT, A_DAY, 2)
    await first.share(one)
    await second.share(other)
    assert second.used(TENANT, A_DAY) == 42
    assert first.used(TENANT, A_DAY) == 40
    await first.share(one)
    assert first.used(TENANT, A_DAY) == 42
    assert first.used(STRANGER, A_DAY) == 0


async def test_whoever_starts_anew_knows_what_was_used_once_he_shares(store: Store) -> None:
    before, after = Tallies(), Tallies()
    before.add(TENANT, A_DAY, 0.25)
    await before.share(store)
    assert after.used(TENANT, A_DAY) == 0
    await after.share(store)
    assert after.used(TENANT, A_DAY) == 0.25


async def test_a_window_begins_anew_for_all(store: Store) -> None:
    async with store.database.writing() as connection:
        await add_up(connection, [(TENANT, "tokens", FAR, 7.0)])
        told, _ = await add_up(connection, [(TENANT, "tokens", FAR + 1, 1.0)])
        assert told == {(TENANT, "tokens"): (FAR + 1, 1.0)}
        told, _ = await add_up(connection, [(TENANT, "tokens", FAR, 5.0)])
        assert told == {(TENANT, "tokens"): (FAR + 1, 1.0)}
        told, _ = await add_up(connection, [(TENANT, "money", FAR, 0.5), (TENANT, "tokens", FAR + 1, 2.0)])
        assert told == {(TENANT, "money"): (FAR, 0.5), (TENANT, "tokens"): (FAR + 1, 3.0)}


async def test_the_databases_clock_says_when_a_window_ends(store: Store) -> None:
    clock = Clock(1_000.0)
    counted = Tallies(clock)
    counted.add(TENANT, Window("requests", MINUTE), 1)
    await counted.share(store)
    counted.add(TENANT, Window("requests", MINUTE), 1)
    await counted.share(store)
    async with store.database.reading() as connection:
        ends_at = await connection.scalar(select(tallies.c.ends_at))
    assert ends_at is not None
    assert ends_at > 1_700_000_000_000
    assert ends_at % 60_000 == 0


async def test_without_the_database_a_process_counts_alone_and_shares_it_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Tallies()
    with monkeypatch.context() as gone:
        gone.setattr(store.readiness, "reason", "away")
        counted.add(TENANT, A_DAY, 3)
        with pytest.raises(StoreUnavailable):
            await counted.share(store)
        counted.add(TENANT, A_DAY, 4)
        assert counted.used(TENANT, A_DAY) == 7
    await counted.share(store)
    other = Tallies()
    other.add(TENANT, A_DAY, 0)
    await other.share(store)
    assert other.used(TENANT, A_DAY) == 7


async def test_what_was_counted_last_is_shared_when_a_process_ends(open_store: OpenStore, shared_url: str) -> None:
    one = open_store(shared_url)
    await one.start()
    one.tallies.add(TENANT, A_DAY, 5)
    await one.close()
    other = open_store(shared_url)
    await other.start()
    counted = Tallies()
    counted.add(TENANT, A_DAY, 1)
    await counted.share(other)
    assert counted.used(TENANT, A_DAY) == 6


async def test_a_caller_who_erases_everything_has_used_what_he_used(store: Store) -> None:
    counted = Tallies()
    counted.add(TENANT, A_DAY, 5)
    await counted.share(store)
    await store.erase_tenant(TENANT)
    await counted.share(store)
    counted.add(TENANT, A_DAY, 0)
    await counted.share(store)
    assert counted.used(TENANT, A_DAY) == 5


async def test_tallies_go_once_their_windows_are_over(store: Store) -> None:
    counted = Tallies()
    counted.add(TENANT, A_DAY, 5)
    counted.add(STRANGER, A_DAY, 5)
    await counted.share(store)
    async with store.database.writing() as connection:
        await connection.execute(update(tallies).where(tallies.c.tenant == TENANT).values(ends_at=1))
    assert await store.task_change(remove_old_tallies, 10) == 1
    async with store.database.reading() as connection:
        assert list(await connection.scalars(select(tallies.c.tenant))) == [STRANGER]
