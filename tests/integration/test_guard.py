"""The guard: who is abandoned, and what opens the breaker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from app.store.engine import Database, Guard, StoreUnavailable
from tests.integration.examples import until


async def answer(after: float = 0, value: str = "answer") -> str:
    await asyncio.sleep(after)
    return value


async def fail() -> str:
    raise ConnectionRefusedError(111, "Connection refused")


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    database = Database("memory")
    guard = Guard(database, open_seconds=0.02)
    yield guard
    await guard.abandoned_calls(10)
    await guard.close()
    await database.close()


async def refuse(guard: Guard, times: int) -> None:
    for _ in range(times):
        with pytest.raises(StoreUnavailable):
            await guard.call(fail, 0.1)


async def test_two_failures_and_an_answer_leave_the_breaker_closed(guard: Guard) -> None:
    """Only failures in a row count."""
    for _ in range(3):
        await refuse(guard, 2)
        assert await guard.call(answer, 0.1) == "answer"
    assert guard.reason is None


async def test_third_failure_in_a_row_opens_the_breaker(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on calls are refused without being tried, until the probe has succeeded."""
    with capture_logs() as log:
        monkeypatch.setattr(guard._database, "ping", fail)
        await refuse(guard, 3)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="Connection refused"):
                await guard.call(answer, 0.1)
        monkeypatch.undo()
        await until(lambda: guard.reason is None)
        assert await guard.call(answer, 0.1) == "answer"
    away, back = log
    assert (away["event"], away["log_level"]) == ("database away", "warning")
    assert (back["event"], back["refused"], back["seconds"] < 60) == ("database back", 2, True)


async def test_crowd_that_queues_does_not_open_the_breaker(guard: Guard) -> None:
    """Calls that came too late while others were answered say nothing about the database."""
    end = asyncio.Event()
    crowd = [guard.call(lambda: answer(0.05), 0.1), *(guard.call(end.wait, 0.1) for _ in range(5))]
    answers = await asyncio.gather(*crowd, return_exceptions=True)
    assert [isinstance(one, StoreUnavailable) for one in answers] == [False, True, True, True, True, True]
    assert guard.reason is None
    end.set()


async def test_abandoned_call_runs_to_its_end(guard: Guard) -> None:
    ended, end = list[str](), asyncio.Event()

    async def work() -> None:
        await end.wait()
        ended.append("answer")

    with pytest.raises(StoreUnavailable, match="within 50 ms"):
        await guard.call(work, 0.05)
    assert ended == []
    end.set()
    await guard.abandoned_calls(5)
    assert ended == ["answer"]


async def test_loop_that_was_held_up_is_not_taken_for_a_slow_database(guard: Guard) -> None:
    """The answer was there in time; it was this process that did not look."""
    waiting = asyncio.ensure_future(guard.call(lambda: answer(0.01), 0.1))
    await asyncio.sleep(0)
    time.sleep(0.4)  # noqa: ASYNC251 - that is the point
    assert await waiting == "answer"


async def test_a_probe_that_ends_in_an_error_nobody_foresaw_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when no thread can be started for a connection."""
    database = Database("memory")
    ends = iter([RuntimeError("can't start new thread")])

    async def probe() -> None:
        for error in ends:
            raise error

    monkeypatch.setattr(database, "ping", probe)
    guard = Guard(database, open_seconds=0.02)
    await refuse(guard, 3)
    await until(lambda: guard.reason is None)
    await guard.close()
