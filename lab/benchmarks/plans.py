"""Plans: whether anything that Steno does again and again reads more where more is stored, on a PostgreSQL of its own.

python -m lab.benchmarks.plans --rows 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from lab.benchmarks.scale import LOADING, Server
from tests.plans import Seen, do_all_that_is_repeated, fill, plans, tidy_store


async def look(server: Server, rows: int) -> list[Seen]:
    await server.configure(dict.fromkeys(LOADING, "off"))
    async with tidy_store(server.url) as store:
        began = perf_counter()
        async with store.database.migrating() as connection:
            await fill(connection, rows)
        print(f"{rows:,} rows in each table: {perf_counter() - began:.0f} s to fill", flush=True)
        began = perf_counter()
        with plans() as found:
            await do_all_that_is_repeated(store)
        print(f"{perf_counter() - began:.0f} s for all that is repeated", flush=True)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description="Plans that grow with the tables.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="in each table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="steno-plans-") as folder:
        found = await look(Server(Path(folder), keep=False), arguments.rows)
    worst: dict[str, Seen] = {}
    for each in found:
        if each.statement not in worst or each.rows > worst[each.statement].rows:
            worst[each.statement] = each
    print(f"\n{len(worst)} statements; those that read most:\n\n| rows read | statement |\n|--:|---|")
    for each in sorted(worst.values(), key=lambda seen: -seen.rows)[:10]:
        print(f"| {each.rows:,} | `{each.statement[:100]}` |")
    if growing := [each for each in worst.values() if each.grows]:
        for each in growing:
            print(f"\nreads {each.rows:,} rows, whole: {sorted(each.whole)}\n    {each.statement}")
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
