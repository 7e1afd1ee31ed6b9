"""The load that one PostgreSQL carries: turns stored as fast as it takes them, by more and more writers.

A turn is what a request below the trigger leaves behind: its conversation, two heads and a usage record, stored in
batches as the processes of Steno do. Where more writers store no more, the server or the machine is at its end; the
server's own time for each turn says what it would carry alone.

    python -m lab.benchmarks.carried --seconds 10
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from app.store import Store
from tests.databases import database_on, start_server
from tests.integration.examples import seen
from tests.integration.test_prepared import RECORD

WRITERS = (1, 2, 4)
BATCH = 200
"""Turns of one flush: a thousand a second, five times."""
CONVERSATIONS = 2_000
"""Conversations of one writer, which take turns."""
TENANTS = 100


async def write(url: str, writer: int, seconds: float) -> int:
    """Store for so long; how many turns."""
    store = Store(url, timeout=5.0)
    await store.start()
    numbers, ends = count(), time.monotonic() + seconds
    stored = 0
    while time.monotonic() < ends:
        for number in (next(numbers) for _ in range(BATCH)):
            tenant = f"tenant {number % TENANTS}"
            conversation = f"{writer} {number % CONVERSATIONS}"
            heads = tuple((os.urandom(16), 1) for _ in range(2))
            store.writes.record(seen(conversation, tenant=tenant, heads=heads))
            named = {"tenant": tenant, "conversation_id": conversation, "id": f"use_{time.time_ns():016x}{writer:08x}"}
            store.writes.record_usage(replace(RECORD, **named))
        await store.flush()
        stored += BATCH
    await store.close()
    return stored


def server_seconds(postmaster: int) -> float:
    """CPU time of the server's processes, those included that ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == postmaster:
            ticks += sum(map(int, fields[11:15]))
        elif int(fields[1]) == postmaster:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def begin(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own command


async def asked(store: Store, query: str) -> Any:
    async with store.database.reading() as connection:
        return (await connection.exec_driver_sql(query)).scalar_one()


async def measure(seconds: float) -> None:
    with database_on(start_server()) as url:
        store = Store(url, timeout=5.0, retention_days=30)
        await store.start()
        await store.tidying.keep_partitions()
        postmaster = int((await asked(store, "SELECT pg_read_file('postmaster.pid')")).split()[0])
        print("| writers | turns a second | server, ms a turn | log, bytes a turn |\n|--:|--:|--:|--:|")
        for writers in WRITERS:
            before, log = server_seconds(postmaster), await asked(store, "SELECT pg_current_wal_insert_lsn()::text")
            command = [sys.executable, "-m", "lab.benchmarks.carried", "--seconds", str(seconds), "--url", url]
            began = [begin(*command, "--writer", str(number)) for number in range(writers)]
            said = [(await asyncio.to_thread(one.communicate))[0] for one in began]
            stored = sum(int(each.split()[-1]) for each in said)
            took = server_seconds(postmaster) - before
            written = await asked(store, f"SELECT pg_current_wal_insert_lsn() - '{log}'::pg_lsn")
            print(f"| {writers} | {stored / seconds:,.0f} | {1e3 * took / stored:.3f} | {written / stored:,.0f} |")
        await store.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description="The load that one PostgreSQL carries.")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each number of writers")
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--writer", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.url:
        print(await write(given.url, given.writer, given.seconds))
    else:
        await measure(given.seconds)


if __name__ == "__main__":
    asyncio.run(main())
