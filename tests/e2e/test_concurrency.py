"""Many requests of one conversation at once: one summary, paid for once, whichever process they reach."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import httpx2

from lab.simulator import Simulator
from tests.e2e.commands import SECRET
from tests.e2e.conftest import Serve
from tests.e2e.histories import chat, long_history

CROWD = 60
HEADERS = {"authorization": "Bearer sk-test", "content-type": "application/json"}


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
