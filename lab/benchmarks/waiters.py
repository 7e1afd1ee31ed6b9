"""Delay of a crowd once the summary it waits for is stored: woken by NOTIFY, polling PostgreSQL, and on SQLite.

200 requests of one conversation over 4 processes of `steno serve`, all on this machine. A time is from the moment at
which the database says the summary was stored to the arrival of a request at the provider, so it holds what the
processes do for each request besides. With few cores it is mostly that: `processor` is what the four of them used for
each request from then on. The provider here reads next to nothing and answers at once, as it shares the cores.

    python -m lab.benchmarks.waiters [rounds]
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sqlalchemy import func, select

from app.store.database import Database
from app.store.tables import summary_chunks
from tests.databases import database_on, start_server
from tests.e2e.commands import Serving
from tests.e2e.crowds import ask_all, replicas

REQUESTS = 200
PROCESSES = 4
SUMMARY_SECONDS = 10.0

_NOTES = "The customer asked about an order that was sent to the old address, and the clerk wrote down what was agreed."
_USAGE = b'"usage":{"prompt_tokens":900,"completion_tokens":30,"total_tokens":930}'
SUMMARY = b"".join(
    b"data: %b\n\n" % event
    for event in (
        b'{"id":"s","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":'
        b'{"role":"assistant","content":"%b"},"finish_reason":null}]}' % _NOTES.encode(),
        b'{"id":"s","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{},'
        b'"finish_reason":"stop"}],%b}' % _USAGE,
        b"[DONE]",
    )
)
ANSWER = (
    b'{"id":"a","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"Yes."},"finish_reason":"stop"}],%b}' % _USAGE
)


class Provider:
    """Makes every summary in ten seconds, and notes when the other requests arrive, by the wall clock."""

    def __init__(self, servings: Sequence[Serving]) -> None:
        self.summaries = 0
        self.arrivals: list[float] = []
        self.processor_before = 0.0
        self.idle = asyncio.Event()
        """Set while no connection is open."""
        self._connections = 0
        self._servings = servings

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self.idle.clear()
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
                if b"x-context-call: summary" in head:
                    await self._summarise(writer)
                else:
                    self.arrivals.append(time.time())
                    writer.write(_response(b"application/json", ANSWER))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self._connections -= 1
            if not self._connections:
                self.idle.set()

    async def _summarise(self, writer: asyncio.StreamWriter) -> None:
        self.summaries += 1
        await asyncio.sleep(SUMMARY_SECONDS)
        self.processor_before = processor_seconds(self._servings)
        writer.write(_response(b"text/event-stream", SUMMARY))


def _response(kind: bytes, content: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(content), content)


@dataclass(frozen=True, slots=True)
class Seen:
    """Times of the crowd, in milliseconds."""

    summaries: int
    compacted: int
    arrivals: tuple[float, ...]
    """Arrivals after the summary was stored, the first one first."""
    processor: float
    """Processor time for each request, by all processes, from the end of the summary on."""


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("database     waking   summaries  compacted  first ms  p50 ms  last ms  processor ms")
    for name, waking in (("postgresql", "notify"), ("postgresql", "off"), ("sqlite", "-")):
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                seen = _in_database(name, waking, Path(folder))
            first, middle, last = seen.arrivals[0], median(seen.arrivals), seen.arrivals[-1]
            times = f"{first:8.0f}  {middle:6.0f}  {last:7.0f}  {seen.processor:12.2f}"
            print(f"{name:12} {waking:8} {seen.summaries:9}  {seen.compacted:9}  {times}", flush=True)


def _in_database(name: str, waking: str, folder: Path) -> Seen:
    if name == "sqlite":
        return asyncio.run(_measured(f"sqlite:///{folder}/steno.db", folder))
    with database_on(start_server()) as url:
        # Behind a pooler in transaction mode nothing is heard.
        return asyncio.run(_measured(url, folder, STENO_STORAGE__STATEMENT_CACHE=str(waking == "notify").lower()))


async def _measured(url: str, folder: Path, **variables: str) -> Seen:
    servings: list[Serving] = []
    provider = Provider(servings)
    options = {"STENO_STORAGE__TIMEOUT_SECONDS": "10", "STENO_UPSTREAM__DISCOVER_WINDOWS": "false"} | variables
    async with await asyncio.start_server(provider.serve, "127.0.0.1", 0, limit=2**22, backlog=REQUESTS) as server:
        port = server.sockets[0].getsockname()[1]
        with replicas(PROCESSES, url, f"http://127.0.0.1:{port}", folder, **options) as started:
            servings += started
            answers = Counter(await ask_all([serving.url for serving in started], REQUESTS))
            processor = processor_seconds(servings) - provider.processor_before
            stored = await _stored_at(url)
        await provider.idle.wait()
    arrivals = sorted(1_000 * (arrival - stored) for arrival in provider.arrivals)
    return Seen(provider.summaries, answers["summarized"], tuple(arrivals), 1_000 * processor / REQUESTS)


async def _stored_at(url: str) -> float:
    """Time at which the summary was stored, by the database's clock, which is this machine's."""
    database = Database(url)
    async with database.reading() as connection:
        stored = await connection.scalar(select(func.max(summary_chunks.c.created_at)))
    await database.close()
    return float(stored) / 1_000


def processor_seconds(servings: Sequence[Serving]) -> float:
    """Processor time that the processes have used so far; NaN if there is no /proc."""
    ticks = 0
    for serving in servings:
        stat = Path(f"/proc/{serving.process.pid}/stat")
        if not stat.exists():
            return float("nan")
        ticks += sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
