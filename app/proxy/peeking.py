"""Peeking: the beginning of an answer is read to see what it is, before it is passed on as it came."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic

from app.errors import StenoError
from app.formats.answers import AnswerEditor
from app.formats.format import WireFormat
from app.formats.sse import FrameSplitter
from app.http.connection import Exchange
from app.http.upstream import LONGEST_REFUSAL, UpstreamAnswer, read_into
from app.proxy.decoding import WrappedAnswer

FIRST_PIECE_SECONDS = 1.0
"""Seconds for which the beginning of a stream is held back, until the model says something: it may be an error, or end
without a word because the prompt fills the window."""


class PeekedAnswer(WrappedAnswer):
    """Answer whose beginning was read to see what it is. It is passed on as it came."""

    rest: AsyncIterator[bytes]
    read: bytes = b""
    broken: StenoError | None = None
    """Reason why it broke off while it was read."""
    is_whole: bool = False
    """True if all of it was read."""

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.read:
            yield self.read
        if self.broken is not None:
            raise self.broken
        async for chunk in self.rest:
            yield chunk


async def read_whole(
    answering: UpstreamAnswer, most: int = LONGEST_REFUSAL, *, is_passed_on: bool = False
) -> PeekedAnswer:
    """Read a body, up to so many bytes. Raises the upstream errors, unless it is passed on: then they are met there."""
    peeked, body = PeekedAnswer(answering, answering.chunks()), bytearray()
    try:
        peeked.is_whole = await read_into(body, peeked.rest, most)
    except StenoError as error:
        if not is_passed_on:
            raise
        peeked.broken = error
    peeked.read = bytes(body)
    return peeked


async def read_beginning(answering: Exchange, format_: WireFormat) -> tuple[AnswerEditor, bool]:
    """Read a stream until the model says something, it ends, or `FIRST_PIECE_SECONDS` have passed. Returns what it
    says of itself, and whether the model said something. Raises the upstream errors."""
    until = monotonic() + FIRST_PIECE_SECONDS
    editor, splitter, seen = format_.answers.editor(), FrameSplitter(), 0
    beginning = await answering.beginning(FIRST_PIECE_SECONDS)
    while len(beginning) > seen:
        for frame in splitter.feed(beginning[seen:]):
            editor.edit(frame)
            if editor.CONTENT.search(frame):
                return editor, True
        seen, left = len(beginning), until - monotonic()
        if left <= 0 or editor.ended or editor.failed:
            break
        beginning = await answering.beginning(left, seen)
    return editor, False
