"""Peeking: answers whose beginning is read to see what they are, before they are passed on as they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from app.providers.upstream import LONGEST_REFUSAL, Headers, UpstreamAnswer, read_into
from app.wire.format import AnswerEditor
from app.wire.sse import FrameSplitter

FIRST_PIECE_SECONDS = 1.0


@dataclass(slots=True)
class PeekedAnswer:
    """An answer whose beginning was read to see what it is. It is passed on as it came."""

    answering: UpstreamAnswer
    rest: AsyncIterator[bytes]
    read: bytes = b""
    reading: asyncio.Future[bytes] | None = None
    """A piece that had not come yet when it was time to go on."""

    @property
    def status(self) -> int:
        return self.answering.status

    @property
    def headers(self) -> Headers:
        return self.answering.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.read:
            yield self.read
        if self.reading is not None:
            try:
                yield await self.reading
            except StopAsyncIteration:
                return
        async for chunk in self.rest:
            yield chunk

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
            await asyncio.wait({self.reading})
        await self.answering.close()


async def read_refusal(answering: UpstreamAnswer) -> PeekedAnswer:
    """Reads a refusal's body, up to a size no refusal has. Raises the upstream errors."""
    peeked, body = PeekedAnswer(answering, answering.chunks()), bytearray()
    await read_into(body, peeked.rest, LONGEST_REFUSAL)
    peeked.read = bytes(body)
    return peeked


async def read_first_piece(answering: UpstreamAnswer) -> PeekedAnswer:
    """The first piece of a stream if it comes soon: an error that other providers send with its status does."""
    peeked = PeekedAnswer(answering, answering.chunks())
    reading = asyncio.ensure_future(anext(peeked.rest, b""))
    try:
        if (await asyncio.wait({reading}, timeout=FIRST_PIECE_SECONDS))[0]:
            peeked.read = reading.result()
        else:
            peeked.reading = reading
    finally:
        if peeked.reading is None:
            reading.cancel()
    return peeked


def refusal_in(editor: AnswerEditor, piece: bytes) -> bytes:
    """The error that a stream begins with; empty if it begins with anything else. `editor`: a new one."""
    for frame in FrameSplitter().feed(piece):
        editor.edit(frame)
        if editor.refusal or editor.begun:
            break
    return editor.refusal
