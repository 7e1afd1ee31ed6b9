"""The lease: one maker per chunk, and a fence against makers who lost it."""

from __future__ import annotations

import asyncio

from app.store import Claim, Lease, Store
from tests.integration.examples import STRANGER, TENANT, Replicas, chain, span, take


async def test_so_many_conversations_of_a_tenant_hold_leases_at_all_replicas(replicas: Replicas) -> None:
    """An ended lease makes room, and another tenant has its own."""
    one, other = replicas
    held = await take(one, 0, 4)
    third = "c3", span(20, 30), chain(100)
    assert await other.take_lease(Claim(TENANT, *third), "h2", 1) == "too_many"
    assert isinstance(await other.take_lease(Claim(STRANGER, *third), "h2", 1), Lease)
    await one.release_lease(held)
    assert isinstance(await other.take_lease(Claim(TENANT, *third), "h2", 1), Lease)


async def test_other_series_does_not_wait(store: Store) -> None:
    """A request reads only its own series."""
    await take(store, 0, 4)
    assert isinstance(await store.take_lease(Claim(TENANT, "c2", span(0, 4, "focus"), chain(100)), "h2"), Lease)


async def test_many_ranges_of_one_conversation_at_once_get_one_grant(store: Store) -> None:
    """No two rows collide here, so only taking turns keeps the second one out."""
    answers = await asyncio.gather(
        *(store.take_lease(Claim(TENANT, "c1", span(0, 1 + number), chain(100)), f"h{number}") for number in range(40))
    )
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


async def test_two_stores_on_one_database_share_the_lease(replicas: Replicas) -> None:
    """What one replica is making, the other waits for."""
    answers = await asyncio.gather(
        *(replicas[n % 2].take_lease(Claim(TENANT, "c1", span(0, 4), chain(100)), f"h{n}") for n in range(20))
    )
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


async def test_other_tenant_never_waits(store: Store) -> None:
    """The same ids and digests mean nothing to another tenant."""
    await take(store, 0, 4)
    assert not await store.is_busy(Claim(STRANGER, "c1", span(0, 4), chain(100)))
    await take(store, 0, 4, tenant=STRANGER)
