"""Outages: no caller waits longer than it said, and a database that comes back is used again by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import Claim, Lease, Store, StoreUnavailable, leases
from app.store.chunks import chunks_in, keep_mask
from app.store.conversations import find_conversation
from app.store.engine import _LIMITS_SINCE_17, COMMAND_SECONDS, CONNECT_SECONDS
from tests.databases import SMALL_POOL
from tests.faults.proxy import Fault, FaultProxy, Way
from tests.integration.examples import (
    SERIES,
    TENANT,
    OpenStore,
    StartStore,
    chain,
    chunk,
    digest,
    put,
    seen,
    span,
    take,
    unprepared,
    until,
)

Call = Callable[[Store], Awaitable[object]]

REQUEST_PATH: dict[str, Call] = {
    "chunks_in": lambda store: store.request(chunks_in, TENANT, SERIES, chain(10)),
    "heads": lambda store: store.heads(TENANT, [digest(1)]),
    "acquire": lambda store: store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1"),
    "is_busy": lambda store: store.is_busy(Claim(TENANT, "c1", span(0, 4), chain(10))),
}

LIMITS = "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"
ASK_LIMITS = "SELECT concat_ws(' ', " + ", ".join(f"current_setting('{name}')" for name in LIMITS) + ")"


async def seconds_refused(call: Awaitable[object]) -> float:
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await call
    return time.monotonic() - began


async def test_unreachable_database_does_not_keep_steno_from_starting(
    start_store: StartStore, gate: FaultProxy
) -> None:
    """It says why, refuses at once, and is migrated and used as soon as it appears."""
    gate.inject("refuse")
    store = await start_store(gate.url, 30.0)
    assert str(store.reason) == "the database cannot be reached (Connection refused)"
    for call in REQUEST_PATH.values():
        assert await seconds_refused(call(store)) < 15
    store.writes.record(seen())
    gate.heal()
    await until(store.ready.is_set)
    assert store.reason is None
    assert await store.rest(find_conversation, TENANT, "c1") is not None


@pytest.mark.parametrize("name", REQUEST_PATH)
async def test_silent_database_holds_no_request_longer_than_the_bound(
    start_store: StartStore, gate: FaultProxy, name: str
) -> None:
    """Neither on a connection that is open nor on one that would have to be made."""
    store = await start_store(gate.url)
    await REQUEST_PATH[name](store)
    store.timeout = 0.5
    gate.inject("black hole")
    calls = [seconds_refused(REQUEST_PATH[name](store)) for _ in range(2)]
    took = await asyncio.gather(*calls)
    assert min(took) > 0.45
    assert max(took) < CONNECT_SECONDS


async def test_restarted_database_costs_no_request(start_store: StartStore, gate: FaultProxy) -> None:
    """Connections that the server closed are noticed before they are used."""
    store = await start_store(gate.url)
    await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(5)))
    gate.inject("refuse")
    await asyncio.sleep(0.1)
    gate.heal()
    for _ in range(10):
        assert await store.heads(TENANT, [digest(1)]) == []


async def test_statement_the_database_refuses_does_not_open_the_breaker(store: Store) -> None:
    """Otherwise one client with an odd request could take the store away from everybody."""

    async def nonsense(connection: AsyncConnection) -> None:
        await connection.execute(text("SELECT nonsense"))

    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="refused"):
            await store.request(nonsense)
    assert store.reason is None


@pytest.mark.parametrize("seconds", [0.3, 2.2], ids=["hiccup", "restart"])
async def test_commit_outlives_a_short_outage(start_store: StartStore, gate: FaultProxy, seconds: float) -> None:
    """A summary took half a minute to make. A database that restarts refuses at once, for some seconds: the tries must
    not all be over by then."""
    store = await start_store(gate.url)
    held = await take(store, 0, 4)
    gate.inject("refuse")
    committing = asyncio.ensure_future(store.keep_chunks(held, [chunk(0, 4)]))
    await asyncio.sleep(seconds)
    gate.heal()
    stored = await committing
    assert stored is not None
    assert [one.id for one in stored] == ["chunk-0-4"]


async def test_lease_granted_after_its_request_gave_up_is_given_back(
    start_store: StartStore, postgres_url: str
) -> None:
    """Otherwise everybody would wait fifteen seconds for nobody."""
    store = await start_store(postgres_url)
    store.timeout = 0.25
    take_turns, gave_up = leases._take_turns, asyncio.Event()

    async def slowly(*arguments: Any) -> None:
        await take_turns(*arguments)
        await gave_up.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_take_turns", slowly)
        await seconds_refused(store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1"))
        gave_up.set()
        store.timeout = 5.0
        await store.guard.abandoned_calls(10)
    assert isinstance(await store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h2"), Lease)


@pytest.mark.parametrize("way", ["up", "down"])
async def test_replica_cut_off_in_a_transaction_is_in_the_way_of_one_conversation_for_some_seconds(
    start_store: StartStore, gate: FaultProxy, postgres_url: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else's breaker opens for it: the database says in time that somebody has the lock.

    Up: the server waits for the next statement. Down: it has prepared one and waits to be told to execute it.
    """
    monkeypatch.setitem(_LIMITS_SINCE_17, "transaction_timeout", "4s")
    cut_off, well = await start_store(gate.url, 0.25), await start_store(postgres_url, 3.0)
    gate.inject(Fault("black hole", way, seen=(b"INSERT INTO leases",)), times=1)
    began = time.monotonic()
    taken: object = None
    await seconds_refused(cut_off.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1"))
    await until(lambda: bool(gate.injected["black hole"]))
    for number in range(2):
        taken = await well.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h2")
        assert taken == "busy" or time.monotonic() - began > 2.5
        await take(well, 10 + number, 20, conversation_id=f"other {number}")
    assert well.reason is None
    async with asyncio.timeout(30):
        while taken == "busy":
            taken = await well.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h2")


async def test_limits_of_a_transaction_end_with_it_behind_a_pooler(open_store: OpenStore, postgres_url: str) -> None:
    """There a session is nobody's."""
    seen = []
    store = open_store(unprepared(postgres_url), 0.25)
    for opened in (store.database.writing(), store.database.writing(patient=True), store.database.reading()):
        async with opened as connection:
            seen.append((await connection.exec_driver_sql(ASK_LIMITS)).scalar_one())
    assert seen == ["200ms 4500ms 3s", "4s 4500ms 3s", "0 0 0"]


def lose_connections(gate: FaultProxy) -> None:
    """Nothing passes any more on those that are open, and new ones work."""
    for connection in list(gate._connections):
        gate._loop.call_soon_threadsafe(connection._flowing.clear)


async def fill_pool(store: Store, connections: int) -> None:
    async with AsyncExitStack() as held:
        for _ in range(connections):
            await held.enter_async_context(store.database.reading())


async def test_connections_that_died_in_silence_are_not_tried_one_by_one_once_the_breaker_opened(
    open_store: OpenStore, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a failover, or when a router forgot them: new ones work at once."""
    monkeypatch.setattr("app.store.engine.COMMAND_SECONDS", 60.0)  # None of them tells the pool.
    store = open_store(gate.url, 0.25)
    store.guard._open_seconds = 0.5
    await store.start()
    await fill_pool(store, 15)
    lose_connections(gate)
    for _ in range(3):
        await seconds_refused(store.heads(TENANT, [digest(1)]))
    await until(lambda: store.reason is None)
    store.timeout = 5
    answers = await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(12)))
    assert answers == [[]] * 12


async def test_one_command_that_is_not_answered_makes_the_pool_new(
    start_store: StartStore, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where requests are rare the breaker never opens, and each would meet another dead connection."""
    monkeypatch.setattr("app.store.engine.COMMAND_SECONDS", 1.5)
    store = await start_store(gate.url)
    await fill_pool(store, 10)
    lose_connections(gate)
    await seconds_refused(store.heads(TENANT, [digest(1)]))
    answers = await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(8)))
    assert answers == [[]] * 8


