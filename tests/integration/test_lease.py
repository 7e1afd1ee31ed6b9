"""The lease: one maker per chunk, and a fence against makers who lost it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import func, select, update

from app.store import Busy, Lease, Store
from app.store.chunks import chunks_in
from app.store.conversation_rows import read_pulse
from app.store.lease import TooMany
from app.store.tables import leases
from tests.integration.examples import STRANGER, TENANT, OpenStore, chain, chunk, digest, put, seen, span, take

pytestmark = pytest.mark.sampled(0.6)


async def expire(store: Store) -> None:
    """Let every lease run out, as fifteen silent seconds would."""
    async with store.database.writing() as connection:
        await connection.execute(update(leases).values(expires_at=1))


async def rows_of_leases(store: Store) -> int:
    async with store.database.reading() as connection:
        return int(await connection.scalar(select(func.count()).select_from(leases)) or 0)


async def test_first_lease_of_a_range_has_epoch_one(store: Store) -> None:
    """A new range begins at epoch 1 and belongs to whoever asked."""
    assert await take(store, 0, 4) == Lease(TENANT, "c1", span(0, 4), "h1", 1)


async def test_second_request_of_a_conversation_is_told_to_wait(store: Store) -> None:
    """Whatever range it planned: its conversation is being compacted already."""
    await take(store, 0, 4)
    answer = await store.leases.acquire(TENANT, "c1", span(20, 30), chain(100), "h2")
    assert isinstance(answer, Busy)
    assert answer.conversation_id == "c1"
    assert 10 < answer.expires_in <= 15


async def test_so_many_conversations_of_a_tenant_hold_leases_at_all_replicas(
    open_store: OpenStore, shared_url: str
) -> None:
    """An ended lease makes room, and another tenant has its own."""
    one, other = open_store(shared_url), open_store(shared_url)
    await one.start()
    await other.start()
    held = await take(one, 0, 4)
    third = "c3", span(20, 30), chain(100), "h2", 1
    assert isinstance(await other.leases.acquire(TENANT, *third), TooMany)
    assert isinstance(await other.leases.acquire(STRANGER, *third), Lease)
    await one.leases.release(held)
    assert isinstance(await other.leases.acquire(TENANT, *third), Lease)


async def test_whoever_looks_at_a_conversation_sees_that_it_is_being_compacted(store: Store) -> None:
    """Also where another replica does it; an expired or released lease is none."""
    held = await take(store, 0, 4)
    assert (await store.at_once(read_pulse, TENANT, "c1", store.leases.ttl_ms)).compacting
    assert not (await store.at_once(read_pulse, TENANT, "c2", store.leases.ttl_ms)).compacting
    assert not (await store.at_once(read_pulse, STRANGER, "c1", store.leases.ttl_ms)).compacting
    await store.leases.release(held)
    assert not (await store.at_once(read_pulse, TENANT, "c1", store.leases.ttl_ms)).compacting
    await take(store, 4, 8)
    await expire(store)
    assert not (await store.at_once(read_pulse, TENANT, "c1", store.leases.ttl_ms)).compacting


async def test_whoever_looks_at_a_conversation_sees_when_its_latest_request_was_stored(store: Store) -> None:
    """None where nobody knows it."""
    assert (await store.at_once(read_pulse, TENANT, "c1", store.leases.ttl_ms)).updated_at is None
    store.writes.record(seen("c1"))
    await store.flush()
    assert (await store.at_once(read_pulse, TENANT, "c1", store.leases.ttl_ms)).updated_at is not None
    assert (await store.at_once(read_pulse, STRANGER, "c1", store.leases.ttl_ms)).updated_at is None


async def test_holder_that_asks_again_is_told_to_wait_too(store: Store) -> None:
    """A holder knows its lease; asking again is another request in the same process."""
    await take(store, 0, 4)
    assert isinstance(await store.leases.acquire(TENANT, "c1", span(0, 4), chain(100), "h1"), Busy)


async def test_other_conversation_waits_for_a_range_that_starts_alike_inside_its_chain(store: Store) -> None:
    """A shared beginning is summarised once for both conversations."""
    await take(store, 0, 4)
    answer = await store.leases.acquire(TENANT, "c2", span(0, 8), chain(100), "h2")
    assert isinstance(answer, Busy)
    assert answer.conversation_id == "c1"


async def test_other_conversation_does_not_wait_for_a_range_that_leaves_its_chain(store: Store) -> None:
    """A branch that ends in somebody else's messages is of no use."""
    await take(store, 0, 50)
    assert isinstance(await store.leases.acquire(TENANT, "c2", span(0, 8), chain(20), "h2"), Lease)


