"""Many requests of one conversation at once: one summary, paid for once, whichever process they reach."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2

from lab.simulator import Simulator
from tests.e2e.commands import SECRET
from tests.e2e.conftest import Serve
from tests.e2e.histories import MODEL, chat, long_history
from tests.e2e.running import StartSteno, Steno

CROWD = 60
HEADERS = {"authorization": "Bearer sk-test", "content-type": "application/json"}


def test_a_stream_that_waits_for_somebody_elses_summary_is_kept_alive(
    steno: StartSteno, simulator: Simulator, sqlite_url: str
) -> None:
    """Whichever process makes it."""
    simulator.summary_default = type(simulator.summary_default)(delay=4.5)
    replicas = [steno(storage={"url": sqlite_url}) for _ in range(2)]

    def beats(replica: Steno) -> int:
        client = replica.sdk(timeout=3.0)  # Between two pieces: shorter than the summary takes.
        chunks: Any = client.chat.completions.create(model=MODEL, messages=long_history(), stream=True)
        return sum(not hasattr(chunk, "compaction") and chunk.choices[0].delta.to_dict() == {} for chunk in chunks)

    with ThreadPoolExecutor(4) as pool:
        counted = list(pool.map(beats, replicas * 2))
    assert min(counted) >= 3  # Two of ours, and the one that finishes.
    assert len(simulator.summaries) == 1


async def ask_all(urls: Sequence[str]) -> Counter[str]:
    """The statuses of the context."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(headers=HEADERS, timeout=120.0, limits=limits) as client:
        asked = (
            client.post(f"{urls[number % len(urls)]}/v1/chat/completions", content=chat(long_history()))
            for number in range(CROWD)
        )
        return Counter(answered.headers["x-context-status"] for answered in await asyncio.gather(*asked))


def test_a_crowd_over_two_processes_pays_for_one_summary(simulator: Simulator, serve: Serve, postgres_url: str) -> None:
    """Nobody makes a second one."""
    options = {"DATABASE_URL": postgres_url, "STENO_SECRET": SECRET, "STENO_STORAGE__TIMEOUT_SECONDS": "10"}
    urls = [serve(**options).url for _ in range(2)]
    simulator.summary_default = type(simulator.summary_default)(delay=2.0)
    assert asyncio.run(ask_all(urls)) == {"summarized": CROWD}
    assert len(simulator.summaries) == 1
    assert len({record.body for record in simulator.chats}) == 1
