"""A standby: what is read of it is what the database has, and it is done without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store import DatabaseURLError, Store
from app.store.conversation_rows import find_conversation
from tests.faults.proxy import FaultProxy, Name
from tests.integration.examples import TENANT, seen

pytestmark = pytest.mark.slow


@pytest.fixture
async def gate(standby_url: str) -> AsyncIterator[FaultProxy]:
    """The network to the standby."""
    with FaultProxy(standby_url) as gate:
        yield gate


@pytest.fixture
async def store(postgres_url: str, gate: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    """On a database with a standby, which may be slow to follow."""
    for bound, seconds in {
        "standby.FOLLOW_SECONDS": 5.0,
        "standby.ANSWER_SECONDS": 8.0,
        "calls.REST_SECONDS": 20.0,
    }.items():
        monkeypatch.setattr(f"app.store.{bound}", seconds)
    store = Store(postgres_url, timeout=5.0, read_url=gate.url)
    await store.start()
    yield store
    await store.close()


async def requests_of(store: Store) -> int:
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    return found.requests


async def is_at_standby(connection: AsyncConnection, _: str) -> bool:
    return bool((await connection.execute(text("SELECT pg_is_in_recovery()"))).scalar_one())


async def test_what_was_just_stored_is_read_from_the_standby(store: Store) -> None:
    """It is waited for until it has it."""
    for number in range(1, 20):
        store.writes.record(seen())
        assert await requests_of(store) == number
        assert await store.rest(is_at_standby, TENANT)


async def test_a_standby_that_is_behind_is_not_read(store: Store, standby_url: str) -> None:
    """Until it has followed, and without asking it anew each time."""
    connection = await asyncpg.connect(standby_url)
    await connection.execute("SELECT pg_wal_replay_pause()")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.store.standby.FOLLOW_SECONDS", 0.1)
        patched.setattr("app.store.standby.AVOIDED_SECONDS", 0.2)
        store.writes.record(seen())
        for _ in range(3):
            assert await requests_of(store) == 1
            assert not await store.rest(is_at_standby, TENANT)
    await connection.execute("SELECT pg_wal_replay_resume()")
    await connection.close()
    await asyncio.sleep(0.3)
    assert await store.rest(is_at_standby, TENANT)


@pytest.mark.parametrize("fault", ["refuse", "black hole"])
async def test_a_standby_that_is_away_is_done_without(store: Store, gate: FaultProxy, fault: Name) -> None:
    """Within the time that the REST API allows, also where it is silent."""
    assert await store.rest(is_at_standby, TENANT)
    gate.inject(fault)
    store.writes.record(seen())
    assert await requests_of(store) == 1
    assert not await store.rest(is_at_standby, TENANT)
    assert store.state == "ok"


async def test_a_standby_is_of_postgresql(postgres_url: str) -> None:
    """A file has none."""
    with pytest.raises(DatabaseURLError, match="standby"):
        Store("memory", read_url=postgres_url)
