"""Streams that begin before the provider answers, while a summary is being made: events and keep-alives."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.compaction.compactor import CompactionStart
from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.errors import StenoError, UpstreamUnreadable
from app.formats.answers import UNTOLD
from app.http.encodings import encoding_of
from app.http.headers import EVENT_STREAM, Headers, media_type
from app.http.upstream import LONGEST_REFUSAL
from app.proxy.caller import Caller
from app.proxy.exchange import Attempt, Exchange
from app.proxy.reply import context_headers, context_members, context_of, relay_stream, status_member

SILENCE_SHARE = 1 / 3
"""Longest silence of a stream, as a share of the client's timeout. With a third, one late keep-alive does no harm."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between keep-alives, unless the client has a short timeout. The timeouts of reverse proxies are longer."""
LEAST_SILENCE = 1.0
"""Shortest time between keep-alives in seconds, however short the client's timeout is."""
HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def longest_silence(caller: Caller) -> float:
    """Return the seconds between keep-alives to this client. They depend on the client's timeout."""
    return min(KEEP_ALIVE_SECONDS, max(LEAST_SILENCE, SILENCE_SHARE * caller.patience()))


def announce_summary(exchange: Exchange, request: ChatRequest, started: CompactionStart) -> None:
    """Record that the request waits for a summary. Unless events are off, begin the client's stream with an event."""
    exchange.waits_for_summary = True
    if request.events != "off" and exchange.stream is None:
        exchange.stream = EarlyStream(exchange, request, started)


class EarlyStream:
    """Stream to a client before the provider answers, in three states:

    1. Announced: the head and `compaction_started` were sent. Keep-alives follow until Steno decides on the payload.
    2. Decided: `compaction_completed` or `compaction_failed` was sent. Keep-alives follow until the provider answers.
    3. Answered: Steno sends the provider's answer, or an error of its own, as a part of this stream.
    """

    def __init__(self, exchange: Exchange, request: ChatRequest, started: CompactionStart) -> None:
        self._exchange = exchange
        self._request = request
        self._reports = exchange.services.events.body
        """True if Steno adds the context status to the stream's frames."""
        loop = asyncio.get_running_loop()
        self._decided: asyncio.Future[Decision] = loop.create_future()
        self._answered: asyncio.Future[None] = loop.create_future()
        self._events = request.format.editor.EARLY(request.events, started.id, request.wire.model)
        self._task = loop.create_task(self._write(started))
        """Task that writes the events and keep-alives before the answer."""

    def decide(self, decision: Decision) -> None:
        """Announce the result of the compaction, unless the result was announced before."""
        if not self._decided.done():
            self._decided.set_result(decision)

    async def relay(self, attempt: Attempt) -> None:
        """Relay the provider's answer as a part of the stream. Raises the upstream errors."""
        self.decide(attempt.decision)  # If recovery failed, the stream may have begun without a decision.
        await self._end_waiting()
        answering, request = attempt.answering, attempt.request
        headers, status = answering.headers, answering.status
        encoding = encoding_of(headers)
        context = context_members(request, attempt.decision) if self._reports and status == 200 else UNTOLD
        editor = request.format.editor(context, request.wire, self._events, hides_usage=attempt.asks_usage)
        if status != 200:
            # An incomplete body is enough to report the status.
            body = b"" if encoding else (await answering.read_ahead(LONGEST_REFUSAL, raises=False))[0]
            await self._exchange.client.end(editor.refusal_frame(status, headers, body, time.time()))
            return
        if encoding:
            raise UpstreamUnreadable(
                f"The provider's answer is compressed ({encoding:.100}), although Steno asked for no compression."
            )
        frames = editor.as_stream(answering, is_stream=media_type(headers) == EVENT_STREAM, headers=headers)
        await relay_stream(self._exchange, frames, editor, learns=True)

    async def fail(self, error: StenoError) -> None:
        await self._end_waiting()
        editor = self._request.format.editor(request=self._request.wire, early=self._events)
        await self._exchange.client.end(editor.error_frame(error))

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self, started: CompactionStart) -> None:
        request, client, events = self._request, self._exchange.client, self._events
        await client.start(200, [*HEADERS, *context_headers(request, None)])
        line, tokens = request.budget.line, request.conversation.tokens
        known = {
            "conversation_id": request.conversation_id,
            "messages": {"summarizing": started.messages},
            "tokens": {"estimated": line.to_provider_tokens(tokens), "window": request.window.context},
        }
        await client.body(events.frame("compaction_started", known))
        await self._keep_alive(self._decided)
        decision = self._decided.result()
        details: dict[str, Any] = dict(context_of(request, decision))
        members = status_member(decision) if self._reports else b""
        kind = "compaction_failed" if decision.failed else "compaction_completed"
        await client.body(events.frame(kind, details, members))
        await self._keep_alive(self._answered)

    async def _keep_alive(self, until: asyncio.Future[Any]) -> None:
        while not (await asyncio.wait({until}, timeout=longest_silence(self._exchange.caller)))[0]:
            await self._exchange.client.body(self._events.keep_alive())

    async def _end_waiting(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        await self._task
