"""Turns at the database: what is read for the REST API keeps neither requests nor other tenants from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.store import Page, Store, StoreUnavailable
from app.store.calls import ALL_REST_SLOTS, REQUEST_SLOTS, REST_SLOTS
from app.store.chunks import chunks_in
from app.store.places import keep_mask
from tests.integration.examples import SERIES, STRANGER, TENANT, OpenStore, chain, chunk, put, take


class Slow:
    """A search that takes as long as it is told to."""

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.end = asyncio.Event()

    async def __call__(self, _connection: object, tenant: str) -> Page[Any]:
        self.under_way.append(tenant)
        await self.end.wait()
        return Page([], None, None, has_more=False)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


def search(store: Store, query: Slow, tenant: str = TENANT) -> asyncio.Task[Page[Any]]:
    return asyncio.ensure_future(store.rest(query, tenant))


async def test_reads_of_one_tenant_take_turns_and_others_have_theirs(store: Store, database_url: str) -> None:
    if database_url == "memory":
        pytest.skip("one connection for all")
    slow = Slow()
    asked = [search(store, slow) for _ in range(12)]
    others = [search(store, slow, STRANGER) for _ in range(12)]
    third = search(store, slow, "third")
    await until(lambda: len(slow.under_way) >= ALL_REST_SLOTS)
    await asyncio.sleep(0.05)
    assert sorted(slow.under_way) == [TENANT] * REST_SLOTS + [STRANGER] * REST_SLOTS
    assert await store.request(chunks_in, TENANT, SERIES, chain(3)) == []
    await put(store, chunk(0, 4))
    assert store.state == "ok"
    slow.end.set()
    await asyncio.gather(*asked, *others, third)


async def test_reads_that_take_too_long_are_told_and_leave_the_breaker_alone(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were begun keep their turns until they end: the database is still at it."""
    if database_url == "memory":
        pytest.skip("one connection for all")
    monkeypatch.setattr("app.store.calls.REST_SECONDS", 0.2)
    slow = Slow()
    told = await asyncio.gather(*(search(store, slow) for _ in range(6)), return_exceptions=True)
    assert all(isinstance(error, StoreUnavailable) for error in told)
    assert sorted({str(error)[:20] for error in told}) == ["no turn within 0 s: ", "the database did not"]
    assert len(slow.under_way) == REST_SLOTS
    assert await store.request(chunks_in, TENANT, SERIES, chain(3)) == []
    assert store.state == "ok"
    slow.end.set()
    await until(lambda: not store._rest_slots._tenants)
    monkeypatch.setattr("app.store.calls.REST_SECONDS", 5.0)
    await search(store, slow)


@pytest.mark.slow
async def test_a_burst_of_one_tenants_requests_is_no_failure_of_the_database(
    open_store: OpenStore, shared_url: str
) -> None:
    """They wait for each other, and another tenant for no more than those that have a turn."""
    store = open_store(shared_url, timeout=1.0)
    await store.start()

    async def one(number: int) -> None:
        await store.request(chunks_in, TENANT, SERIES, chain(3))
        await store.request_change(keep_mask, TENANT, "m", number.to_bytes(2, "big"), b"", f"c{number}")

    burst = [asyncio.ensure_future(one(number)) for number in range(20 * REQUEST_SLOTS)]
    await asyncio.sleep(0)
    lease = await take(store, 0, 4, tenant=STRANGER)
    assert not all(task.done() for task in burst)
    await asyncio.gather(*burst)
    assert await store.leases.commit(lease, [chunk(0, 4)])
    assert store.state == "ok"
