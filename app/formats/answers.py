"""Editing of answers on the way to the client: the code that all formats share. See `AnswerEditor`."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from re import Pattern
from time import time
from typing import Any, ClassVar

from msgspec import Struct

from app.errors import StenoError, UpstreamUnreadable
from app.formats.compaction_events import EarlyFrames
from app.formats.raw_json import RawObject, Unreadable, holds_more_values, object_of, values_at
from app.formats.refusals import decoded_body, error_body
from app.formats.requests import Headers, WireRequest
from app.formats.spec import Ending, FormatSpec, says_window_full
from app.formats.sse import MOST_VALUES, data_of, event, last_end
from app.formats.usage import Usage, usage_members, usage_of

LARGEST_WHOLE = 16 << 20
"""Maximum bytes of an unstreamed answer that Steno buffers and edits. The longest texts of today's models take 1 MB. An
answer with a picture takes a few MB."""
LONGEST_ERROR = 64 << 10
"""Maximum bytes that Steno searches for an error if a provider answers with status 200 but sends no stream."""
_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")


class ContextMembers(Struct, frozen=True):
    """JSON members that Steno adds to an answer, without braces. They tell the client about the context."""

    status: bytes = b""
    """Members for the beginning of a stream: `context_status`."""
    report: bytes = b""
    """Members for the end of a stream, or for an unstreamed answer: `context_status` and `context`."""


UNTOLD = ContextMembers()


@dataclass(slots=True)
class AnswerEditor:
    """Editor of one streamed or unstreamed answer to the client. It also records the answer's usage, end and errors.

    Unreadable bytes pass unchanged. `edit` takes the frames of a stream in order, one at a time, each with its final
    blank line. The last frame may be incomplete. Each format selects the frames by `NOTABLE`, and edits them.
    """

    SPEC: ClassVar[FormatSpec]
    NOTABLE: ClassVar[Pattern[bytes]]
    """Pattern of the frames that Steno parses after the answer has begun."""
    CONTENT: ClassVar[Pattern[bytes]]
    """Pattern of a non-empty text, or of a call. Steno applies it to frames and to unstreamed answers."""
    EARLY: ClassVar[type[EarlyFrames]]

    context: ContextMembers = UNTOLD
    request: WireRequest | None = None
    """The answered request; None if Steno did not parse it."""
    early: EarlyFrames | None = None
    """Writer of the frames that Steno sends before the provider's answer."""
    hides_usage: bool = False
    """Whether to remove usage that only Steno requested. Many clients fail on usage that they did not request."""
    usage_said: dict[str, Any] = field(default_factory=dict, init=False)
    """Usage members as received. If a stream reports usage twice, the later values count."""
    model: str = field(default="", init=False)
    tier: str = field(default="", init=False)
    searches: int = field(default=0, init=False)
    window_full: bool = field(default=False, init=False)
    """Whether the answer ended because the model's window was full."""
    at_length: bool = field(default=False, init=False)
    """Whether the answer ended at a limit of length: the client's, the model's or the window's."""
    has_content: bool = field(default=False, init=False)
    """Whether the answer has text or a call."""
    begun: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    """Whether the stream has reported its end. Always true for a readable unstreamed answer."""
    failed: bool = field(default=False, init=False)
    error: bytes = field(default=b"", init=False)

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Return the body that reports one of Steno's own errors to the client."""
        return error.envelope

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Return the body that reports a refusal to a client that already has status 200. `now`: Unix seconds."""
        return error_body(status, headers, body, now)

    @property
    def complete(self) -> bool:
        """Whether the answer ended or failed. False if a stream was cut off, or an unstreamed answer is unreadable."""
        return self.ended or self.failed

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model, self.tier, self.searches)

    def whole(self, body: bytes) -> bytes:
        if holds_more_values(body, MOST_VALUES):
            return body
        try:
            answer = RawObject(body)
        except Unreadable:
            return body
        self.ended = True
        self._take(answer)
        self._look_for_content(body)
        return answer.with_status(self.context.report)

    def quiet(self, frames: bytes, start: int) -> int:
        """Return the index of the first frame from `start` on that may need an edit, or else the end of `frames`."""
        if not self.begun:
            return start
        notable = self.NOTABLE.search(frames, start)
        stop = len(frames) if notable is None else last_end(frames, start, notable.start())
        self._look_for_content(frames, start, stop)
        return stop

    def edit(self, frame: bytes) -> bytes:
        data = data_of(frame)
        if data is None:
            self._look_for_content(frame)
            return frame
        start, stop = data
        edited = text = frame[start:stop]
        if not (self._passes(text) or holds_more_values(text, MOST_VALUES)):
            with suppress(Unreadable):
                edited = self._edited(RawObject(text))
        self._look_for_content(text)
        if edited == text:
            return frame
        return frame[:start] + edited + frame[stop:] if edited else b""

    def _passes(self, text: bytes) -> bool:
        return self.begun and self.NOTABLE.search(text) is None

    def _look_for_content(self, frames: bytes, start: int = 0, stop: int = sys.maxsize) -> None:
        if not self.has_content and not self.failed:
            self.has_content = self.CONTENT.search(frames, start, stop) is not None

    def _take(self, said: RawObject) -> list[object]:
        """Record usage, model, service tier, and whether a limit ended the answer. Return the finish reasons."""
        spec = self.SPEC
        held = said.values()
        usage, model, tier = usage_members(spec, held)
        self.usage_said |= usage
        self.model, self.tier = model or self.model, tier or self.tier
        reasons = [reason for path in spec.reasons for reason in values_at(held, path) if reason]
        is_cut_off = Ending.CUT_OFF in map(spec.ending_of, reasons)
        self.window_full = self.window_full or (is_cut_off and any(map(says_window_full, reasons)))
        self.at_length = self.at_length or (spec.length_tells_window and is_cut_off)
        return reasons

    def _edited(self, said: RawObject) -> bytes:
        """Return a frame's data for the client; empty if Steno drops the frame."""
        raise NotImplementedError

    def _fail(self, error: bytes) -> None:
        self.error, self.failed = self.error or error, True

    def error_frame(self, error: StenoError) -> bytes:
        return self.failed_by(self.own_error(error))

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        return self.failed_by(self.refusal(status, headers, body, now))

    def failed_by(self, envelope: bytes) -> bytes:
        """Return the frames that report the error body `envelope` and end the stream."""
        return event(envelope)

    async def as_stream(
        self, chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Headers
    ) -> AsyncIterator[bytes]:
        """Yield the stream from a body with status 200. If the body is an error, yield frames that report the error.

        `is_stream`: the content type is that of a stream. Raises `UpstreamUnreadable` for any other kind of body.
        """
        start, begun = b"", False
        async for chunk in chunks:
            if begun:
                yield chunk
                continue
            start += chunk
            said = start.lstrip(b" \t\r\n")
            if (is_stream and said[:1] not in (b"", b"{", b"[")) or _FIELD.match(said):
                begun = True
                yield start
            elif len(start) > LONGEST_ERROR:
                break
        if begun:
            return
        if object_of(decoded_body(start)).get("error"):
            yield self.refusal_frame(200, headers, start, time())
        elif start or not is_stream:
            raise UpstreamUnreadable("The provider's answer is no stream.")
