"""Streams to a client that begin before the provider answers, while a summary is being made: see `EarlyStream`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from app.compaction.compactor import CompactionStart
from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.errors import StenoError, UpstreamUnreadable
from app.formats.answers import UNTOLD
from app.http.connection import UpstreamExchange
from app.http.encodings import DecodedTooLarge, UndecodableBody, decoders, encodings_of, ended, fed
from app.http.headers import EVENT_STREAM, Headers, media_type
from app.http.upstream import LONGEST_REFUSAL, read_into
from app.http.upstream import Headers as Received
from app.proxy.exchange import Attempt, Exchange
from app.proxy.reply import (
    context_headers,
    context_members,
    context_of,
    relay_stream,
    status_member,
)

MOST_OF_ANSWER = 256 << 20
"""Maximum decoded bytes of a compressed answer: several times the longest stream."""
HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def announce(exchange: Exchange, request: ChatRequest, started: CompactionStart) -> None:
    """Note that a summary is being made, and begin the client's stream with an event about it unless events are off."""
    exchange.has_waited = True
    if request.events != "off" and exchange.stream is None:
        exchange.stream = EarlyStream(exchange, request, started)


class EarlyStream:
    """Stream to a client before the provider answers, in three states:

    1. Announced: the head and `compaction_started` were sent. Keep-alives follow until Steno decides on the payload.
    2. Decided: `compaction_completed` or `compaction_failed` was sent. Keep-alives follow until the provider answers.
    3. Answered: the provider's answer, or an error of Steno's own, is sent as a part of this stream.
    """

    def __init__(self, exchange: Exchange, request: ChatRequest, started: CompactionStart) -> None:
        self._exchange = exchange
        self._request = request
        self._reports = exchange.services.events.body
        """True if the chunks contain the status."""
        loop = asyncio.get_running_loop()
        self._decided: asyncio.Future[Decision] = loop.create_future()
        self._answered: asyncio.Future[None] = loop.create_future()
        self._events = request.format.editor.begin_early(request.wire, request.events, started.id)
        self._task = loop.create_task(self._write(started))
        """Task that writes the events and keep-alives before the answer."""

    def decide(self, decision: Decision) -> None:
        """Announce the result of the compaction. Later decisions are not announced."""
        if not self._decided.done():
            self._decided.set_result(decision)

    async def relay(self, attempt: Attempt) -> None:
        """Relay the provider's answer as a part of the stream. Raises the upstream errors."""
        await self._end_waiting()
        (headers, chunks), status, request = plain(attempt.answering), attempt.answering.status, attempt.request
        reports, events = self._reports and status == 200, self._events
        context = context_members(request, attempt.decision) if reports else UNTOLD
        editor = request.format.editor(context, request.wire, events, hides_usage=attempt.asks_usage)
        if status != 200:
            body = bytearray()
            with suppress(StenoError):  # An incomplete body is enough, because the status is known.
                await read_into(body, chunks, LONGEST_REFUSAL)
            await self._exchange.client.end(editor.refusal_frame(status, headers, bytes(body), time.time()))
            return
        frames = editor.as_stream(chunks, is_stream=media_type(headers) == EVENT_STREAM, headers=headers)
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
        details: dict[str, Any] = msgspec.to_builtins(context_of(request, decision))
        members = status_member(decision) if self._reports else b""
        kind = "compaction_failed" if decision.failed else "compaction_completed"
        await client.body(events.frame(kind, details, members))
        await self._keep_alive(self._answered)

    async def _keep_alive(self, until: asyncio.Future[Any]) -> None:
        while not (await asyncio.wait({until}, timeout=self._exchange.caller.longest_silence()))[0]:
            await self._exchange.client.body(self._events.keep_alive())

    async def _end_waiting(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        await self._task


def plain(answering: UpstreamExchange) -> tuple[Received, AsyncIterator[bytes]]:
    """Return headers and decoded body of an answer. A provider may encode it although Steno asks for no encoding."""
    encodings, chunks = encodings_of(answering.headers), answering.chunks()
    if encodings.strip().lower() in ("", "identity"):
        return answering.headers, chunks
    return [header for header in answering.headers if header[0] != b"content-encoding"], _decoded(chunks, encodings)


async def _decoded(chunks: AsyncIterator[bytes], encodings: str) -> AsyncIterator[bytes]:
    """Yield decoded pieces. Raises `UpstreamUnreadable`."""
    if (by := decoders(encodings, MOST_OF_ANSWER)) is None:
        raise UpstreamUnreadable(
            "The provider's answer is compressed, although it was asked not to be, in a way that Steno cannot undo:"
            f" {encodings:.100}. Steno can undo gzip, deflate and zstd."
        )
    try:
        async for chunk in chunks:
            async for piece in _in_turns(fed(by, chunk)):
                yield piece
        async for piece in _in_turns(ended(by)):
            yield piece
    except UndecodableBody as error:
        text = f"The provider's answer is compressed, and not as its content-encoding says: {error}"
        raise UpstreamUnreadable(text) from error
    except DecodedTooLarge as error:
        text = f"The provider's answer is compressed, and has more than {MOST_OF_ANSWER} bytes when decoded."
        raise UpstreamUnreadable(text) from error


async def _in_turns(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces, and let other tasks run between them, because a few bytes may decode to very many."""
    for number, piece in enumerate(pieces):
        if number:
            await asyncio.sleep(0)
        yield piece
