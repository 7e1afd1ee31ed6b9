"""How soon a crowd goes on once the summary it waits for is made: woken by NOTIFY, polling PostgreSQL, and on SQLite.

200 requests of one conversation over 4 processes of `steno serve`, the scripted provider behind them, all on this
machine. The times come from the provider's log: from the end of the summary to the arrival of each request. They hold
what the processes do for each request besides, so with few cores they are mostly that; `processor` is what the four
processes used, for each request, from the end of the summary on.

    python -m benchmarks.waiters [rounds]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median

from app.simulator import Simulator
from tests.databases import database_on, start_server
from tests.e2e.crowds import Seen, replicas, send_crowd

REQUESTS = 200
PROCESSES = 4
SUMMARY_SECONDS = 10.0


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("database     waking   summaries  compacted  first ms  p50 ms  last ms")
    for name, waking in (("postgresql", "auto"), ("postgresql", "off"), ("sqlite", "-")):
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                seen = _in_database(name, waking, Path(folder))
            compacted = sum(count for status, count in seen.statuses.items() if status == "summarized")
            first, middle, last = (1_000 * at for at in (seen.arrivals[0], median(seen.arrivals), seen.arrivals[-1]))
            print(f"{name:12} {waking:8} {seen.summaries:9}  {compacted:9}  {first:8.0f}  {middle:6.0f}  {last:7.0f}")


def _in_database(name: str, waking: str, folder: Path) -> Seen:
    if name == "sqlite":
        return _measured(f"sqlite:///{folder}/steno.db", folder)
    with database_on(start_server()) as url:
        return _measured(url, folder, STENO_STORAGE__LISTEN_NOTIFY=waking)


def _measured(url: str, folder: Path, **variables: str) -> Seen:
    # Counts by length: what the provider does with a request is not to be measured.
    simulator = Simulator(window=100_000, count=len)
    options = {"STENO_STORAGE__TIMEOUT_SECONDS": "10"} | variables
    with simulator.serve() as provider, replicas(PROCESSES, url, provider.url, folder, **options) as servings:
        return send_crowd(simulator, servings, REQUESTS, SUMMARY_SECONDS)


if __name__ == "__main__":
    main()
