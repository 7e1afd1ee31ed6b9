"""Thinking that is bound to its prefix: a client is refused nothing, whatever is done to its conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import httpx2
import pytest

from lab.simulator import Simulator
from tests.e2e.conftest import TABLES
from tests.e2e.running import StartSteno
from tests.e2e.thinkers import Thinker, script_calls, turn

WIDE = 200_000
"""Tokens of the provider's window, so that nothing is refused for its size where nothing is compacted."""
TURNS = 3


@pytest.fixture
def simulator() -> Simulator:
    simulator = Simulator(window=WIDE, models="any", tables=TABLES)
    script_calls(simulator)
    return simulator


async def play(thinkers: Sequence[Thinker], url: str, turns: int) -> None:
    async with httpx2.AsyncClient(timeout=60.0) as client:

        async def talk(thinker: Thinker) -> None:
            for _ in range(turns):
                await turn(client, thinker, iter(lambda: url, None))

        await asyncio.gather(*map(talk, thinkers))


@pytest.mark.timeout(120)
def test_no_thinking_is_refused_to_a_client(simulator: Simulator, steno: StartSteno) -> None:
    """Most compactions come in mid-turn. One client goes back now and then, or has a turn without thinking or without
    compaction."""
    thinkers = [
        Thinker(n, Random(n), streams=n % 2 == 1, adaptive=n % 3 == 0, busy=True, capricious=n > 2) for n in (2, 3)
    ]
    asyncio.run(play(thinkers, steno().url, TURNS))
    assert [thinker.refusals for thinker in thinkers if thinker.refusals] == []
    assert sum(thinker.compactions for thinker in thinkers) >= len(thinkers)
    second_tries = sum(record.status != 200 for record in simulator.chats)
    assert second_tries <= sum(len(thinker.made) for thinker in thinkers) / 4
