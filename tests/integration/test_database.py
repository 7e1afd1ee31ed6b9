"""The engine: URLs, and transactions that lose nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import update

from app.store import Claim, DatabaseUnusable, DatabaseURLError, Store
from app.store.chunks import chunks_in
from app.store.conversations import find_conversation
from app.store.engine import Address, read_url
from app.store.tables import conversations
from tests.faults.pgbouncer import pgbouncer
from tests.integration.examples import (
    SERIES,
    TENANT,
    OpenStore,
    StartStore,
    chain,
    chunk,
    digest,
    seen,
    span,
    take,
    unprepared,
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("memory", Address("memory", "", None, "memory")),
        ("sqlite://", Address("memory", "", None, "memory")),
        ("sqlite+aiosqlite:///:memory:", Address("memory", "", None, "memory")),
        ("sqlite:///steno.db", Address("file", "", Path("steno.db"), str(Path("steno.db").absolute()))),
        ("sqlite:////var/s.db", Address("file", "", Path("/var/s.db"), "/var/s.db")),
        ("sqlite:///s.db?key=s3cret", Address("file", "", Path("s.db"), str(Path("s.db").absolute()))),
        (
            "postgres://u:p%40@h:5433/db?ssl=require",
            Address("postgresql", "postgresql://u:p%40@h:5433/db?sslmode=require", None, "postgres://u:***@h:5433/db"),
        ),
        (
            "postgresql+asyncpg:///db?host=/run/pg&password=secret",
            Address(
                "postgresql", "postgresql:///db?host=%2Frun%2Fpg&password=secret", None, "postgresql+asyncpg:///db"
            ),
        ),
    ],
)
def test_url_is_understood_and_shown_without_its_password(url: str, expected: Address) -> None:
    """Plain URLs get their async driver, and asyncpg gets libpq's words."""
    assert read_url(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "",
        "steno.db",
        "mysql://user:s3cret@host/db",
        "postgresql://user:s3cret@host:port/db",
        "postgresql://user:x@s3cret@host/db",
        "postgresql://user:s3cret/more@host/db",
        "postgresql://user:x@s3cret?more@host/db",
        "://user:s3cret@host",
    ],
)
def test_malformed_url_is_refused_without_showing_the_password(url: str) -> None:
    """Neither the message nor what it was raised from goes to a log with a secret in it."""
    with pytest.raises(DatabaseURLError) as raised:
        Store(url)
    shown = f"{raised.value!r} {raised.value.__cause__!r} {raised.value.__context__!r}"
    assert "s3cret" not in shown
    assert isinstance(raised.value, ValueError)


async def test_option_that_asyncpg_does_not_take_is_a_url_error(open_store: OpenStore, postgres_url: str) -> None:
    """It shows only when connecting, and still names the option."""
    store = open_store(f"{postgres_url}{'&' if '?' in postgres_url else '?'}sslmode=banana")
    with pytest.raises(DatabaseURLError, match="sslmode"):
        await store.start()


async def test_file_that_cannot_be_opened_is_refused_by_name(open_store: OpenStore, tmp_path: Path) -> None:
    """Waiting would not make a folder of a file."""
    (tmp_path / "taken").touch()
    store = open_store(f"sqlite:///{tmp_path}/taken/steno.db")
    with pytest.raises(DatabaseUnusable, match=r"taken/steno\.db cannot be made"):
        await store.start()


async def test_file_that_is_no_database_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """It is somebody's file, and stays as it is."""
    path = tmp_path / "steno.db"
    path.write_bytes(b"Dear diary, " * 200)
    path.chmod(0o644)
    store = open_store(f"sqlite:///{path}")
    with pytest.raises(DatabaseUnusable, match="not a database"):
        await store.start()
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.read_bytes() == b"Dear diary, " * 200


async def test_wrong_role_is_refused_with_the_databases_own_words(open_store: OpenStore, postgres_url: str) -> None:
    """A rejected login does not heal by waiting."""
    store = open_store(postgres_url.replace("postgres:@", "nobody:s3cret@"))
    with pytest.raises(DatabaseUnusable, match="nobody") as raised:
        await store.start()
    assert "s3cret" not in str(raised.value)


async def test_missing_database_is_refused(open_store: OpenStore, postgres_url: str) -> None:
    """A misspelt name is the operator's to mend."""
    store = open_store(postgres_url.replace("/steno_", "/absent_"))
    with pytest.raises(DatabaseUnusable, match="does not exist"):
        await store.start()


ADD = """
import asyncio, sys
from sqlalchemy import select, update
from app.store.engine import Database
from app.store.tables import conversations
from app.store.chunks import chunks_in

async def main():
    database = Database(sys.argv[1])
    for _ in range(50):
        async with database.writing(patient=True) as connection:
            before = await connection.scalar(select(conversations.c.messages).with_for_update())
            await connection.execute(update(conversations).values(messages=before + 1))
    await database.close()

asyncio.run(main())
"""


async def test_two_processes_on_one_database_lose_no_update(start_store: StartStore, shared_url: str) -> None:
    """SQLite too: the write lock is taken before anything is read, and waited for."""
    store = await start_store(shared_url)
    store.writes.record(seen(messages=0))
    await store.flush()
    processes = [await asyncio.create_subprocess_exec(sys.executable, "-c", ADD, shared_url) for _ in range(2)]
    assert [await process.wait() for process in processes] == [0, 0]
    found = await store.rest(find_conversation, TENANT, "c1")
    assert found is not None
    assert found.messages == 100


async def test_reads_do_not_wait_for_a_writer(start_store: StartStore, shared_url: str) -> None:
    """A flush of another process holds the write lock; a request's look-up goes on."""
    store = await start_store(shared_url)
    async with store.database.writing() as connection:
        await connection.execute(update(conversations).values(messages=1))
        assert await store.heads(TENANT, [b"x"]) == []


async def test_store_works_without_prepared_statements(start_store: StartStore, postgres_url: str) -> None:
    """Behind PgBouncer in transaction mode nothing prepared can be relied on."""
    store = await start_store(unprepared(postgres_url))
    for end in (1, 2):
        await store.release_lease(await take(store, 0, end))
    async with store.database.reading() as connection:
        named = await connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements")
        assert named.scalar_one() <= 1  # the one that asks


@pytest.fixture
async def pooled(start_store: StartStore, postgres_url: str) -> AsyncIterator[Store]:
    """On a PgBouncer with two connections, without prepared statements."""
    with pgbouncer(postgres_url) as url:
        store = await start_store(unprepared(url))
        yield store


async def test_store_works_behind_pgbouncer_in_transaction_mode(pooled: Store) -> None:
    """Each transaction, and each query outside of one, may meet another connection than the one before."""
    store = pooled

    async def compact(tenant: str) -> None:
        for start, end in ((0, 4), (4, 8)):
            lease = await take(store, start, end, tenant=tenant)
            assert await store.renew_lease(lease)
            assert await store.keep_chunks(lease, [chunk(start, end)])
            await store.release_lease(lease)
            assert not await store.is_busy(Claim(tenant, "c1", span(start, end), chain(10)))
            assert len(await store.request(chunks_in, tenant, SERIES, chain(10))) == end // 4
        store.writes.record(seen(tenant=tenant, heads=((digest(1), 1),)))

    await asyncio.gather(*(compact(f"tenant {number}") for number in range(20)))
    await store.flush()
    for number in range(20):
        assert len(await store.heads(f"tenant {number}", [digest(1)])) == 1
    assert (store.reason, store.writes.conversations.dropped) == (None, 0)
