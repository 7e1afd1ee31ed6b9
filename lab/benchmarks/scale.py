"""One PostgreSQL with a million rows in each table: what is read of it, and its size.

Each statement that Steno does again and again is explained: exit 1 where one reads more where more is stored.

    python -m lab.benchmarks.scale --rows 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from time import perf_counter

from app.store import Store
from tests.databases import database_on, start_server
from tests.plans import Seen, do_all_that_is_repeated, fill, plans, tidy_store

SIZES = """
    SELECT relname AS name, reltuples::bigint AS rows, pg_table_size(oid) + pg_indexes_size(oid) AS bytes
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples > 0 ORDER BY 3 DESC
"""


async def print_sizes(store: Store) -> None:
    print("\n| table | bytes a row, indexes included |\n|---|--:|")
    async with store.database.reading() as connection:
        for table in await connection.exec_driver_sql(SIZES):
            print(f"| `{table.name}` | {table.bytes / table.rows:,.0f} |")


def judge(found: Sequence[Seen]) -> bool:
    """Print the statements that read most, and say whether none of all reads more where more is stored."""
    worst: dict[str, Seen] = {}
    for each in found:
        if each.statement not in worst or each.rows > worst[each.statement].rows:
            worst[each.statement] = each
    print(f"\n{len(worst)} statements; those that read most:\n\n| rows read | statement |\n|--:|---|")
    for each in sorted(worst.values(), key=lambda seen: -seen.rows)[:10]:
        print(f"| {each.rows:,} | `{each.statement[:100]}` |")
    growing = [each for each in worst.values() if each.grows]
    for each in growing:
        print(f"\nreads {each.rows:,} rows, whole: {sorted(each.whole)}\n    {each.statement}")
    return not growing


async def main() -> None:
    parser = argparse.ArgumentParser(description="What a large PostgreSQL costs.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="in each table")
    rows = parser.parse_args().rows
    with database_on(start_server()) as url:
        async with tidy_store(url) as store:
            began = perf_counter()
            async with store.database.migrating() as connection:
                await fill(connection, rows)
            print(f"{rows:,} rows in each table: {perf_counter() - began:.0f} s to fill", flush=True)
            await print_sizes(store)
            with plans() as found:
                await do_all_that_is_repeated(store)
            is_well = judge(found)
    sys.exit(not is_well)


if __name__ == "__main__":
    asyncio.run(main())
