"""`steno bench`: what Steno costs on this machine, beside the same requests without it.

Theory: client, Steno and provider are three processes that share the machine's cores, so absolute numbers say little,
and ratios measured in one run say more. Direct and proxied rounds take turns, so that whatever else the machine does
meets both. `make bench` compares Steno with its peers, and with clients written in C.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from app.commands.terminal import say

ROUNDS = 3
CONNECTIONS = 16
START_SECONDS = 30.0
HOST = "127.0.0.1"
LEAST_REQUESTS = 5
BODY = msgspec.json.encode(
    {
        "model": "gpt-4o",
        "messages": [
            {"role": "user" if turn % 2 == 0 else "assistant", "content": f"Turn {turn}. " + "word " * 40}
            for turn in range(9)
        ],
    }
)


@dataclass(slots=True)
class Measured:
    """Rounds of the same requests to one address."""

    rates: list[float] = field(default_factory=list)
    """Answers a second over all connections, of each round."""
    waits: list[float] = field(default_factory=list)
    """Seconds of each answer to a client that sends one request at a time."""


class BenchFailed(Exception):
    """A process did not start, or an answer was not what it should be."""


def bench(seconds: float) -> None:
    """Measures for about so many seconds, and prints it. Raises `BenchFailed`."""
    with ExitStack() as stack:
        provider, steno = _free_port(), _free_port()
        stack.enter_context(
            _process(provider, "lab.simulator", "--port", str(provider), "--no-bodies", "--words", "20")
        )
        at_provider = ["--upstream", f"http://{HOST}:{provider}/v1", "--database-url", "memory"]
        stack.enter_context(_process(steno, "app.commands.cli", "serve", "--port", str(steno), *at_provider))
        direct, through = Measured(), Measured()
        each = seconds / (4 * ROUNDS)
        for number in range(1, ROUNDS + 1):
            for port, measured in ((provider, direct), (steno, through)):
                asyncio.run(_measure(port, each, measured))
            say(f"round {number} of {ROUNDS}", file=sys.stderr, dim=True)
    for line in _report(direct, through):
        say(line)


async def _measure(port: int, seconds: float, measured: Measured) -> None:
    measured.waits += await _ask(port, seconds)
    begun = time.perf_counter()
    answers = await asyncio.gather(*(_ask(port, seconds) for _ in range(CONNECTIONS)))
    measured.rates.append(sum(map(len, answers)) / (time.perf_counter() - begun))


async def _ask(port: int, seconds: float) -> list[float]:
    """Requests one after another on one connection: what each answer took."""
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {HOST}:{port}\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer sk-bench\r\ncontent-length: {len(BODY)}\r\n\r\n"
    ).encode() + BODY
    reader, writer = await asyncio.open_connection(HOST, port)
    took: list[float] = []
    end = time.perf_counter() + seconds
    try:
        while (begun := time.perf_counter()) < end or len(took) < LEAST_REQUESTS:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200 "):
                raise BenchFailed(f"An answer began with {head[:40]!r}.")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            took.append(time.perf_counter() - begun)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return took


def _report(direct: Measured, through: Measured) -> Iterator[str]:
    rates = median(direct.rates), median(through.rates)
    waits = median(direct.waits) * 1000, median(through.waits) * 1000
    shared = f"{os.cpu_count()} cores for client, Steno and provider"
    yield f"{len(BODY):,} bytes a request, {CONNECTIONS} connections, {shared}"
    yield ""
    yield f"{'':28}{'direct':>10}{'Steno':>10}{'ratio':>10}"
    yield f"{'requests a second':28}{rates[0]:>10,.0f}{rates[1]:>10,.0f}{rates[1] / rates[0]:>10.2f}"
    yield f"{'one at a time, median ms':28}{waits[0]:>10.2f}{waits[1]:>10.2f}{waits[1] / waits[0]:>10.2f}"
    yield f"{'one at a time, 99th % ms':28}{_99th(direct.waits):>10.2f}{_99th(through.waits):>10.2f}"
    yield ""
    yield f"Steno adds {waits[1] - waits[0]:.2f} ms to a request whose conversation is not compacted."
    yield "The simulator answers at once. A real provider takes longer; Steno does not."


def _99th(waits: Sequence[float]) -> float:
    return sorted(waits)[int(0.99 * (len(waits) - 1))] * 1000


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def _process(port: int, module: str, *arguments: str) -> Iterator[None]:
    """Run a process, with default settings: yields once it listens, then asks it to stop."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("STENO_") or name == "STENO_HOME"}
    silent: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], env=mine, **silent)  # noqa: S603 - our own
    try:
        _await(process, port, module)
        yield
    finally:
        process.terminate()
        process.wait()


def _await(process: subprocess.Popen[bytes], port: int, module: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchFailed(f"{module} did not start.")
        time.sleep(0.05)
