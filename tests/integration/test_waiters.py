"""Requests that wait for a lease ask for its end, and never hold up others."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select, update

from app.store import Claim, Store, StoreUnavailable, retention
from app.store.tables import leases
from tests.integration.examples import TENANT, Replicas, StartStore, chain, span, take, until


async def wait_for_end(store: Store, conversation_id: str = "c1", seconds: float = 30.0) -> str | None:
    return await store.await_lease(Claim(TENANT, conversation_id, span(0, 4), chain(10)), seconds)


async def begin_to_wait(store: Store, conversation_id: str = "c1") -> asyncio.Task[str | None]:
    waiting = asyncio.ensure_future(wait_for_end(store, conversation_id))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    return waiting


@pytest.mark.parametrize("conversation_id", ["c1", "c\0\ud800\u00e9"])
async def test_end_in_another_process_ends_the_waiting(replicas: Replicas, conversation_id: str) -> None:
    """Also where another conversation has the same beginning."""
    maker, waiter = replicas
    held = await take(maker, 0, 4, conversation_id=conversation_id)
    waiting = await begin_to_wait(waiter)
    await maker.release_lease(held)
    assert await waiting == "ended"


async def test_a_deletion_in_another_process_ends_the_waiting(replicas: Replicas) -> None:
    maker, waiter = replicas
    await take(maker, 0, 4)
    waiting = await begin_to_wait(waiter)
    await maker.delete_conversation(TENANT, "c1")
    assert await waiting == "revoked"


async def test_a_crowd_waits_for_one_lease(store: Store) -> None:
    held = await take(store, 0, 4)
    crowd = [asyncio.ensure_future(wait_for_end(store)) for _ in range(50)]
    await asyncio.sleep(0.3)
    await store.release_lease(held)
    assert await asyncio.gather(*crowd) == ["ended"] * 50


async def test_one_that_leaves_does_not_disturb_the_others(store: Store) -> None:
    held = await take(store, 0, 4)
    leaver, stayer = await begin_to_wait(store), await begin_to_wait(store)
    leaver.cancel()
    await asyncio.sleep(0.1)
    assert not stayer.done()
    await store.release_lease(held)
    assert await stayer


async def test_waiting_ends_at_its_deadline(store: Store) -> None:
    """The holder goes on; the lease stays."""
    await take(store, 0, 4)
    assert not await wait_for_end(store, seconds=0.2)
    assert await store.is_busy(Claim(TENANT, "c1", span(0, 4), chain(10)))


async def test_lease_that_expires_ends_the_waiting(start_store: StartStore, shared_url: str) -> None:
    """A holder that was killed says nothing."""
    store = await start_store(shared_url, lease_ttl=0.5)
    await take(store, 0, 4)
    assert await wait_for_end(store)


async def test_database_that_is_gone_ends_the_waiting_with_an_error(store: Store) -> None:
    """Whoever can go on without it is not to be held up."""
    await take(store, 0, 4)
    waiting = await begin_to_wait(store)
    store.guard.reason = "the database is away"
    with pytest.raises(StoreUnavailable, match="the database is away"):
        await waiting
    store.guard.reason = None


# What becomes of the rows


async def ends(store: Store) -> list[int]:
    async with store.database.reading() as connection:
        return list(await connection.scalars(select(leases.c.expires_at).order_by(leases.c.through_digest)))


async def pass_minutes(store: Store, minutes: int) -> None:
    """By moving every end into the past."""
    async with store.database.writing() as connection:
        await connection.execute(update(leases).values(expires_at=leases.c.expires_at - minutes * 60_000))


async def test_a_released_lease_is_no_row_and_one_that_ended_is_removed_some_minutes_later(store: Store) -> None:
    await take(store, 0, 4)
    await pass_minutes(store, 11)
    await take(store, 4, 8, conversation_id="c2")
    await pass_minutes(store, 9)
    released = await take(store, 8, 12, conversation_id="c3")
    assert len(await ends(store)) == 3
    assert not await store.release_lease(released)
    await retention.remove_old_leases(store)
    assert len(await ends(store)) == 1


async def test_old_rows_are_removed_by_themselves(
    start_store: StartStore, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.store.retention.START_SECONDS", 0.1)
    monkeypatch.setattr("app.store.retention.EVERY_SECONDS", 0.1)
    store = await start_store(shared_url)
    await take(store, 0, 4)
    await pass_minutes(store, 60)

    async def all_are_gone() -> bool:
        return not await ends(store)

    await until(all_are_gone)
