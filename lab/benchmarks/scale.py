"""One PostgreSQL with a million rows in each table: what is read of it, how long requests wait for it, and its size.

First each statement that Steno does again and again is explained: exit 1 where one reads more where more is stored.
Then the store is called as requests over the trigger do: from eight tasks that pause between their calls ("paced",
fifty a second), and from eight that do not ("busy", where they queue for this process). Times are milliseconds.

    python -m lab.benchmarks.scale --rows 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from statistics import quantiles
from time import perf_counter
from typing import Any

from app.compaction.chunks import ChunkRange
from app.store import Claim, Lease, Store
from app.store.chunks import chunks_in, masks_in, recent_first_chunks
from app.store.conversations import find_pins
from tests.databases import database_on, start_server
from tests.integration.examples import SERIES, chunk
from tests.plans import TENANTS, Seen, do_all_that_is_repeated, fill, plans, tidy_store

TASKS, SAMPLES, PAUSE = 8, 1_000, 0.16
LENGTHS = (50, 500, 5_000)
"""Digests of the histories that are looked up."""
SIZES = """
    SELECT relname AS name, reltuples::bigint AS rows, pg_table_size(oid) + pg_indexes_size(oid) AS bytes
    FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples > 0 ORDER BY 3 DESC
"""

Timings = defaultdict[str, list[float]]
Call = Callable[[Store, int, Timings], Awaitable[None]]
"""Calls the store about the rows of that number."""


async def timed(timings: Timings, name: str, work: Awaitable[Any]) -> Any:
    began = perf_counter()
    result = await work
    timings[name].append(perf_counter() - began)
    return result


def chain(number: int, length: int, *columns: str) -> list[bytes]:
    """A history with the digests of that row, which `fill` made."""
    known = [sha256(f"{number} {column}".encode()).digest()[:16] for column in columns]
    return [*known, *(random.randbytes(16) for _ in range(length - len(known)))]


def look_ups(length: int) -> Call:
    async def call(store: Store, number: int, timings: Timings) -> None:
        tenant, history = _tenant(number), chain(number, length, "from_digest", "through_digest")
        found = await timed(timings, f"chunks, {length:,} digests", store.request(chunks_in, tenant, SERIES, history))
        if not found:
            raise AssertionError("A chunk that is there was not found.")
        history = chain(number, length, "digest", "start_digest")
        await timed(timings, f"masks, {length:,}", store.request(masks_in, tenant, f"settings {number}", history))
        recent = store.request(
            recent_first_chunks, tenant, SERIES, chain(number, length, "last_message_digest"), 3_600.0
        )
        await timed(timings, f"recent first chunks, {length:,} messages", recent)

    return call


async def recognise(store: Store, number: int, timings: Timings) -> None:
    tenant, history = _tenant(number), chain(number, 50, "digest")
    await timed(timings, "heads, 50 digests", store.heads(tenant, history))
    await timed(timings, "pins", store.request(find_pins, tenant, f"id {number}"))


async def compact(store: Store, number: int, timings: Timings) -> None:
    tenant, own, history = _tenant(number), f"new {number}", chain(number, 50)
    made = chunk(0, 4, id=f"chunk {number}", conversation_id=own, from_digest=history[0], through_digest=history[1])
    wanted = ChunkRange(SERIES, *history[:2])
    acquired = store.take_lease(Claim(tenant, own, wanted, history), "holder")
    if isinstance(lease := await timed(timings, "acquire a lease", acquired), Lease):
        await timed(timings, "commit a chunk", store.keep_chunks(lease, [made]))
        await timed(timings, "release the lease", store.release_lease(lease))


CALLS = (*map(look_ups, LENGTHS), recognise, compact)


def _tenant(number: int) -> str:
    return f"tenant {number % TENANTS}"


async def run(store: Store, call: Call, numbers: Iterator[int], pause: float, samples: int = SAMPLES) -> Timings:
    timings: Timings = defaultdict(list)
    left = iter(range(samples))

    async def client() -> None:
        for _ in left:
            if pause:
                await asyncio.sleep(random.expovariate(1 / pause))
            await call(store, next(numbers), timings)

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(client())
    return timings


def percentiles(seconds: Sequence[float]) -> str:
    """p50, p95 and p99 in milliseconds, as cells."""
    cuts = quantiles(seconds, n=100, method="inclusive")
    return " | ".join(f"{cuts[place] * 1e3:.2f}" for place in (49, 94, 98))


async def measure(store: Store, rows: int) -> None:
    spread = (number * 7_919 % rows for number in count(int(perf_counter())))
    numbers = (number for number in spread if number % 1_000)  # The others were old, and are removed by now.
    print("\n| call | p50 | p95 | p99 | busy p50 | p95 | p99 |\n|---|" + "--:|" * 6)
    for call in CALLS:
        await run(store, call, numbers, 0.0, samples=100)
        paced, busy = await run(store, call, numbers, PAUSE), await run(store, call, numbers, 0.0)
        for name, seconds in paced.items():
            print(f"| {name} | {percentiles(seconds)} | {percentiles(busy[name])} |", flush=True)


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
            await measure(store, rows)
    sys.exit(not is_well)


if __name__ == "__main__":
    asyncio.run(main())
