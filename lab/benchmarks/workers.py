"""Memory of workers, and how connections spread over them: python -m lab.benchmarks.workers

Proportional set size after the start, and the busiest worker's share of 64 connections that come at once, in shares of
an even one. Linux only.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.test_workers import peers_of, workers_of

CONNECTIONS = 64
ROUNDS = 20
REQUEST = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"


def main() -> None:
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
