"""Usage reports of 30 days, with a million usage records on each database, 30 % of them the tenant's.

Exit 1 where a report takes more than half a second (the best of five).

    python -m lab.benchmarks.reports --rows 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, time
from typing import Any

from sqlalchemy import BigInteger, literal, literal_column, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.core.tokens.usage import Decided, Price, Tokens
from app.store import Store, UsageRecord
from app.store.clock import DAY_MS
from app.store.tables import usage_records
from app.store.usage_records import write_usage
from app.store.usage_reports import read_overview, read_report
from tests.databases import database_on, start_server
from tests.plans import tidy_store

DAYS = 30
MOST_SECONDS = 0.5
TENANT, OTHERS = "tenant", "others"
FIRST_RECORDS = 1_000
TIMES = 5

Report = Callable[[AsyncConnection], Awaitable[object]]


def record(number: int) -> UsageRecord:
    """One of the records that are multiplied."""
    is_summary = number % 10 == 9
    return UsageRecord(
        tenant=TENANT if number % 10 in (0, 4, 9) else OTHERS,
        id=f"use_{number:04}",
        conversation_id=f"conversation {number}",
        request_id=f"request {number}",
        turn=number % 50,
        purpose="summary" if is_summary else "message",
        upstream="default",
        model=f"model {number % 7}",
        estimated=None if is_summary else 9_000,
        forwarded=None if is_summary else 6_000,
        saved=0 if is_summary else 3_000,
        tokens=Tokens(prompt=6_000 + number, completion=300, cached=5_000, reasoning=100, written=1_000),
        price=Price(2.5, 10.0, 1.25),
        price_source="registry",
        priced_model="model",
        cost=0.01,
        saved_cost=0.002,
        status=500 if number % 50 == 0 else 200,
        context_status=None if is_summary else ("full", "summarized", "trimmed")[number % 3],
        decided=None if is_summary else Decided(8_000, 7_600, 5_320, ("summarized",), "soft_threshold", 0.0),
    )


async def fill(connection: AsyncConnection, rows: int, now: int) -> None:
    """So many records of the last 30 days, in the order of their time."""
    await write_usage(connection, [record(number) for number in range(FIRST_RECORDS)])
    first, step = now - DAYS * DAY_MS, DAYS * DAY_MS * FIRST_RECORDS // rows
    copies = select(literal(1).label("copy")).cte("copies", recursive=True)
    copies = copies.union_all(select(copies.c.copy + 1).where(copies.c.copy < rows // FIRST_RECORDS))
    table = usage_records.c
    made = {
        "id": table.id.concat("-").concat(copies.c.copy),
        "created_at": literal(first, BigInteger) + copies.c.copy * literal(step, BigInteger),
    }
    values: list[Any] = [made.get(column.name, column) for column in table]
    every = select(*values).select_from(usage_records).join(copies, literal_column("true"))
    await connection.execute(usage_records.insert().from_select(list(table.keys()), every.order_by(copies.c.copy)))


def reports(now: int) -> Mapping[str, Report]:
    of_days = partial(read_report, tenant=TENANT, since_ms=now - DAYS * DAY_MS, until_ms=now + DAY_MS)
    return {
        "`GET /context/usage`": of_days,
        "the same, `by=day`": partial(of_days, by="day"),
        "the same, `by=model`": partial(of_days, by="model"),
        "the inspector's overview, 14 days": partial(read_overview, tenant=TENANT, days=14),
    }


async def measure(store: Store, rows: int) -> Mapping[str, float]:
    """Seconds of each report."""
    now = round(time() * 1000)
    async with store.database.migrating() as connection:
        await fill(connection, rows, now)
    async with store.database.migrating() as connection:
        await connection.execute(text("ANALYZE"))
    seconds: dict[str, float] = {}
    for name, report in reports(now).items():
        taken = []
        for _ in range(TIMES):
            async with store.database.reading() as connection:
                began = perf_counter()
                await report(connection)
                taken.append(perf_counter() - began)
        seconds[name] = min(taken)
    return seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description="What reports over a million usage records take.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with TemporaryDirectory() as folder, database_on(start_server()) as postgresql:
        urls = {"SQLite": f"sqlite:///{Path(folder, 'steno.db')}", "PostgreSQL": postgresql}
        found = {}
        for name, url in urls.items():
            async with tidy_store(url) as store:
                found[name] = await measure(store, rows)
    print(f"\n| seconds, {rows:,} records | {' | '.join(found)} |\n|---|{'--:|' * len(found)}")
    for report in reports(0):
        print(f"| {report} | {' | '.join(f'{seconds[report]:.2f}' for seconds in found.values())} |")
    if any(each > MOST_SECONDS for seconds in found.values() for each in seconds.values()):
        sys.exit(1)


if __name__ == "__main__":
    asyncio.run(main())
