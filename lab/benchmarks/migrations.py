"""Time of a migration: before the start, and afterwards while Steno serves.

Fills a SQLite file and a PostgreSQL of its own as an earlier release left them, and migrates them as
`steno migrate` does.

    python -m lab.benchmarks.migrations --conversations 50000 --records 500000
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from time import perf_counter

from sqlalchemy import text

from app.store import Store, migrations, tidying
from app.store.database import Database
from tests.databases import database_on, start_server

BEFORE = "0009"
"""The last revision of which nothing was searched, recalled or added up."""
TENANTS, DAYS = 100, 30
_DAY_MS = 86_400_000
_WORDS = {
    "postgresql": {
        "numbers": "SELECT n FROM generate_series(CAST(1 AS BIGINT), :rows) AS n",
        "digest": "sha256(CAST(CAST(n AS TEXT) AS BYTEA))",
        "words": "repeat('summary ' || n || ' ', 150)",
    },
    "sqlite": {
        "numbers": "WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < :rows) SELECT n FROM up",
        "digest": "CAST('digest ' || n AS BLOB)",
        "words": "hex(randomblob(1000))",
    },
}
NOW = 1_700_000_000_000
_TENANT, _AT = f"'tenant ' || n % {TENANTS}", f"{NOW} - n % {DAYS} * {_DAY_MS} - n % 80000000"
_FILL = {
    "conversations": f"""
        INSERT INTO conversations (tenant, id, model, turns, messages, requests, status, tokens_before, tokens_after,
            "window", coverage, summaries, created_at, updated_at)
        SELECT {_TENANT}, 'conv_' || n, 'gpt-4o', 20, 40, 20, 'summarized', 30000, 12000, 128000,
            '[]', '[]', {_AT}, {_AT}
        FROM ({{numbers}}) AS numbers
    """,  # noqa: S608 - constants
    "summary_chunks": f"""
        INSERT INTO summary_chunks (tenant, id, conversation_id, series, level, version, from_digest, through_digest,
            last_message_digest, first_index, last_index, through_turn, carried, text, tokens, model, prompt_version,
            children, created_at)
        SELECT {_TENANT}, 'chunk_' || n, 'conv_' || n, 'default', 0, 1, {{digest}}, {{digest}}, {{digest}}, 0, 20, 10,
            '[]', {{words}}, 500, 'gpt-4o-mini', '1a2b3c4d', '[]', {_AT}
        FROM ({{numbers}}) AS numbers
    """,  # noqa: S608 - constants
    "records": f"""
        INSERT INTO usage_records (tenant, id, conversation_id, request_id, turn, purpose, upstream, model,
            estimated_tokens, forwarded_tokens, saved_tokens, prompt_tokens, completion_tokens, cached_tokens,
            prompt_rate, completion_rate, cached_rate, cost, status, context_status, created_at)
        SELECT {_TENANT}, 'use_' || n, 'conv_' || n % 50000, 'req_' || n, 1, 'message', 'default', 'gpt-4o',
            30000, 12000, 18000, 12100, 400, 8000, 2.5, 10.0, 1.25, 0.0243, 200, 'summarized', {_AT}
        FROM ({{numbers}}) AS numbers
    """,  # noqa: S608 - constants
}


async def fill(url: str, sizes: dict[str, int]) -> None:
    database = Database(url)
    await migrations.upgrade(database, BEFORE)
    async with database.migrating() as connection:
        kind = connection.dialect.name
        for name, rows in sizes.items():
            await connection.execute(text(_FILL[name].format(**_WORDS[kind])), {"rows": rows})
        if kind == "postgresql":
            await connection.exec_driver_sql("ANALYZE")
    await database.close()


async def measure(url: str) -> tuple[float, float]:
    """Seconds of the migration, and of what follows it in the background."""
    store = Store(url)
    began = perf_counter()
    await store.migrate()
    migrated = perf_counter()
    await store.start()
    started = perf_counter()
    await store.tidying.add_days_up()
    ended = perf_counter()
    await store.close()
    return migrated - began, ended - started


async def main() -> None:
    parser = argparse.ArgumentParser(description="How long a migration takes.")
    parser.add_argument("--conversations", type=int, default=50_000)
    parser.add_argument("--records", type=int, default=500_000, help="of usage: one for each answered call")
    arguments = parser.parse_args()
    sizes = {
        "conversations": arguments.conversations,
        "summary_chunks": arguments.conversations,
        "records": arguments.records,
    }
    tidying.START_SECONDS = 3_600.0  # It is done here.
    with tempfile.TemporaryDirectory(prefix="steno-migrations-") as folder, database_on(start_server()) as server:
        print(f"{arguments.conversations:,} conversations with a summary each, {arguments.records:,} usage records\n")
        print("| | before the start, s | while it serves, s |\n|---|--:|--:|")
        for name, url in (("SQLite", f"sqlite:///{folder}/steno.db"), ("PostgreSQL", server)):
            await fill(url, sizes)
            before, after = await measure(url)
            print(f"| {name} | {before:.1f} | {after:.1f} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
