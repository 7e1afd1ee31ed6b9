"""A server of the tests in an event loop and a thread of its own: whatever the test's own loop does, it answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

CONTROL_SECONDS = 60.0


class InThread:
    """Listens from `with` to its end."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_SECONDS)
        self._loop.close()

    async def _listen(self) -> None:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """From another thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_SECONDS)
