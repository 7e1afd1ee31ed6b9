"""A stream that begins before the provider's answer, because a summary is being made."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from app.compaction.job import Started
from app.core.stages.ladder import Decision
from app.errors import StenoError, UpstreamUnreadable
from app.headers.relayed import EVENT_STREAM, Headers, is_encoded, media_type
from app.providers.upstream import Answering, read_refusal_into
from app.providers.upstream import Headers as Received
from app.proxy.asgi import Answer
from app.proxy.intake import Understood
from app.proxy.observe import Observation
from app.wire.events import CompactionEvents
from app.wire.provider_errors import error_body
from app.wire.sse import ChunkHead, StreamEditor, event
from app.wire.streamed import as_stream

T = TypeVar("T")

HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


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
    tells: bool
    """Whether the status stands in the chunks."""

    async def serve(self, obtaining: asyncio.Future[tuple[Observation, Answering]]) -> None:
        answer, understood = self.answer, self.understood
        events = CompactionEvents(
            shape=understood.events,
            compaction_id=self.started.id,
            head=ChunkHead(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), understood.request.model),
        )
        await answer.start(200, [*HEADERS, *understood.headers(None)])
        await answer.body(events.started(understood.announcement(self.started)))
        prepared = await self._meanwhile(self.decided, events)
        report = understood.report(prepared)
        closing = events.failed if prepared.failed else events.completed
        await answer.body(closing(report, understood.status_member(prepared) if self.tells else b""))
        try:
            observed, answering = await self._meanwhile(obtaining, events)
            await self._relay(answering, observed, events)
        except StenoError as error:
            self.failed(error)
            await answer.end(event(error.envelope))

    async def _relay(self, answering: Answering, observed: Observation, events: CompactionEvents) -> None:
        if answering.status != 200:
            body = bytearray()
            with suppress(StenoError):  # Its status is known: what came of the body has to do.
                await read_refusal_into(body, answering.chunks())
            await self.answer.end(event(error_body(answering.status, answering.headers, bytes(body), time.time())))
            return
        if is_encoded(answering.headers):
            raise UpstreamUnreadable("The provider's answer is compressed, although it was asked not to be.")
        editor = self.understood.stream_editor(observed.prepared, observed.asks_usage, events.sent, tells=self.tells)
        await self.relay(Streamed(answering, self.understood.request.wants_usage), editor, observed)

    async def _meanwhile(self, work: Awaitable[T], events: CompactionEvents) -> T:
        """The result of the work; a keep-alive each time nothing was sent for a while."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=self.keep_alive_seconds))[0]:
                await self.answer.body(events.keep_alive())
            return working.result()
        finally:
            working.cancel()


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer with status 200 as a stream, in whatever form it came: it is paid for."""

    answering: Answering
    wants_usage: bool

    @property
    def status(self) -> int:
        return self.answering.status

    @property
    def headers(self) -> Received:
        return self.answering.headers

    def chunks(self) -> AsyncIterator[bytes]:
        is_stream = media_type(self.headers) == EVENT_STREAM
        chunks, wants_usage = self.answering.chunks(), self.wants_usage
        return as_stream(chunks, is_stream=is_stream, wants_usage=wants_usage, headers=self.headers)

    async def close(self) -> None:
        await self.answering.close()
