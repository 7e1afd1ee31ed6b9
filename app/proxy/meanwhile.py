"""Meanwhile: frames that a client's stream carries while something takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def kept_alive(work: Awaitable[T], seconds: float, say: Callable[[], Awaitable[object]]) -> T:
    """Return the result of the work; call `say` each time nothing was said for so many seconds."""
    working = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({working}, timeout=seconds))[0]:
            await say()
        return working.result()
    finally:
        working.cancel()
