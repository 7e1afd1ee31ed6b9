"""Turns: nobody has the database to himself."""

from __future__ import annotations

import asyncio

import pytest

from app.store.turns import Turns


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_tenant_waits_for_its_own_turns_and_nobody_elses() -> None:
    turns = Turns(2)
    first, _ = [await turns.take("a") for _ in range(2)]
    third = asyncio.ensure_future(turns.take("a"))
    await turns.take("b")
    await settled()
    assert not third.done()
    first.end()
    await third


async def test_those_of_all_tenants_are_limited_too_and_one_tenant_cannot_take_the_queue() -> None:
    turns = Turns(1, 2)
    mine = await turns.take("a")
    waiting = [asyncio.ensure_future(turns.take("a")) for _ in range(5)]
    await settled()
    theirs = await turns.take("b")
    third = asyncio.ensure_future(turns.take("c"))
    await settled()
    assert not third.done()
    mine.end()
    await settled()
    assert third.done()
    assert not waiting[0].done()
    theirs.end()
    await waiting[0]
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize("overall", [None, 1])
async def test_whoever_gives_up_leaves_nothing_behind(overall: int | None) -> None:
    turns = Turns(1, overall)
    first = await turns.take("a")
    for tenant in ("a", "b" if overall else "a"):
        second = asyncio.ensure_future(turns.take(tenant))
        await settled()
        second.cancel()
        await asyncio.wait({second})
    first.end()
    assert not turns._tenants
    async with turns.taken("b"):
        assert turns._tenants
    assert not turns._tenants
