"""Peeking: the beginning of an answer is read to see what it is, before it is passed on as it came."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from time import monotonic

from app.edge.connection import Exchange
from app.edge.upstream import LONGEST_REFUSAL, UpstreamAnswer, read_into
from app.errors import StenoError
from app.proxy.decoding import WrappedAnswer
from app.wire.answers import AnswerEditor
from app.wire.format import WireFormat
from app.wire.sse import FrameSplitter, may_tell_error

FIRST_PIECE_SECONDS = 1.0
"""Seconds to wait for a stream's beginning: an error that other providers send with their status. Where streams are
opened before the prompt is looked at, the frames that say so may be held back as long, too."""


class PeekedAnswer(WrappedAnswer):
    """Answer whose beginning was read to see what it is. It is passed on as it came."""

    rest: AsyncIterator[bytes]
    read: bytes = b""
    broken: StenoError | None = None
    """Reason why it broke off while it was read."""

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.read:
            yield self.read
        if self.broken is not None:
            raise self.broken
        async for chunk in self.rest:
            yield chunk


async def read_refusal(answering: UpstreamAnswer, *, is_passed_on: bool = False) -> PeekedAnswer:
    """Read a refusal's body, up to a size no refusal has. Raises the upstream errors, unless it is passed on: then
    whoever does that meets them."""
    peeked, body = PeekedAnswer(answering, answering.chunks()), bytearray()
    try:
        await read_into(body, peeked.rest, LONGEST_REFUSAL)
    except StenoError as error:
        if not is_passed_on:
            raise
        peeked.broken = error
    peeked.read = bytes(body)
    return peeked


async def first_error(answering: Exchange, format_: WireFormat) -> bytes:
    """Return what `refusal_in` finds in a stream. Raises the upstream errors."""
    until = monotonic() + FIRST_PIECE_SECONDS
    editor, splitter, seen = format_.answers.editor(), FrameSplitter(), 0
    beginning = await answering.beginning(FIRST_PIECE_SECONDS)
    while may_tell_error(beginning) or format_.answers.opens_early:
        if refusal_in(editor, splitter.feed(beginning[seen:])) or editor.begun or not format_.answers.opens_early:
            break
        seen, left = len(beginning), until - monotonic()
        beginning = await answering.beginning(left, seen) if left > 0 else beginning
        if len(beginning) == seen:
            break
    return editor.refusal


def refusal_in(editor: AnswerEditor, frames: Iterable[bytes]) -> bytes:
    """Return the error that a stream begins with; empty if it begins with anything else. `editor`: a new one, or one
    that has seen the frames before."""
    for frame in frames:
        editor.edit(frame)
        if editor.refusal or editor.begun:
            break
    return editor.refusal
