"""Slots: nobody has the database to himself."""

from __future__ import annotations

import asyncio

import pytest

from app.store.slots import Slots


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_waits_for_its_own_turns_and_nobody_elses() -> None:
    slots = Slots(2)
    first, _ = [await slots.take("a") for _ in range(2)]
    third = asyncio.ensure_future(slots.take("a"))
    await slots.take("b")
    await settled()
    assert not third.done()
    first.close()
    await third


async def test_those_of_all_tenants_are_limited_too_and_one_tenant_cannot_take_the_queue() -> None:
    slots = Slots(1, 2)
    mine = await slots.take("a")
    waiting = [asyncio.ensure_future(slots.take("a")) for _ in range(5)]
    await settled()
    theirs = await slots.take("b")
    third = asyncio.ensure_future(slots.take("c"))
    await settled()
    assert not third.done()
    mine.close()
    await settled()
    assert third.done()
    assert not waiting[0].done()
    theirs.close()
    await waiting[0]
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("overall", [None, 1])
async def test_whoever_gives_up_leaves_nothing_behind(overall: int | None) -> None:
    slots = Slots(1, overall)
    first = await slots.take("a")
    for tenant in ("a", "b" if overall else "a"):
        second = asyncio.ensure_future(slots.take(tenant))
        await settled()
        second.cancel()
        await asyncio.wait({second})
    first.close()
    assert not slots._tenants
    with await slots.take("b"):
        assert slots._tenants
    assert not slots._tenants
