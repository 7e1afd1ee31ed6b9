"""Memory of workers, how connections spread over them, and by how much a limit of all is overshot.

    python -m lab.benchmarks.workers [--limits]

Proportional set size after the start, and the busiest worker's share of 64 connections that come at once, in shares of
an even one. Linux only. With `--limits` instead: four workers on a PostgreSQL, one tenant with `limits.tokens_per_day`
who asks at a fixed pace over 64 connections until all of them are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx2

from lab.simulator import Simulator
from tests.databases import database_on, start_server
from tests.e2e import commands
from tests.e2e.test_workers import peers_of, workers_of

CONNECTIONS = 64
ROUNDS = 20
LIMIT, PACES = 10_000, (10.0, 50.0, 150.0)
"""Tokens a day, and requests a second."""
REQUEST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", action="store_true", help="how far a limit of all workers is overshot")
    if parser.parse_args().limits:
        overshoot()
        return
    with Simulator().serve() as provider:
        for workers in (1, 2, 4):
            with tempfile.TemporaryDirectory() as folder:
                arguments = ["--upstream", f"{provider.url}/v1", "--workers", str(workers)]
                serving = commands.serve(arguments, Path(folder))
                try:
                    processes = {serving.process.pid, *workers_of(serving)}
                    print(
                        f"{workers} workers: {sum(map(memory, processes)):.0f} MB in {len(processes)} processes", end=""
                    )
                    shares = [busiest(serving) for _ in range(ROUNDS if workers > 1 else 0)]
                    if shares:
                        print(f"; busiest: median {statistics.median(shares):.2f}, worst {max(shares):.2f}", end="")
                    print()
                finally:
                    serving.terminate()
                    serving.wait()


def overshoot() -> None:
    with Simulator().serve() as provider, database_on(start_server()) as url:
        for pace in PACES:
            with tempfile.TemporaryDirectory() as folder:
                arguments = ["--upstream", f"{provider.url}/v1", "--workers", "4"]
                serving = commands.serve(
                    arguments,
                    Path(folder),
                    DATABASE_URL=url,
                    STENO_SECRET=commands.SECRET,
                    STENO_LIMITS__TOKENS_PER_DAY=str(LIMIT),
                )
                try:
                    used, each = asyncio.run(used_at(serving.url, pace))
                finally:
                    serving.terminate()
                    serving.wait()
                beyond = (used - LIMIT) / each
                print(f"{pace:g} requests a second of {each:.0f} tokens: {used:,} tokens of {LIMIT:,}, ", end="")
                print(f"{beyond:.0f} requests beyond, which come in {beyond / pace:.2f} s")


async def used_at(url: str, pace: float) -> tuple[int, float]:
    """Tokens that one tenant was let use, and tokens of a request."""
    answered: list[int] = []
    refused = 0

    async def ask(client: httpx2.AsyncClient) -> None:
        nonlocal refused
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "How is my order? " * 30}]}
        answer = await client.post("/v1/chat/completions", json=body)
        if answer.status_code == 200:
            answered.append(answer.json()["usage"]["total_tokens"])
        else:
            refused += 1

    # A tenant of its own for each pace.
    headers = {"authorization": f"Bearer sk-{pace}"}
    async with AsyncExitStack() as opened, asyncio.TaskGroup() as asking:
        clients = [
            await opened.enter_async_context(httpx2.AsyncClient(base_url=url, headers=headers, timeout=60.0))
            for _ in range(CONNECTIONS)
        ]
        began, number = time.monotonic(), 0
        while refused < 4 * CONNECTIONS:
            await asyncio.sleep(began + number / pace - time.monotonic())
            asking.create_task(ask(clients[number % CONNECTIONS]))
            number += 1
    return sum(answered), statistics.mean(answered)


def memory(process: int) -> float:
    """Megabytes: what several share counts in parts."""
    rows = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return int(next(row for row in rows if row.startswith("Pss:")).split()[1]) / 1_024


def busiest(serving: commands.Serving) -> float:
    host, port = serving.url.removeprefix("http://").split(":")
    with ExitStack() as open_ones:
        made = [open_ones.enter_context(socket.create_connection((host, int(port)))) for _ in range(CONNECTIONS)]
        for each in made:
            each.sendall(REQUEST)
        for each in made:
            each.recv(4_096)
        ours = {each.getsockname()[1] for each in made}
        counts = [len(ours & peers_of(process)) for process in workers_of(serving)]
    return max(counts) * len(counts) / CONNECTIONS


if __name__ == "__main__":
    main()
