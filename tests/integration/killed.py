"""Stores records until it is killed in the middle: `python -m tests.integration.killed URL AFTER NUMBER`.

AFTER so many statements of the flush that stores the record of that number; one of the same kind was stored before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from itertools import count
from typing import Any

from app.store import Store, prepared
from tests.integration.examples import seen
from tests.integration.test_usage import record


async def main(url: str, after: int, number: int) -> None:
    store = Store(url)
    await store.start()
    for is_last in (False, True):
        if is_last:
            _kill_after(after)
        store.writes.record(seen())
        store.writes.record_usage(record(id=f"use_{number}_{is_last}"))
        await store.flush()


def _kill_after(statements: int) -> None:
    executed, done = prepared._execute, count(1)

    async def execute(*arguments: Any) -> Any:
        found = await executed(*arguments)
        if next(done) == statements:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    prepared._execute = execute  # type: ignore[assignment]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
