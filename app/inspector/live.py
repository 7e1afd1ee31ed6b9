"""Live: lets an open page of a conversation know when a compaction begins and ends, and when a request has come.

What this process does it knows at once; what other replicas do it finds in the store by looking now and then.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, time

import msgspec

from app.proxy.services import Services
from app.store import ConversationStatus, StoreUnavailable
from app.store.conversations import read_status

MOST_LISTENERS = 64
MOST_OF_A_TENANT = 16
TICK_SECONDS = 0.5
"""Seconds in which a stream ends when the server is asked to stop."""
LOOK_SECONDS = 2.0
"""Seconds between two looks at the store."""
KEEP_ALIVE_SECONDS = 15.0
IDLE_SECONDS = 900.0
"""Seconds without news after which a stream ends: a page that nobody looks at costs nothing."""
_RECONNECT = b"retry: 4000\n\n"
_KEEP_ALIVE = b":\n\n"
_IDLE = b"event: idle\ndata: {}\n\n"


class Live:
    """The streams of one process."""

    def __init__(self) -> None:
        self._listeners: Counter[str] = Counter()

    def has_room(self, tenant: str) -> bool:
        return self._listeners.total() < MOST_LISTENERS and self._listeners[tenant] < MOST_OF_A_TENANT

    async def events(self, services: Services, tenant: str, conversation_id: str, expires: int) -> AsyncIterator[bytes]:
        """Frames of an event stream: the state at first, and again whenever it has changed. It ends with its session,
        which `expires` at so many milliseconds since 1970."""
        place, store, running = (tenant, conversation_id), services.store, services.compactor.running
        with self._listening(tenant), running.watched(place) as changed:
            yield _RECONNECT
            shown: object = None
            status: ConversationStatus | None = None
            looked = written = news = -IDLE_SECONDS
            while not services.tasks.draining and 1_000 * time() < expires:
                now = monotonic()
                if now - looked >= LOOK_SECONDS or changed.is_set():
                    looked = now
                    changed.clear()
                    with suppress(StoreUnavailable):  # What is known of this process is shown meanwhile.
                        status = await store.task(read_status, *place, store.lease_ttl_ms)
                if (state := (running.at(place), status)) != shown:
                    shown, written, news = state, now, now
                    yield _frame(running.told(place), status)
                elif now - news >= IDLE_SECONDS:
                    yield _IDLE
                    return
                elif now - written >= KEEP_ALIVE_SECONDS:
                    written = now
                    yield _KEEP_ALIVE
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), TICK_SECONDS)

    @contextmanager
    def _listening(self, tenant: str) -> Iterator[None]:
        self._listeners[tenant] += 1
        try:
            yield
        finally:
            self._listeners[tenant] -= 1
            self._listeners += Counter()  # Drops those who have none left.


def _frame(running: tuple[int, float, bool] | None, status: ConversationStatus | None) -> bytes:
    state: dict[str, object] = {
        "compacting": running is not None or (status is not None and status.compacting),
        "updated": None if status is None or status.updated_at is None else status.updated_at.isoformat(),
    }
    if running is not None:
        state["messages"], state["seconds"], state["ahead"] = running
    return b"event: state\ndata: %b\n\n" % msgspec.json.encode(state)
