"""Statements and transactions of requests below the trigger, counted in the database server's own log.

A `steno serve` on a PostgreSQL of its own, before the simulator. Conversations of a few turns come at a fixed pace.
Each request sends its whole history, and none is ever compacted. Every execution counts, `BEGIN` and `COMMIT` among
them; a statement that is executed with many rows counts once for each. What Steno asks without a request counts, too.

    python -m lab.benchmarks.statements [--rate 100] [--seconds 20] [--turns 4]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from lab.simulator import Simulator
from tests.databases import database_on, start_server
from tests.e2e.commands import ROOT, SECRET, serve
from tests.statements import WRITING, Statements

MODEL, TABLES = "gpt-4o", ROOT / ".tables"
WARM_UP = 10
"""Conversations before the count begins, for connections and what is asked once in a process."""
SETTLED_SECONDS = 1.5
"""Within which the last of what was recorded is stored."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=4, help="of each conversation")
    given = parser.parse_args()
    with database_on(start_server()) as url, tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(_measured(url, Path(folder), given.rate, round(given.rate * given.seconds), given.turns))
    print(f"{seen.requests} requests in {seen.seconds:.1f} s, {seen.requests / seen.seconds:.0f} a second\n")
    print("\n".join(seen.rows()))


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of a database server over so many requests."""

    requests: int
    seconds: float
    statements: Mapping[str, int]
    transactions: int

    def rows(self) -> list[str]:
        """A table of what there was for each request."""
        writing = sum(number for name, number in self.statements.items() if name.startswith(WRITING))
        sums = {"statements": sum(self.statements.values()), "writing": writing, "transactions": self.transactions}
        often = sorted(self.statements.items(), key=lambda item: -item[1])
        lines = [f"| {what} | {number / self.requests:.3f} |" for what, number in (*sums.items(), *often)]
        return ["| | a request |", "|---|--:|", *lines]


async def _measured(url: str, folder: Path, rate: float, requests: int, turns: int) -> Seen:
    statements = Statements(url)
    await statements.begin()
    with Simulator(window=128_000, tables=TABLES).serve() as provider:
        serving = serve(["--upstream", f"{provider.url}/v1"], folder, DATABASE_URL=url, STENO_SECRET=SECRET)
        try:
            async with httpx2.AsyncClient(base_url=f"{serving.url}/v1", timeout=60.0) as client:
                for number in range(WARM_UP):
                    await _talk(client, -number - 1, turns)
                await asyncio.sleep(SETTLED_SECONDS)
                await statements.since()
                began = time.monotonic()
                async with asyncio.TaskGroup() as talks:
                    for number in range(requests // turns):
                        await asyncio.sleep(began + number * turns / rate - time.monotonic())
                        talks.create_task(_talk(client, number, turns))
                seconds = time.monotonic() - began
                await asyncio.sleep(SETTLED_SECONDS)
                counted, transactions = await statements.since()
                return Seen(requests // turns * turns, seconds, counted, transactions)
        finally:
            serving.kill()


async def _talk(client: httpx2.AsyncClient, number: int, turns: int) -> None:
    """A conversation, recognised by its history, as most clients have no name for it."""
    messages = [{"role": "system", "content": f"You answer questions about order {number}."}]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Question {turn} about order {number}: where is it now?"})
        answer = await client.post("/chat/completions", json={"model": MODEL, "messages": messages})
        answer.raise_for_status()
        messages.append(answer.json()["choices"][0]["message"])


if __name__ == "__main__":
    main()
