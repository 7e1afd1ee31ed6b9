"""A stream that begins before the provider's answer, because a summary is being made."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from app.api.asgi import Answer
from app.api.headers import EVENT_STREAM, Headers, media_type
from app.api.intake import Understood
from app.api.observe import Observation
from app.core.ladder import Decision
from app.errors import StenoError, UpstreamDisconnected
from app.turn import Started
from app.upstream import Answering
from app.wire.events import CompactionEvents
from app.wire.sse import StreamEditor, event

T = TypeVar("T")

HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
LONGEST_ERROR = 64 << 10


@dataclass(slots=True)
class EarlyStream:
    answer: Answer
    understood: Understood
    started: Started
    decided: asyncio.Future[Decision]
    relay: Callable[[Answering, StreamEditor, Observation], Awaitable[None]]
    """Passes the provider's stream on."""
    failed: Callable[[StenoError], None]
    """Is told of an error of ours that becomes a frame."""
    keep_alive_seconds: float

    async def serve(self, obtaining: asyncio.Future[tuple[Observation, Answering]]) -> None:
        answer, understood = self.answer, self.understood
        events = CompactionEvents(
            shape=understood.events,
            compaction_id=self.started.id,
            stream_id=f"chatcmpl-{secrets.token_hex(12)}",
            model=understood.request.model,
            created=int(time.time()),
        )
        await answer.start(200, [*HEADERS, *understood.headers(None)])
        await answer.body(events.started(understood.announcement(self.started)))
        prepared = await self._meanwhile(self.decided, events)
        report = understood.report(prepared)
        closing = events.failed if prepared.failed else events.completed
        await answer.body(closing(report, understood.status_member(prepared)))
        try:
            observed, answering = await self._meanwhile(obtaining, events)
            await self._relay(answering, observed, events)
        except StenoError as error:
            self.failed(error)
            await answer.end(event(error.envelope))

    async def _relay(self, answering: Answering, observed: Observation, events: CompactionEvents) -> None:
        if answering.status == 200 and media_type(answering.headers) == EVENT_STREAM:
            editor = self.understood.stream_editor(observed.prepared, observed.asks_usage, events.sent_id)
            await self.relay(answering, editor, observed)
        else:
            await self.answer.end(event(await _error_in(answering)))

    async def _meanwhile(self, work: Awaitable[T], events: CompactionEvents) -> T:
        """The result of the work; a keep-alive each time nothing was sent for a while."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=self.keep_alive_seconds))[0]:
                await self.answer.body(events.keep_alive())
            return working.result()
        finally:
            working.cancel()


async def _error_in(answering: Answering) -> bytes:
    """The provider's error, as the data of a frame: its own `error` object, with the status it came with."""
    body = b""
    async for chunk in answering.chunks():
        body += chunk
        if len(body) > LONGEST_ERROR:
            break
    try:
        given = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        given = None
    if isinstance(given, dict):
        return msgspec.json.encode({"error": {**given, "status": answering.status}})
    text = given if isinstance(given, str) else body.decode("utf-8", "replace")
    fallback = UpstreamDisconnected(f"The provider answered with status {answering.status}: {text[:500]}")
    return fallback.envelope