async def test_connections_to_a_server_that_was_demoted_are_not_kept(
    start_store: StartStore, postgres_url: str
) -> None:
    """It still reads, so nothing else would end them; new ones lead to the one that took its place."""
    store = await start_store(postgres_url)
    async with AsyncExitStack() as held:
        for _ in range(4):
            connection = await held.enter_async_context(store.database.reading())
            await connection.execute(text("SET default_transaction_read_only = on"))
    store.writes.record(seen())
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.flush()
    await store.flush()
    await asyncio.gather(*(take(store, number, 90, conversation_id=f"c{number}") for number in range(4)))
    assert store.writes.conversations.dropped == 0


async def test_client_that_leaves_does_not_break_the_connection(store: Store) -> None:
    """The wait is cancelled, the statement is not; late grants are given back."""
    for _ in range(20):
        call = asyncio.ensure_future(store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1"))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    await store.guard.abandoned_calls(10)
    assert not await store.is_busy(Claim(TENANT, "c1", span(0, 4), chain(10)))
    assert isinstance(await store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h2"), Lease)


async def test_locked_sqlite_file_holds_no_request_longer_than_the_bound(
    open_store: OpenStore, sqlite_url: str
) -> None:
    """SQLite waits up to five seconds for the write lock, in a thread that nobody waits for."""
    store, other_process = open_store(sqlite_url), open_store(sqlite_url)
    await store.start()
    store.timeout = 0.5
    async with other_process.database.writing():
        took = await seconds_refused(store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h1"))
    assert took < 4
    store.timeout = 5.0
    await store.guard.abandoned_calls(10)
    assert isinstance(await store.take_lease(Claim(TENANT, "c1", span(0, 4), chain(10)), "h2"), Lease)


@pytest.mark.usefixtures("small_pool")
async def test_crowd_before_connections_that_are_all_in_use_waits_no_longer_than_the_bound(
    open_store: OpenStore, postgres_url: str
) -> None:
    """Waiting for one of five connections counts as waiting for the database; afterwards all five are free again."""
    store = open_store(postgres_url)
    store.guard._open_seconds = 0.5
    await store.start()
    store.timeout = 0.5
    async with AsyncExitStack() as held:
        for _ in range(SMALL_POOL):
            await held.enter_async_context(store.database.reading())
        took = await asyncio.gather(*(seconds_refused(store.heads(TENANT, [digest(n)])) for n in range(500)))
    assert max(took) < COMMAND_SECONDS
    await until(lambda: store.reason is None)
    store.timeout = 5.0
    await store.guard.abandoned_calls(10)
    assert await store.heads(TENANT, [digest(1)]) == []
    pool: Any = store.database.engine.pool
    assert (pool.checkedout(), pool.checkedin()) == (0, SMALL_POOL)


async def make_read_only(url: str, on: bool) -> None:
    """For every session from here on; those that are there end."""
    name, administrator = urlsplit(url).path.removeprefix("/"), await asyncpg.connect(url)
    try:
        await administrator.execute("set default_transaction_read_only = off")
        await administrator.execute(
            f'alter database "{name}" set default_transaction_read_only = {"on" if on else "off"}'
        )
        await administrator.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()",
            name,
        )
    finally:
        await administrator.close()


async def test_a_database_that_can_only_be_read_is_told_of_until_what_waits_is_stored(
    start_store: StartStore, shared_url: str
) -> None:
    """A read-only volume, a standby. What is there is read."""
    store = await start_store(shared_url)
    await put(store, chunk(0, 4))
    pragma = "ON"

    def set_up(connection: Any, *_: Any) -> None:
        connection.cursor().execute(f"PRAGMA query_only={pragma}")

    if shared_url.startswith("sqlite"):
        event.listen(store.database.engine.sync_engine, "checkout", set_up)
    else:
        await make_read_only(shared_url, True)
    store.writes.record(seen())
    await until(lambda: store.writes.reason is not None)
    assert "read" in str(store.writes.reason)
    assert "writ" in str(store.remedy)
    assert (store.reason, len(await store.request(chunks_in, TENANT, SERIES, chain(9)))) == (None, 1)
    pragma = "OFF"
    if shared_url.startswith("postgres"):
        await make_read_only(shared_url, False)
    await until(lambda: store.writes.reason is None)
    assert store.remedy is None


async def test_a_full_disk_is_told_of_as_long_as_something_waits_for_it(
    open_store: OpenStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not whenever something small still fits."""
    monkeypatch.setattr("app.store.write_behind.RETRY_SECONDS", 0.05)
    store, most = open_store(sqlite_url), 1
    await store.start()

    def set_up(connection: Any, *_: Any) -> None:
        connection.cursor().execute(f"PRAGMA max_page_count={most}")  # At least what there is already.

    event.listen(store.database.engine.sync_engine, "checkout", set_up)
    store.writes.record(seen("c2", coverage="x" * 100_000))
    await until(lambda: store.writes.reason is not None)
    for _ in range(20):
        await asyncio.sleep(0.02)
        assert "full" in str(store.writes.reason)
        assert store.writes.conversations.number == 1
    most = 1_000_000
    await until(lambda: store.writes.reason is None)
    assert (store.writes.conversations.number, store.writes.conversations.dropped) == (0, 0)


async def test_closing_ends_although_the_database_is_silent(
    start_store: StartStore, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shutdown has thirty seconds in all; the store takes a part of them."""
    for name in ("engine.CLOSE_SECONDS", "store.CLOSE_SECONDS", "store.COMMAND_SECONDS", "store.FLUSH_SECONDS"):
        monkeypatch.setattr(f"app.store.{name}", 0.3)
    store = await start_store(gate.url, 0.25)
    store.writes.record(seen())
    gate.inject("black hole")
    await seconds_refused(store.heads(TENANT, [digest(1)]))
    async with asyncio.timeout(30):
        await store.close()
    assert not [task for task in asyncio.all_tasks() if "store" in str(task.get_coro())]


async def test_closing_while_the_database_is_away_ends_at_once(
    start_store: StartStore, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to wait for."""
    gate.inject("refuse")
    store = await start_store(gate.url, 0.25)
    monkeypatch.setattr("app.store.engine.CLOSE_SECONDS", 60.0)
    async with asyncio.timeout(30):
        await store.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
async def test_store_leaves_no_descriptor_behind(start_store: StartStore, shared_url: str) -> None:
    """Connections, files and locks are all closed."""
    before = descriptors()
    for _ in range(3):
        store = await start_store(shared_url)
        await asyncio.gather(*(store.heads(TENANT, [digest(1)]) for _ in range(8)))
        await store.close()
    await until(lambda: descriptors() <= before)


async def test_who_writes_waits_for_others_of_its_process_longer_than_for_the_database(
    start_store: StartStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is well, and says so."""
    monkeypatch.setattr("app.store.engine.QUEUE_SECONDS", 30.0)
    store, begun = await start_store(sqlite_url, 0.25), asyncio.Event()
    held = await take(store, 0, 4)

    async def write() -> None:
        async with store.database.writing():
            begun.set()
            await asyncio.sleep(0.5)

    writing = asyncio.ensure_future(write())
    await begun.wait()
    kept = store.request_change(keep_mask, TENANT, "flat", digest(1), digest(0), "c1")
    renewed, _, _ = await asyncio.gather(store.renew_lease(held), kept, writing)
    assert renewed
    assert store.reason is None


async def test_waiting_for_others_of_its_process_takes_nothing_from_the_time_of_a_call(
    start_store: StartStore, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a large history of another tenant: together they take longer than the bound, and each does not."""
    store = await start_store(sqlite_url, 1.0)
    take_turns = leases._take_turns

    async def slowly(*arguments: Any) -> None:
        await take_turns(*arguments)
        await asyncio.sleep(0.6)

    async def write() -> None:
        async with store.database.writing():
            await asyncio.sleep(0.55)

    monkeypatch.setattr(leases, "_take_turns", slowly)
    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0)
    await take(store, 0, 4)
    await writing
