"""A crowd: many requests of one conversation at once, over several processes, and what the provider saw of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, long_history

MODELS = json.dumps([{"match": "*", "context_window": 8_000}])
BODY = chat(long_history())
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: steno\r\nAuthorization: Bearer sk-test\r\n"
    b"x-context-conversation-id: crowd\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY)
) + BODY


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the crowd. Times are in seconds after the end of the last summary."""

    statuses: dict[str, int]
    """How many answers had which `x-context-status` and reason."""
    summaries: int
    arrivals: tuple[float, ...]
    """When the requests reached the provider, the first one first."""


@contextmanager
def replicas(number: int, url: str, provider_url: str, folder: Path, **variables: str) -> Iterator[list[Serving]]:
    """So many processes of `steno serve` on one database."""
    with ExitStack() as running:
        started = []
        for name in range(number):
            home = folder / f"replica{name}"
            home.mkdir()
            options = {"DATABASE_URL": url, "STENO_SECRET": SECRET, "STENO_MODELS": MODELS} | variables
            serving = commands.serve(["--upstream", f"{provider_url}/v1"], home, commands.ROOT, **options)
            running.callback(serving.kill)
            started.append(serving)
        yield started


def send_crowd(simulator: Simulator, servings: list[Serving], requests: int, summary_seconds: float) -> Seen:
    """All at once, while one summary takes so long."""
    simulator.summary_default = type(simulator.summary_default)(delay=summary_seconds)
    answers = asyncio.run(ask_all([serving.url for serving in servings], requests))
    statuses: dict[str, int] = {}
    for answer in answers:
        statuses[answer] = statuses.get(answer, 0) + 1
    ended = max(record.finished_at or 0.0 for record in simulator.summaries)
    arrivals = sorted(record.at - ended for record in simulator.chats)
    return Seen(statuses, len(simulator.summaries), tuple(arrivals))


async def ask_all(urls: list[str], requests: int) -> list[str]:
    return await asyncio.gather(*(_ask(urls[number % len(urls)]) for number in range(requests)))


async def _ask(url: str) -> str:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(REQUEST)
    answer = await reader.read()
    writer.close()
    lines = answer.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return " ".join(filter(None, (headers.get("x-context-status", lines[0]), headers.get("x-context-reason"))))
