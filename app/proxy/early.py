"""Early streams: those that begin before the provider's answer, because a summary is being made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from app.compaction.request import ChatRequest
from app.core.deciding.attempt import CompactionStart
from app.core.stages.ladder import Decision
from app.edge.asgi import ClientAnswer
from app.edge.relayed import EVENT_STREAM, Headers, media_type
from app.edge.upstream import LONGEST_REFUSAL, UpstreamAnswer, read_into
from app.errors import StenoError
from app.proxy.decoding import WrappedAnswer, plain_answer
from app.proxy.learning import Observation
from app.proxy.report import announcement, closing, context_headers, editor_of, status_member
from app.wire.answers import AnswerEditor
from app.wire.early import EarlyFrames
from app.wire.format import WireFormat
from app.wire.sse import frames_in
from app.wire.types import WireRequest

T = TypeVar("T")

HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@dataclass(slots=True)
class BegunStream:
    """Stream that its client has the status of: whatever the provider answers becomes a part of it."""

    answer: ClientAnswer
    request: ChatRequest
    relays: Callable[[UpstreamAnswer, AnswerEditor, Observation], Awaitable[None]]
    """Function that passes the provider's stream on."""
    reports: bool
    """True if the status stands in the chunks."""
    events: EarlyFrames | None = None
    """Events of a compaction that were sent on it."""

    async def relay(self, observed: Observation, answered: UpstreamAnswer) -> None:
        """Relay an answer. Raises the upstream errors if it is none."""
        answering = plain_answer(answered)
        if answering.status != 200:
            body = bytearray()
            with suppress(StenoError):  # Its status is known: what came of the body has to do.
                await read_into(body, answering.chunks(), LONGEST_REFUSAL)
            refused = answering.status, answering.headers, bytes(body)
            await self.end_with(self.request.format.answers.refusal_frame(*refused, time.time()))
            return
        editor = editor_of(observed.request, observed.decision, observed.asks_usage, self.events, reports=self.reports)
        await self.relays(StreamedAnswer(answering, self.request.format, self.request.wire), editor, observed)

    async def end_with(self, error: bytes) -> None:
        """Write an error as it stands behind what was sent: it belongs to the same answer."""
        editor = self.request.format.answers.editor(request=self.request.wire, early=self.events)
        await self.answer.end(b"".join(map(editor.edit, frames_in(error))))


@dataclass(slots=True)
class EarlyStream:
    stream: BegunStream
    started: CompactionStart
    decided: Callable[[], Awaitable[Decision]]
    failed: Callable[[StenoError], None]
    """Called with an error of ours that becomes a frame."""
    keep_alive_seconds: float

    async def serve(self, obtaining: asyncio.Future[tuple[Observation, UpstreamAnswer]]) -> None:
        stream, answer, request = self.stream, self.stream.answer, self.stream.request
        events = stream.events = request.format.answers.early(request.wire, request.events, self.started.id)
        if not answer.started:
            await answer.start(200, [*HEADERS, *context_headers(request, None)])
        await answer.body(events.started(announcement(request, self.started)))
        decision = await self._meanwhile(self.decided(), events)
        close = events.failed if decision.failed else events.completed
        await answer.body(close(closing(request, decision), status_member(decision) if stream.reports else b""))
        try:
            await stream.relay(*await self._meanwhile(obtaining, events))
        except StenoError as error:
            self.failed(error)
            await stream.end_with(request.format.answers.error_frame(error))

    async def _meanwhile(self, work: Awaitable[T], events: EarlyFrames) -> T:
        """Return the result of the work; send a keep-alive each time nothing was sent for a while."""
        return await kept_alive(work, self.keep_alive_seconds, lambda: self.stream.answer.body(events.keep_alive()))


class StreamedAnswer(WrappedAnswer):
    """Answer with status 200 as a stream, in whatever form it came: it is paid for."""

    format: WireFormat
    wire: WireRequest

    def chunks(self) -> AsyncIterator[bytes]:
        is_stream = media_type(self.headers) == EVENT_STREAM
        chunks = self.answering.chunks()
        return self.format.answers.as_stream(self.wire, chunks, is_stream=is_stream, headers=self.headers)


async def kept_alive(work: Awaitable[T], seconds: float, say: Callable[[], Awaitable[object]]) -> T:
    """Return the result of the work; call `say` each time nothing was said for so many seconds."""
    working = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({working}, timeout=seconds))[0]:
            await say()
        return working.result()
    finally:
        working.cancel()
