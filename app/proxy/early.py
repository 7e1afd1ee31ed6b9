"""Early streams: those that begin before the provider's answer, because a summary is being made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from app.compaction.request import ChatRequest
from app.errors import StenoError
from app.formats.format import WireFormat
from app.formats.requests import WireRequest
from app.formats.sse import EarlyFrames, frames_in
from app.http.relayed import EVENT_STREAM, Headers, media_type
from app.http.upstream import LONGEST_REFUSAL, UpstreamAnswer, read_into
from app.proxy.caller import Caller
from app.proxy.decoding import WrappedAnswer, plain_answer
from app.proxy.learning import Observation
from app.proxy.milestones import Milestones
from app.proxy.relaying import Relay
from app.proxy.report import announcement, closing, context_headers, editor_of, status_member

T = TypeVar("T")

SILENCE_SHARE = 1 / 3
"""Share of the timeout a client announces for which a stream may be silent: one keep-alive may be late."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between keep-alives for a client that announces no timeout: less than any proxy on the way waits."""
LEAST_SILENCE = 1.0
"""Seconds between keep-alives, whatever a client announces."""
HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def keep_alive_seconds(caller: Caller) -> float:
    """Seconds of silence after which a keep-alive is due: less than usual if the client announces that it waits for
    less."""
    return min(KEEP_ALIVE_SECONDS, max(LEAST_SILENCE, SILENCE_SHARE * caller.patience()))


class EarlyStream(Struct, frozen=True):
    """Stream that tells of a compaction first: whatever the provider answers becomes a part of it."""

    relay: Relay
    request: ChatRequest
    milestones: Milestones
    reports: bool
    """True if the status stands in the chunks."""
    keep_alive_seconds: float

    async def serve(self, obtaining: asyncio.Future[tuple[Observation, UpstreamAnswer]]) -> None:
        """Tell of the compaction, and pass on the answer that is being obtained."""
        answer, request, started = self.relay.answer, self.request, await self.milestones.started()
        events = request.format.answers.early(request.wire, request.events, started.id)
        await answer.start(200, [*HEADERS, *context_headers(request, None)])
        await answer.body(events.started(announcement(request, started)))
        decision = await self._kept_alive(self.milestones.decided(), events)
        close = events.failed if decision.failed else events.completed
        await answer.body(close(closing(request, decision), status_member(decision) if self.reports else b""))
        try:
            await self._pass_on(*await self._kept_alive(obtaining, events), events)
        except StenoError as error:
            self.relay.record.failed(error)
            await self._end_with(request.format.answers.error_frame(error), events)

    async def _pass_on(self, observed: Observation, answered: UpstreamAnswer, events: EarlyFrames) -> None:
        """Pass on an answer. Raises the upstream errors if it is none."""
        answering, request = plain_answer(answered), self.request
        if answering.status != 200:
            body = bytearray()
            with suppress(StenoError):  # Its status is known: what came of the body has to do.
                await read_into(body, answering.chunks(), LONGEST_REFUSAL)
            refused = answering.status, answering.headers, bytes(body)
            await self._end_with(request.format.answers.refusal_frame(*refused, time.time()), events)
            return
        editor = editor_of(observed.request, observed.decision, observed.asks_usage, events, reports=self.reports)
        await self.relay.stream(StreamedAnswer(answering, request.format, request.wire), editor, observed)

    async def _end_with(self, error: bytes, events: EarlyFrames) -> None:
        """Write an error as it stands behind what was sent: it belongs to the same answer."""
        editor = self.request.format.answers.editor(request=self.request.wire, early=events)
        await self.relay.answer.end(b"".join(map(editor.edit, frames_in(error))))

    async def _kept_alive(self, work: Awaitable[T], events: EarlyFrames) -> T:
        """Return the result of the work; send a keep-alive each time nothing was sent for a while."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=self.keep_alive_seconds))[0]:
                await self.relay.answer.body(events.keep_alive())
            return working.result()
        finally:
            working.cancel()


class StreamedAnswer(WrappedAnswer):
    """Answer with status 200 as a stream, in whatever form it came: it is paid for."""

    format: WireFormat
    wire: WireRequest

    def chunks(self) -> AsyncIterator[bytes]:
        is_stream = media_type(self.headers) == EVENT_STREAM
        chunks = self.answering.chunks()
        return self.format.answers.as_stream(self.wire, chunks, is_stream=is_stream, headers=self.headers)