async def test_other_conversation_does_not_wait_for_a_range_that_starts_elsewhere(store: Store) -> None:
    """Only a range that starts where the path ends would be used."""
    await take(store, 0, 4)
    assert isinstance(await store.leases.acquire(TENANT, "c2", span(4, 8), chain(100), "h2"), Lease)


async def test_other_series_does_not_wait(store: Store) -> None:
    """A request reads only its own series."""
    await take(store, 0, 4)
    assert isinstance(await store.leases.acquire(TENANT, "c2", span(0, 4, "focus"), chain(100), "h2"), Lease)


async def test_expired_lease_may_be_taken_by_another_holder(store: Store) -> None:
    """A holder that went silent holds nobody up for longer than its time to live."""
    await take(store, 0, 4)
    await expire(store)
    assert (await take(store, 0, 4, holder="h2")).epoch == 2


async def test_lease_expires_by_itself(open_store: OpenStore, database_url: str) -> None:
    """The database's clock ends it; nobody has to."""
    store = open_store(database_url, lease_ttl=0.2)
    await store.start()
    await take(store, 0, 4)
    await asyncio.sleep(0.3)
    assert not await store.leases.live(TENANT, "c1", span(0, 4), chain(100))
    assert (await take(store, 0, 4, holder="h2")).epoch == 2


async def test_lease_of_a_dead_holder_does_not_live_longer_because_the_clock_was_put_back(store: Store) -> None:
    """As when another server, an hour behind, takes over."""
    await take(store, 0, 4, holder="dead")
    async with store.database.writing() as connection:
        await connection.execute(update(leases).values(expires_at=leases.c.expires_at + 3_600_000))
    assert await store.leases.live(TENANT, "c1", span(0, 4), chain(100)) is None
    assert (await take(store, 0, 4, holder="h2")).epoch == 2


async def test_epoch_grows_with_every_grant(store: Store) -> None:
    """Also after a release, so that no two grants of a range can be confused."""
    epochs = []
    for holder in ("h1", "h2", "h3", "h1"):
        lease = await take(store, 0, 4, holder=holder)
        epochs.append(lease.epoch)
        await store.leases.release(lease)
    assert epochs == [1, 2, 3, 4]


async def test_release_lets_the_next_one_in_and_deletes_nothing(store: Store) -> None:
    """Deleting the row would let its epoch begin anew."""
    await store.leases.release(await take(store, 0, 4))
    assert not await store.leases.live(TENANT, "c1", span(0, 4), chain(100))
    assert await rows_of_leases(store) == 1


async def test_release_of_a_lost_lease_leaves_the_new_holder_alone(store: Store) -> None:
    """A maker that wakes up late must not free what is no longer its own."""
    lost = await take(store, 0, 4)
    await expire(store)
    await take(store, 0, 4, holder="h2")
    await store.leases.release(lost)
    assert await store.leases.live(TENANT, "c1", span(0, 4), chain(100))


