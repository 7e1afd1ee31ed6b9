"""Relaying: a provider's answer on its way down to the client."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from app.errors import StenoError, UpstreamDisconnected
from app.formats.answers import AnswerEditor
from app.formats.format import WireFormat
from app.formats.sse import LARGEST_WHOLE, FrameSplitter, first_end, frames_in, last_end
from app.http.asgi import AbortedAnswer, ClientAnswer
from app.http.relayed import EVENT_STREAM, Headers, media_type, returned
from app.http.upstream import UpstreamAnswer, arrived_part, arrived_whole, is_over, read_into
from app.proxy.learning import Observation
from app.proxy.peeking import PeekedAnswer
from app.proxy.record import RequestRecord

FRAMES_AT_ONCE = 64
"""Frames of a stream that are passed on before others have their turn: one read can bring thirty thousand."""


async def relay_raw(answering: UpstreamAnswer, answer: ClientAnswer, own: Headers, record: RequestRecord) -> None:
    """Relay status, headers and bytes as the provider sent them. Raises `AbortedAnswer` if the answer broke off."""
    # A 304 has the length of a body that does not come; uvicorn would wait for it.
    await answer.start(answering.status, returned(answering.headers, own, body_changed=answering.status == 304))
    try:
        async for chunk in answering.chunks():
            await answer.body(chunk)
    except StenoError as error:
        record.cut(error)
        raise AbortedAnswer(error.message) from error
    await answer.end()


class Relay(Struct, frozen=True):
    """Passes answers on, and gives an observation what they say of themselves."""

    answer: ClientAnswer
    record: RequestRecord
    format: WireFormat

    async def start(self, answering: UpstreamAnswer, own: Headers) -> None:
        """Send status and headers of an answer to whose body something is added."""
        if last_end(arrived_part(answering)):
            self.answer.hold_head()
        await self.answer.start(answering.status, returned(answering.headers, own, body_changed=True))

    async def as_sent(self, answering: UpstreamAnswer, own: Headers, reader: AnswerEditor | None = None) -> None:
        """Relay without adding to the body; but a stream that is cut still ends with an error. `reader`: the one that
        is to read what a good answer says of itself, also where the client leaves."""
        kind = media_type(answering.headers)
        if answering.status == 200 and kind == EVENT_STREAM:
            await self.start(answering, own)
            await self.stream(answering, reader or self.format.answers.editor())
            return
        if reader is None or answering.status != 200 or kind != "application/json":
            await relay_raw(answering, self.answer, own, self.record)
            return
        read, chunks = bytearray(), answering.chunks()
        is_whole = await read_into(read, chunks, LARGEST_WHOLE)
        try:
            await relay_raw(PeekedAnswer(answering, chunks, bytes(read)), self.answer, own, self.record)
        finally:
            if is_whole:
                reader.whole(bytes(read))

    async def plain(self, answering: UpstreamAnswer, own: Headers, editor: AnswerEditor, observed: Observation) -> None:
        """Relay with our members, except an answer too large to be held: it passes as it comes."""
        if (body := arrived_whole(answering)) is None:
            read, chunks = bytearray(), answering.chunks()
            if not await read_into(read, chunks, LARGEST_WHOLE):
                await relay_raw(PeekedAnswer(answering, chunks, bytes(read)), self.answer, own, self.record)
                return
            body = bytes(read)
        headers = returned(answering.headers, own, body_changed=True)
        edited = editor.whole(body)
        try:
            await self.answer.whole(answering.status, headers, edited)
        finally:  # The client need not wait for that, and may leave.
            _learn(editor, observed, whole=editor.complete, streamed=False)

    async def stream(
        self, answering: UpstreamAnswer, editor: AnswerEditor, observed: Observation | None = None
    ) -> None:
        """Relay frames as they arrive. A stream that breaks off ends with an error frame, never cleanly."""
        splitter = FrameSplitter()
        last, broken = await self._frames(answering, splitter, editor)
        rest = last + editor.edit(splitter.flush())
        if observed is not None:
            streamed = media_type(answering.headers) == EVENT_STREAM
            _learn(editor, observed, whole=editor.complete and not editor.failed, streamed=streamed)
        if editor.complete:
            await self.answer.end(rest)
            return
        broken = broken or UpstreamDisconnected("The provider's stream ended in the middle of the answer.")
        self.record.cut(broken)
        # What is left of a frame is dropped, and a part of it that was passed on is ended: the error must stand in a
        # frame of its own.
        error = b"".join(map(editor.edit, frames_in(self.format.answers.error_frame(broken))))
        await self.answer.end(last + (b"\n\n" if splitter.overran else b"") + error)

    async def _frames(
        self, answering: UpstreamAnswer, splitter: FrameSplitter, editor: AnswerEditor
    ) -> tuple[bytes, StenoError | None]:
        """Pass on the complete frames, except the last ones, if it is known of them that they are. Returns the
        reason why they broke off, if they did."""
        try:
            async for chunk in answering.chunks():
                frames = splitter.together(chunk)
                start, edited = 0, 0
                while start < len(frames):
                    pieces = []
                    while start < len(frames) and edited < FRAMES_AT_ONCE:
                        if (quiet := editor.quiet(frames, start)) > start:
                            pieces.append(frames[start:quiet])
                            start = quiet
                            continue
                        end = first_end(frames, start)
                        pieces.append(editor.edit(frames[start:end]))
                        start, edited = end, edited + 1
                    passed = b"".join(pieces)
                    if start == len(frames) and is_over(answering):
                        return passed, None
                    await self.answer.body(passed)
                    if edited == FRAMES_AT_ONCE:
                        edited = 0
                        await asyncio.sleep(0)
        except StenoError as error:
            return b"", error
        return b"", None


def _learn(editor: AnswerEditor, observed: Observation, *, whole: bool, streamed: bool) -> None:
    observed.usage(editor.usage, whole=whole, streamed=streamed)
    observed.cut_off(editor)
