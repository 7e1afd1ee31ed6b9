"""Answers on their way to the client, as far as all formats treat them alike: see `AnswerEditor`."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from re import Pattern
from time import time
from typing import Any, ClassVar

from msgspec import Struct

from app.errors import StenoError, UpstreamUnreadable
from app.formats.raw_json import (
    RawObject,
    TooManyValues,
    Unreadable,
    holds_more_values,
    joined_members,
    object_of,
    values_in,
)
from app.formats.refusals import error_body
from app.formats.requests import Headers, WireRequest
from app.formats.spec import FormatSpec
from app.formats.sse import MOST_VALUES, EarlyFrames, EventShape, data_of, event, last_end
from app.formats.usage import LONGEST_USAGE, Usage, says_window_full, text_of, usage_of

LARGEST_WHOLE = 16 << 20
"""Bytes of an answer in one piece that are held, to tell something in it or to make it a stream.

The longest texts of today's models take 1 MB, an answer with a picture a few.
"""
MOST_RAW = 1_000_000
"""Values of an answer that is taken apart but not decoded; the likelihoods of 10,000 tokens are as many."""
IN_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""JSON has line ends between its members only; the data of a frame has none."""
_SPACE = b" \t\r\n"
_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")
_LONGEST_FIELD = len(b"\xef\xbb\xbfevent:")
LONGEST_NAME = 1_000
"""Bytes of what a provider calls its answer, that we tell."""


class ContextMembers(Struct, frozen=True):
    """Members that an answer gets about its context: JSON members without their braces, the same in every format."""

    status: bytes = b""
    """Members sent early: `context_status`."""
    report: bytes = b""
    """Members at the end, or in an answer that is whole: `context_status` and the `context` object."""


UNTOLD = ContextMembers()


