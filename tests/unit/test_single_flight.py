"""Single flight: once for many, and never older than the asking."""

from __future__ import annotations

import asyncio

import pytest

from app.runtime.tasks import SingleFlight


class Work:
    """Counts how often it is done; each time ends when it is let go."""

    def __init__(self) -> None:
        self.begun = 0
        self.gates: list[asyncio.Event] = []

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()
        return number


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_who_ask_at_once_share_one_and_those_who_come_later_the_next() -> None:
    """What was begun before they asked may not hold what was written since."""
    flight, work = SingleFlight[int](), Work()
    first = [asyncio.ensure_future(flight.do("a", work)) for _ in range(20)]
    await settle()
    later = [asyncio.ensure_future(flight.do("a", work)) for _ in range(20)]
    await settle()
    assert work.begun == 1
    work.gates[0].set()
    await settle()
    assert work.begun == 2
    work.gates[1].set()
    assert await asyncio.gather(*first) == [1] * 20
    assert await asyncio.gather(*later) == [2] * 20
    assert not flight._running
    assert not flight._next


async def test_different_things_do_not_wait_for_each_other() -> None:
    flight, work = SingleFlight[int](), Work()
    asked = [asyncio.ensure_future(flight.do(what, work)) for what in "ab"]
    await settle()
    assert work.begun == 2
    for gate in work.gates:
        gate.set()
    await asyncio.gather(*asked)


async def test_one_that_leaves_does_not_end_it_for_the_others() -> None:
    flight, work = SingleFlight[int](), Work()
    leaver, stayer = (asyncio.ensure_future(flight.do("a", work)) for _ in range(2))
    await settle()
    leaver.cancel()
    await settle()
    work.gates[0].set()
    assert await stayer == 1


async def test_failure_reaches_everybody_who_shares_it_and_nobody_else() -> None:
    flight = SingleFlight[int]()

    async def fail() -> int:
        raise ValueError("refused")

    async def work() -> int:
        return 3

    asked = [asyncio.ensure_future(flight.do("a", fail)) for _ in range(2)]
    for each in asked:
        with pytest.raises(ValueError, match="refused"):
            await each
    assert await flight.do("a", work) == 3
