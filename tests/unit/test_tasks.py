"""Tasks: work in threads, in turn for all tenants."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from threading import Event, get_ident

import pytest

from app.runtime import tasks
from app.runtime.tasks import WorkerThreads

PATIENCE = 60.0


class Bench:
    """Pieces of work that wait until they are let go, and the order in which they began."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = Event()

    def piece(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.begun.append(name)
            assert self.gate.wait(PATIENCE)
            return name

        return work

    async def until_begun(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.begun) < number:  # noqa: ASYNC110 - threads tell it
                await asyncio.sleep(0.001)


async def test_a_tenant_with_much_work_leaves_threads_to_others_and_takes_turns_with_them() -> None:
    work, bench = WorkerThreads(threads=3, at_once=2), Bench()
    many = [asyncio.ensure_future(work.do("a", bench.piece("a"))) for _ in range(20)]
    await bench.until_begun(2)
    await asyncio.sleep(0.02)
    assert bench.begun == ["a", "a"]
    others = [asyncio.ensure_future(work.do(name, bench.piece(name))) for name in "bcd"]
    await bench.until_begun(3)
    assert bench.begun == ["a", "a", "b"]
    bench.gate.set()
    await asyncio.gather(*many, *others)
    assert sorted(bench.begun) == ["a"] * 20 + ["b", "c", "d"]
    assert max(bench.begun.index(name) for name in "cd") < 10
    await work.stop()


async def test_what_is_cancelled_before_it_begins_is_not_done_and_what_has_begun_keeps_its_thread() -> None:
    work, bench = WorkerThreads(threads=1, at_once=1), Bench()
    first, second, third = (asyncio.ensure_future(work.do("a", bench.piece(name))) for name in ("1", "2", "3"))
    await bench.until_begun(1)
    for task in (first, second):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await first
    await asyncio.sleep(0.02)
    assert bench.begun == ["1"]
    bench.gate.set()
    assert await third == "3"
    assert bench.begun == ["1", "3"]
    await work.stop()  # A thread lets go of what it did a little later than that ends.
    del first, second, third, task
    gc.collect()  # The error of a cancelled caller holds its frame.
    assert not work._of_tenants
    assert not work._running


async def test_stopping_waits_for_what_has_begun() -> None:
    work, bench = WorkerThreads(), Bench()
    doing = asyncio.ensure_future(work.do("a", bench.piece("one")))
    await bench.until_begun(1)
    stopping = asyncio.ensure_future(work.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    bench.gate.set()
    await stopping
    assert await doing == "one"


async def test_what_comes_afterwards_is_done_once_when_there_was_nothing_to_do_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "IDLE_SECONDS", 60.0)
    done: list[int] = []
    work = WorkerThreads(afterwards=lambda: done.append(get_ident()))
    await asyncio.gather(*(work.do("t", lambda: None) for _ in range(5)))
    assert not done
    monkeypatch.setattr(tasks, "IDLE_SECONDS", 0.0)
    await work.do("t", lambda: None)
    async with asyncio.timeout(PATIENCE):
        while not done:  # noqa: ASYNC110 - a thread tells it
            await asyncio.sleep(0.001)
    assert len(done) == 1
    assert done[0] != get_ident()
    await work.stop()
