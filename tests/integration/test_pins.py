"""Pins: bound to a history once, found by it only, replaced and erased with their conversation."""

from __future__ import annotations

import asyncio

from sqlalchemy import func, select

from app.store import Store
from app.store.conversations import find_pins, set_pins
from app.store.tables import pins
from tests.integration.examples import STRANGER, TENANT, Replicas, chain, digest, seen

BRANCH = [*chain(3), *(digest(100 + number) for number in range(7))]
"""Like `chain(10)` for its first two messages."""


async def pin(store: Store, *positions: int, conversation_id: str = "c", tenant: str = TENANT) -> None:
    store.writes.record(seen(conversation_id, tenant=tenant))
    assert await store.rest_change(set_pins, tenant, conversation_id, positions) is not None


async def pins_in(
    store: Store, tenant: str, conversation_id: str, chain: list[bytes], *, bind: bool = True
) -> tuple[int, ...]:
    found = await store.read_prefix(tenant, conversation_id, chain, (), series=None, masks=None, bind=bind)
    return found.pins


async def test_a_pin_is_bound_by_the_first_request_that_is_long_enough(store: Store) -> None:
    await pin(store, 1, 5)
    assert await pins_in(store, TENANT, "c", chain(5)) == (1,)
    assert [one.digest for one in await store.rest(find_pins, TENANT, "c")] == [digest(2), None]
    assert await pins_in(store, TENANT, "c", chain(7)) == (1, 5)
    assert [one.digest for one in await store.rest(find_pins, TENANT, "c")] == [digest(2), digest(6)]


async def test_a_bound_pin_holds_by_its_history_and_not_by_its_position(store: Store) -> None:
    await pin(store, 1, 5)
    await pins_in(store, TENANT, "c", chain(10))
    assert await pins_in(store, TENANT, "c", BRANCH) == (1,)
    assert await pins_in(store, TENANT, "c", chain(4)) == (1,)
    assert await pins_in(store, TENANT, "c", chain(20)) == (1, 5)


async def test_pins_are_those_of_one_conversation_of_one_tenant(store: Store) -> None:
    await pin(store, 1)
    await pin(store, 2, tenant=STRANGER)
    assert await pins_in(store, TENANT, "c", chain(10)) == (1,)
    assert await pins_in(store, STRANGER, "c", chain(10)) == (2,)
    assert await pins_in(store, TENANT, "d", chain(10)) == ()


async def test_looking_binds_nothing(store: Store) -> None:
    """A dry run sees what the request would get."""
    await pin(store, 1, 50)
    assert await pins_in(store, TENANT, "c", chain(10), bind=False) == (1,)
    assert [one.digest for one in await store.rest(find_pins, TENANT, "c")] == [None, None]


async def test_of_two_branches_the_first_keeps_the_pin(replicas: Replicas) -> None:
    """Also where both saw it unbound, on two replicas."""
    await pin(replicas[0], *range(20))
    ours, theirs = [digest(number) for number in range(30)], [digest(500 + number) for number in range(30)]
    found = await asyncio.gather(pins_in(replicas[0], TENANT, "c", ours), pins_in(replicas[1], TENANT, "c", theirs))
    assert sorted(found, key=len) == [(), tuple(range(20))]


async def test_new_pins_replace_all_and_are_bound_anew(store: Store) -> None:
    await pin(store, 1, 5)
    await pins_in(store, TENANT, "c", chain(10))
    replaced = await store.rest_change(set_pins, TENANT, "c", [7, 5, 7])
    assert replaced is not None
    assert [(one.position, one.digest) for one in replaced] == [(5, None), (7, None)]
    assert await pins_in(store, TENANT, "c", BRANCH) == (5, 7)
    assert await store.rest_change(set_pins, TENANT, "c", []) == []
    assert await pins_in(store, TENANT, "c", BRANCH) == ()


async def test_nobody_pins_in_a_conversation_that_is_not_theirs(store: Store) -> None:
    await pin(store, 1)
    assert await store.rest_change(set_pins, STRANGER, "c", [1]) is None
    assert await store.rest_change(set_pins, TENANT, "d", [1]) is None
    assert await store.rest(find_pins, STRANGER, "c") == []
    assert len(await store.rest(find_pins, TENANT, "c")) == 1


async def test_pins_go_with_their_conversation(store: Store) -> None:
    await pin(store, 1)
    await pin(store, 2, tenant=STRANGER)
    assert await store.delete_conversation(TENANT, "c")
    store.writes.record(seen("c"))
    assert await pins_in(store, TENANT, "c", chain(10)) == ()
    assert await pins_in(store, STRANGER, "c", chain(10)) == (2,)


async def test_pins_set_while_the_conversation_is_deleted_do_not_outlive_it(replicas: Replicas) -> None:
    for _ in range(10):
        replicas[0].writes.record(seen("c"))
        await replicas[0].flush()
        setting = [replicas[0].rest_change(set_pins, TENANT, "c", [1, 2]) for _ in range(4)]
        await asyncio.gather(*setting[:2], replicas[1].delete_conversation(TENANT, "c"), *setting[2:])
        async with replicas[0].database.reading() as connection:
            assert await connection.scalar(select(func.count()).select_from(pins)) == 0
