"""`steno serve` with a handicap: it dies or waits at a certain step of a compaction, or the clock on its wall is wrong.

    DIE_AT="before the lease is released" python -m tests.release.handicapped serve ...
    WAIT_AT="before the lease is taken" python -m tests.release.handicapped serve ...
    CLOCK_AHEAD=3600 python -m tests.release.handicapped serve ...

Who waits writes the file `waits` into its folder, and goes on once there is a file `go`. To die is `kill -9`, by its
own hand: from outside nobody could hit the same statement twice.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Literal

from app.cli import main as cli
from app.compaction.summariser_client import Summariser
from app.formats.summaries import SummaryReader
from app.proxy.endpoint import ChatEndpoint
from app.store import Store, chunks, leases

Place = tuple[Any, str, Literal["before", "after"]]

STEPS: Mapping[str, Place] = {
    "in the transaction that takes the lease": (leases, "acquire_lease", "after"),
    "before the summary is asked for": (Summariser, "ask", "before"),
    "while the summary comes": (SummaryReader, "feed", "after"),
    "before the summary is stored": (Store, "keep_chunks", "before"),
    "in the transaction that stores it": (chunks, "commit_chunks", "after"),
    "before the lease is released": (Store, "release_lease", "before"),
    "before the request goes on": (ChatEndpoint, "_send", "before"),
}
"""Of a compaction, in their order: a function, and whether the process dies before it or once it is done."""


WAITS: Mapping[str, Place] = {
    "before the lease is taken": (Store, "take_lease", "before"),
    "in the transaction that takes the lease": STEPS["in the transaction that takes the lease"],
    "before the summary is stored": STEPS["before the summary is stored"],
}


def waiting(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    """The function, and a wait before or after it."""

    def wait() -> None:
        Path("waits").touch()
        while not Path("go").exists():
            time.sleep(0.02)

    @wraps(function)
    async def called(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            await asyncio.to_thread(wait)
        result = await function(*arguments, **options)
        if when == "after":
            await asyncio.to_thread(wait)
        return result

    return called


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def deadly(function: Callable[..., Any], when: str) -> Callable[..., Any]:
    """The function, and the end of the process before or after it."""

    @wraps(function)
    async def called(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            die()
        result = await function(*arguments, **options)
        die()
        return result

    @wraps(function)
    def called_at_once(*arguments: Any, **options: Any) -> None:
        function(*arguments, **options)
        die()

    return called if inspect.iscoroutinefunction(function) else called_at_once


def set_clock(ahead: float) -> None:
    """Of this process only; the monotonic clock, by which it waits, goes as it should."""
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + ahead
    time.time_ns = lambda: right_ns() + round(ahead * 1e9)


if __name__ == "__main__":
    if step := os.environ.get("DIE_AT"):
        owner, name, when = STEPS[step]
        setattr(owner, name, deadly(getattr(owner, name), when))
    if step := os.environ.get("WAIT_AT"):
        owner, name, when = WAITS[step]
        setattr(owner, name, waiting(getattr(owner, name), when))
    set_clock(float(os.environ.get("CLOCK_AHEAD", "0")))
    cli.main()
