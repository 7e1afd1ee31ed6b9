"""The secret of a database: the first one is kept, and a store with another one does not start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from app.store import DatabaseUnusable, Store
from app.store.engine import Database
from app.store.schema import NEWEST
from tests.release_0_1 import make_release_0_1

OpenWith = Callable[[bytes | None], Store]

RIGHT, WRONG = b"the secret of this database", b"the secret of another one"


@pytest.fixture
async def open_with(empty_url: str) -> AsyncIterator[OpenWith]:
    """Opens stores on one empty database, each with a secret."""
    opened: list[Store] = []

    def open_one(secret: bytes | None) -> Store:
        opened.append(Store(empty_url, timeout=5.0, secret=secret))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


async def test_an_empty_database_belongs_to_the_secret_of_the_first_start(open_with: OpenWith, empty_url: str) -> None:
    await open_with(RIGHT).start()
    await open_with(RIGHT).start()
    assert await open_with(RIGHT).migrate() == (NEWEST, False)
    wrong = open_with(WRONG)
    for attempt in (wrong.start, wrong.migrate):
        with pytest.raises(DatabaseUnusable) as refused:
            await attempt()
        for told in (Database(empty_url).address.place, "the old secret", "erase what was made with it"):
            assert told in str(refused.value)
    assert [await store.secret_fits() for store in (open_with(RIGHT), wrong)] == [True, False]


async def test_a_start_lets_no_database_of_an_earlier_release_belong_to_its_secret(
    open_with: OpenWith, empty_url: str
) -> None:
    """The secret may be a wrong one: `steno migrate` alone decides."""
    await make_release_0_1(empty_url)
    await open_with(WRONG).start()
    assert await open_with(WRONG).secret_fits() is None
    assert [await open_with(RIGHT).migrate() for _ in range(2)] == [(NEWEST, True), (NEWEST, False)]
    with pytest.raises(DatabaseUnusable):
        await open_with(WRONG).start()


async def test_a_migration_with_another_secret_changes_nothing(
    open_with: OpenWith, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later release finds a database of this one."""
    await open_with(RIGHT).start()
    monkeypatch.setattr("app.store.schema.NEWEST", "0031")
    monkeypatch.setattr("alembic.command.upgrade", lambda *_: pytest.fail("migrated"))
    with pytest.raises(DatabaseUnusable):
        await open_with(WRONG).migrate()


async def test_commands_that_need_no_secret_open_a_database_of_any(open_with: OpenWith) -> None:
    await open_with(RIGHT).start()
    await open_with(None).start()
