"""What is done again and again takes no longer because much is stored: the plans of PostgreSQL."""

from __future__ import annotations

from app.store import Store
from tests.plans import do_all_that_is_repeated, fill, plans, tidy_store

SIZE = 30_000
"""Rows of each table; `make scale` asks for a million."""


async def test_nothing_that_is_repeated_reads_more_where_more_is_stored(postgres_url: str) -> None:
    """No table from end to end, and no more rows than are worked on at once."""
    async with tidy_store(postgres_url) as store:
        async with store.database.migrating() as connection:
            await fill(connection, SIZE)
        with plans() as found:
            await do_all_that_is_repeated(store)
        with plans() as sweep:
            await look_at_all(store)
    assert len({each.statement for each in found}) > 30
    assert [each for each in found if each.grows] == []
    assert [each.grows for each in sweep] == [True]  # Such a plan would have been noticed.


async def look_at_all(store: Store) -> None:
    async with store.database.reading() as connection:
        await connection.exec_driver_sql("SELECT id FROM summary_chunks WHERE text = 'no such text'")