@dataclass(slots=True)
class AnswerEditor:
    """One answer on its way to the client: bytes in, bytes out, streamed or whole, and what it says on the way.

    What cannot be read passes as it is: the client's own parser is the judge of it. A stream goes through frame by
    frame, in order, each with the blank line that ends it; what is left of an incomplete one at the end, too. A format
    says what may be notable in a frame, and how that is edited.
    """

    SPEC: ClassVar[FormatSpec]
    NOTABLE: ClassVar[Pattern[bytes]]
    """A frame without any of these says nothing new of itself."""
    CONTENT: ClassVar[Pattern[bytes]]
    """A text that is not empty, or a call, in a frame or in an answer in one piece."""

    context: ContextMembers = UNTOLD
    request: WireRequest | None = None
    """The request that it answers; None for one that was not read."""
    early: EarlyFrames | None = None
    """Frames sent before the answer."""
    hides_usage: bool = False
    """Whether the usage is taken out again: the client did not ask for it, we did, and many clients break on it."""
    usage_said: dict[str, Any] = field(default_factory=dict, init=False)
    """Usage that the answer gave, as received. A stream may give it twice, and the second time counts."""
    model: str = field(default="", init=False)
    tier: str = field(default="", init=False)
    searches: int = field(default=0, init=False)
    window_full: bool = field(default=False, init=False)
    """Whether the answer ended because the model's window was full."""
    at_length: bool = field(default=False, init=False)
    """Whether it ended at a bound of its length, which may be the client's, the model's or the window's."""
    has_content: bool = field(default=False, init=False)
    """Whether the model wrote or called anything."""
    begun: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    """Whether the answer said that it is over, or came in one piece."""
    failed: bool = field(default=False, init=False)
    error: bytes = field(default=b"", init=False)
    provider: dict[str, bytes] = field(default_factory=dict, init=False)
    """Members of the provider's own frames that were replaced by ours."""

    @classmethod
    def begin_early(cls, request: WireRequest, shape: EventShape, compaction_id: str) -> EarlyFrames:
        """Make the frames of a stream that begins before the provider's, in a shape other than `off`."""
        raise NotImplementedError

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Body of a refusal of our own."""
        return error.envelope

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Body of the provider's refusal in a stream that can show no status any more. `now` in Unix seconds."""
        return error_body(status, headers, body, now)

    @property
    def complete(self) -> bool:
        """Whether it had an end of its own, be it an error. A stream without one was cut; a whole answer without one
        could not be read."""
        return self.ended or self.failed

    @property
    def usage(self) -> Usage | None:
        return usage_of(self.usage_said, self.model, self.tier, self.searches)

    def whole(self, body: bytes) -> bytes:
        if holds_more_values(body, MOST_RAW):
            return body
        try:
            answer = RawObject(body)
        except Unreadable:
            return body
        self.ended = True
        self._take(answer)
        self._look_for_content(body)
        return answer.with_status(self.context.report)

    @property
    def continues(self) -> bool:
        """Whether a frame of ours has begun the answer."""
        return self.early is not None and self.early.begins_answer

    def quiet(self, frames: bytes, start: int) -> int:
        """End of the frames from `start` on that pass as they are: they are not looked into."""
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
        """Take what a frame, or an answer in one piece, says of its cost and of its end. Returns the reasons to
        finish."""
        spec = self.SPEC
        for held in (said, *(object_in(said, holder) for holder in spec.holders)):
            self.model = text_of(held, spec.model) or self.model
            self.tier = text_of(held, "service_tier") or self.tier
            raw = held.raw(spec.usage) or b""
            if b"{" in raw and len(raw) <= LONGEST_USAGE:
                given = object_of(held.value(spec.usage))
                self.usage_said.update((name, value) for name, value in given.items() if value is not None)
        reasons = [reason for path in spec.reasons for reason in values_in(said.text, path) if reason]
        self.window_full = self.window_full or any(map(says_window_full, reasons))
        self.at_length = self.at_length or (spec.length_tells_window and spec.cut_off in reasons)
        return reasons

    def _edited(self, said: RawObject) -> bytes:
        """A frame's data, as the client gets them; empty for a frame that is left out."""
        raise NotImplementedError

    def _fail(self, error: bytes) -> None:
        self.error, self.failed = self.error or error, True

    def _last_members(self) -> bytes:
        """The last members, with what the provider said of itself where that was replaced."""
        if not self.provider or not self.context.report:
            return self.context.report
        told = RawObject(b"{%b}" % self.context.report)
        context = RawObject(told.raw("context") or b"{}").spliced(
            add=b'"provider":{%b}' % joined_members(self.provider)
        )
        return told.spliced({"context": context})[1:-1]

    def error_frame(self, error: StenoError) -> bytes:
        return self.failed_by(self.own_error(error))

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        return self.failed_by(self.refusal(status, headers, body, now))

    def failed_by(self, envelope: bytes) -> bytes:
        """The frames that end a stream with an error's body, behind what was sent."""
        return event(envelope)

    def frames_of(self, whole: RawObject) -> Iterable[bytes]:  # noqa: ARG002 - no provider is known to answer so
        """The frames of a stream that says what an answer in one piece does. Raises `Unreadable` for what is none."""
        raise UpstreamUnreadable("The provider's answer is no stream.")

    async def as_stream(
        self, chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Headers
    ) -> AsyncIterator[bytes]:
        """The stream that was asked for, as it comes, out of what came with status 200: a stream, an error, or, from
        some servers, an answer in one piece.

        `is_stream`: its content type says so. Raises `UpstreamUnreadable` for an answer that is neither.
        """
        start = bytearray()
        first: int | None = None  # Where the first character stands.
        begun = False
        async for chunk in chunks:
            if begun:
                yield chunk
                continue
            if first is None and (said := chunk.lstrip(_SPACE)):
                first = len(start) + len(chunk) - len(said)
            start += chunk
            if first is None or start[first] in b"{[":
                if len(start) > LARGEST_WHOLE:
                    raise UpstreamUnreadable(
                        f"The provider's answer is no stream, and larger than {LARGEST_WHOLE} bytes."
                    )
            elif is_stream or _FIELD.match(start, first):
                begun = True
                yield bytes(start)
            elif len(start) - first >= _LONGEST_FIELD or b"\n" in start[first:]:
                raise UpstreamUnreadable(f"The provider's answer is neither a stream nor a {self.SPEC.noun}.")
        if not begun and (start or not is_stream):
            try:
                if holds_more_values(bytes(start), MOST_RAW):
                    raise TooManyValues(f"It has over {MOST_RAW} values.")
                whole = RawObject(bytes(start).translate(IN_ONE_LINE))
                if whole.value("error"):
                    yield self.refusal_frame(200, headers, whole.text, time())
                else:
                    yield b"".join(self.frames_of(whole))
            except Unreadable as error:
                raise UpstreamUnreadable(f"The provider's answer is no {self.SPEC.noun}.") from error


def object_in(said: RawObject, name: str) -> RawObject:
    """A member that is an object; an empty one for what is none."""
    try:
        return RawObject(said.raw(name) or b"{}")
    except Unreadable:
        return RawObject(b"{}")
