"""Outages: no caller waits longer than it said, and a database that comes back is used again by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from app.store import Lease, Store, StoreUnavailable
from tests.faults.proxy import FaultProxy
from tests.integration.examples import SERIES, TENANT, OpenStore, chain, chunk, digest, seen, span, take

Call = Callable[[Store], Awaitable[object]]

REQUEST_PATH: dict[str, Call] = {
    "chunks_in": lambda store: store.chunks_in(TENANT, SERIES, chain(10)),
    "heads": lambda store: store.heads(TENANT, [digest(1)]),
    "acquire": lambda store: store.acquire(TENANT, "c1", span(0, 4), chain(10), "h1"),
    "live_lease": lambda store: store.live_lease(TENANT, "c1", span(0, 4), chain(10)),
}


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.02)


async def seconds_refused(call: Awaitable[object]) -> float:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    return time.monotonic() - began


async def test_unreachable_database_does_not_keep_steno_from_starting(open_store: OpenStore, gate: FaultProxy) -> None:
    """It says why, refuses at once, and is migrated and used as soon as it appears."""
    gate.inject("refuse")
    store = open_store(gate.url, 0.25)
    await store.start()
    assert (store.state, store.reason) == ("degraded", "the database cannot be reached (Connection refused)")
    for call in REQUEST_PATH.values():
        assert await seconds_refused(call(store)) < 0.1
    store.record(seen())
    gate.heal()
    assert await store.wait_ready(20)
    assert (store.state, store.reason) == ("ok", None)
    assert await store.conversation(TENANT, "c1") is not None


async def test_database_that_is_silent_at_the_start_is_used_once_it_answers(
    open_store: OpenStore, gate: FaultProxy
) -> None:
    """Connecting has an end of its own, so start() returns."""
    gate.inject("black hole")
    store = open_store(gate.url, 0.25)
    async with asyncio.timeout(6):
        await store.start()
    assert store.state == "degraded"
    assert not await store.wait_ready(0.1)
    gate.heal()
    assert await store.wait_ready(20)


@pytest.mark.parametrize("name", REQUEST_PATH)
async def test_silent_database_holds_no_request_longer_than_the_bound(
    open_store: OpenStore, gate: FaultProxy, name: str
) -> None:
    """Neither on a connection that is open nor on one that would have to be made."""
    store = open_store(gate.url, 0.25)
    await store.start()
    await REQUEST_PATH[name](store)
    gate.inject("black hole")
    calls = [seconds_refused(REQUEST_PATH[name](store)) for _ in range(2)]
    took = await asyncio.gather(*calls)
    assert min(took) > 0.2
    assert max(took) < 0.45


async def test_breaker_spares_requests_the_wait_and_closes_by_itself(open_store: OpenStore, gate: FaultProxy) -> None:
    """Three failures in a row open it; a probe, not a request, finds out that all is well."""
    store = open_store(gate.url, 0.25)
    store._guard._open_seconds = 0.5
    await store.start()
    gate.inject("black hole")
    for _ in range(3):
        await seconds_refused(store.heads(TENANT, [digest(1)]))
    assert store.state == "degraded"
    assert await seconds_refused(store.heads(TENANT, [digest(1)])) < 0.05
    gate.heal()
    await until(lambda: store.state == "ok")
    assert await store.heads(TENANT, [digest(1)]) == []


async def test_restarted_database_costs_no_request(open_store: OpenStore, gate: FaultProxy) -> None:
    """Connections that the server closed are noticed before they are used."""
    store = open_store(gate.url)
    await store.start()
    await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(5)))
    gate.inject("refuse")
    await asyncio.sleep(0.1)
    gate.heal()
    for _ in range(10):
        assert await store.heads(TENANT, [digest(1)]) == []


async def test_statement_the_database_refuses_does_not_open_the_breaker(store: Store) -> None:
    """Otherwise one client with an odd request could take the store away from everybody."""

    async def nonsense() -> None:
        async with store._database.reading() as connection:
            await connection.execute(text("SELECT nonsense"))

    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="refused"):
            await store._guarded(nonsense)
    assert store.state == "ok"


async def test_commit_outlives_a_short_outage(open_store: OpenStore, gate: FaultProxy) -> None:
    """A summary took half a minute to make; it is not lost to a hiccup."""
    store = open_store(gate.url)
    await store.start()
    lease = await take(store, 0, 4)
    gate.inject("refuse")
    committing = asyncio.ensure_future(store.commit(lease, [chunk(0, 4)]))
    await asyncio.sleep(0.3)
    gate.heal()
    stored = await committing
    assert stored is not None
    assert [one.id for one in stored] == ["chunk-0-4"]


async def test_commit_gives_up_within_about_ten_seconds(open_store: OpenStore, gate: FaultProxy) -> None:
    """Five tries, and then the compaction task is told."""
    store = open_store(gate.url)
    await store.start()
    lease = await take(store, 0, 4)
    gate.inject("black hole")
    assert 8 < await seconds_refused(store.commit(lease, [chunk(0, 4)])) < 11


async def test_requests_are_recorded_during_an_outage_and_stored_after_it(
    open_store: OpenStore, gate: FaultProxy
) -> None:
    """Nothing is lost, and nothing waits."""
    store = open_store(gate.url)
    await store.start()
    gate.inject("refuse")
    for turn in (1, 2, 3):
        store.record(seen(turns=turn))
    await asyncio.sleep(0.5)
    gate.heal()
    found = await store.conversation(TENANT, "c1")
    assert found is not None
    assert (found.requests, store.dropped) == (3, 0)


async def test_lease_granted_after_its_request_gave_up_is_given_back(open_store: OpenStore, postgres_url: str) -> None:
    """Otherwise everybody would wait fifteen seconds for nobody."""
    store = open_store(postgres_url, 0.25)
    await store.start()
    async with store._database.writing() as connection:
        await connection.execute(text("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE"))
        await seconds_refused(store.acquire(TENANT, "c1", span(0, 4), chain(10), "h1"))
    await store._guard.abandoned_calls(10)
    answer = await store.acquire(TENANT, "c1", span(0, 4), chain(10), "h2")
    assert isinstance(answer, Lease)
    assert answer.epoch == 2


async def test_client_that_leaves_does_not_break_the_connection(store: Store) -> None:
    """The wait is cancelled, the statement is not; late grants are given back."""
    for _ in range(20):
        call = asyncio.ensure_future(store.acquire(TENANT, "c1", span(0, 4), chain(10), "h1"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await store._guard.abandoned_calls(10)
    assert not await store.live_lease(TENANT, "c1", span(0, 4), chain(10))
    assert isinstance(await store.acquire(TENANT, "c1", span(0, 4), chain(10), "h2"), Lease)


async def test_locked_sqlite_file_holds_no_request_longer_than_the_bound(
    open_store: OpenStore, sqlite_url: str
) -> None:
    """SQLite waits up to five seconds for the write lock, in a thread that nobody waits for."""
    store = open_store(sqlite_url, 0.25)
    await store.start()
    async with store._database.writing():
        took = await seconds_refused(store.acquire(TENANT, "c1", span(0, 4), chain(10), "h1"))
    assert took < 0.45
    await store._guard.abandoned_calls(10)
    assert isinstance(await store.acquire(TENANT, "c1", span(0, 4), chain(10), "h2"), Lease)


async def test_closing_ends_although_the_database_is_silent(open_store: OpenStore, gate: FaultProxy) -> None:
    """Shutdown has thirty seconds in all; the store takes a part of them."""
    store = open_store(gate.url, 0.25)
    await store.start()
    store.record(seen())
    gate.inject("black hole")
    await seconds_refused(store.heads(TENANT, [digest(1)]))
    began = time.monotonic()
    await store.close()
    assert time.monotonic() - began < 12
    assert not [task for task in asyncio.all_tasks() if "store" in str(task.get_coro())]


async def test_closing_cuts_idle_connections_that_do_not_answer(open_store: OpenStore, gate: FaultProxy) -> None:
    """asyncpg's own close() waits for the server to say goodbye."""
    store = open_store(gate.url, 0.25)
    await store.start()
    await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(3)))
    gate.inject("black hole")
    async with asyncio.timeout(4):
        await store.close()


async def test_closing_while_the_database_is_away_ends_at_once(open_store: OpenStore, gate: FaultProxy) -> None:
    """There is nothing to wait for."""
    gate.inject("refuse")
    store = open_store(gate.url, 0.25)
    await store.start()
    async with asyncio.timeout(2):
        await store.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
async def test_store_leaves_no_descriptor_behind(open_store: OpenStore, shared_url: str) -> None:
    """Connections, files and locks are all closed."""
    before = descriptors()
    for _ in range(3):
        store = open_store(shared_url)
        await store.start()
        await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(8)))
        await store.close()
    await asyncio.sleep(0.1)
    assert descriptors() <= before