async def test_lease_renewed_at_the_last_moment_is_not_taken_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looked before the renewal is still refused by the statement that takes."""
    lease = await take(store, 0, 4)

    async def saw_nothing(*_: object) -> None:
        return None

    monkeypatch.setattr("app.store.lease.find_live", saw_nothing)
    assert isinstance(await store.leases.acquire(TENANT, "c2", span(0, 4), chain(100), "h2"), Busy)
    assert await store.leases.renew(lease)


async def test_only_the_holder_of_the_epoch_renews(store: Store) -> None:
    """Neither another holder nor an earlier epoch keeps a lease alive."""
    lease = await take(store, 0, 4)
    assert await store.leases.renew(lease)
    assert not await store.leases.renew(replace(lease, holder="h2"))
    assert not await store.leases.renew(replace(lease, epoch=lease.epoch - 1))
    assert not await store.leases.renew(replace(lease, tenant=STRANGER))


async def test_renewal_moves_the_end(store: Store) -> None:
    """A heartbeat gives the holder its whole time to live again."""
    lease = await take(store, 0, 4)
    await expire(store)
    assert await store.leases.renew(lease)
    assert await store.leases.live(TENANT, "c1", span(0, 4), chain(100))


async def test_heartbeat_after_the_release_revives_nothing(store: Store) -> None:
    """A heartbeat that was under way while its lease was released would keep others waiting for nobody."""
    lease = await take(store, 0, 4)
    await store.leases.release(lease)
    assert not await store.leases.renew(lease)
    assert not await store.leases.live(TENANT, "c1", span(0, 4), chain(100))


async def test_fence_refuses_an_epoch_that_was_taken_over(store: Store) -> None:
    """A maker that lost its lease stores nothing, even if it does not know yet."""
    lost = await take(store, 0, 4)
    await expire(store)
    await take(store, 0, 4, holder="h2")
    assert await store.leases.commit(lost, [chunk(0, 4)]) is None
    assert await store.request(chunks_in, TENANT, "default", chain(100)) == []


async def test_expired_lease_that_nobody_took_still_commits(store: Store) -> None:
    """The work is done and nobody else has begun it: throwing it away would help nobody."""
    lease = await take(store, 0, 4)
    await expire(store)
    assert await store.leases.commit(lease, [chunk(0, 4)])


async def test_many_tasks_at_once_get_one_grant(store: Store) -> None:
    """Of 40 requests that want the same chunk, one makes it."""
    answers = await asyncio.gather(
        *(store.leases.acquire(TENANT, f"c{number}", span(0, 4), chain(100), f"h{number}") for number in range(40))
    )
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


async def test_many_ranges_of_one_conversation_at_once_get_one_grant(store: Store) -> None:
    """No two rows collide here, so only taking turns keeps the second one out."""
    answers = await asyncio.gather(
        *(store.leases.acquire(TENANT, "c1", span(0, 1 + number), chain(100), f"h{number}") for number in range(40))
    )
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


async def test_two_stores_on_one_database_share_the_lease(open_store: OpenStore, shared_url: str) -> None:
    """What one replica is making, the other waits for."""
    stores = [open_store(shared_url) for _ in range(2)]
    for store in stores:
        await store.start()
    answers = await asyncio.gather(
        *(stores[n % 2].leases.acquire(TENANT, "c1", span(0, 4), chain(100), f"h{n}") for n in range(20))
    )
    assert sum(isinstance(answer, Lease) for answer in answers) == 1


async def test_waiter_sees_the_lease_until_it_ends(store: Store) -> None:
    """`live_lease` answers what `acquire` would, without taking anything."""
    lease = await take(store, 0, 4)
    assert await store.leases.live(TENANT, "c1", span(9, 10), chain(100))
    assert await store.leases.live(TENANT, "c2", span(0, 9), chain(100))
    assert not await store.leases.live(TENANT, "c2", span(0, 9), [digest(0), digest(9)])
    await store.leases.release(lease)
    assert not await store.leases.live(TENANT, "c1", span(9, 10), chain(100))
    assert await rows_of_leases(store) == 1


async def test_other_tenant_never_waits(store: Store) -> None:
    """The same ids and digests mean nothing to another tenant."""
    await take(store, 0, 4)
    assert not await store.leases.live(STRANGER, "c1", span(0, 4), chain(100))
    assert (await take(store, 0, 4, tenant=STRANGER)).epoch == 1


async def test_chunk_that_was_stored_meanwhile_does_not_block_the_lease(store: Store) -> None:
    """A lease is about work under way; whether the chunk exists is what the caller reads next."""
    await put(store, chunk(0, 4))
    assert (await take(store, 0, 4)).epoch == 2
