"""The format, put together."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence

import msgspec

from app.core.tokens.rules import CountingRules
from app.core.view.view import Conversation, View
from app.errors import StenoError
from app.wire.beginnings import Beginnings
from app.wire.format import (
    BOUNDS,
    UNTOLD,
    BodyBounds,
    ContextMembers,
    Draft,
    EarlyFrames,
    EventShape,
    Headers,
    SummaryDialect,
    WireFormat,
    WireRequest,
)
from app.wire.members import RawObject
from app.wire.model import model_in
from app.wire.native import NativeCompaction
from app.wire.provider_errors import error_body
from app.wire.responses.early import CompactionEvents
from app.wire.responses.editor import ResponsesEditor
from app.wire.responses.frames import error_frames
from app.wire.responses.items import INSTRUCTIONS, read_item, stands_beside
from app.wire.responses.native import ResponsesCompaction
from app.wire.responses.payload import render
from app.wire.responses.request import NAME, PATH, ResponsesRequest, as_item, read_request
from app.wire.responses.streamed import as_stream
from app.wire.responses.summaries import ResponsesSummaries
from app.wire.responses.tokens import token_rules


class Responses:
    name = NAME
    path = PATH
    opens_early = True
    summaries: SummaryDialect = ResponsesSummaries()
    native: NativeCompaction | None = ResponsesCompaction()

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> ResponsesRequest:
        return read_request(body, bounds, beginnings)

    def window_asked(self, headers: Headers) -> None:
        """No header of this format is about the window."""

    def model_in(self, body: bytes) -> str:
        return model_in(body)

    def token_rules(self, model: str, host: str = "") -> CountingRules:
        return token_rules(model, host)

    def message(self, raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
        return read_item(raw, ignore)

    def alone(self, raw: bytes) -> bytes:
        """What stands beside the input is the whole member, with its key."""
        return b"{%b}" % raw if INSTRUCTIONS.match(raw) else raw

    def raw_of(self, alone: bytes) -> bytes:
        return alone[1:-1] if stands_beside(alone) else alone

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - nobody has to say
        members = [b'"model":%b' % msgspec.json.encode(model)]
        if messages and stands_beside(messages[0]):
            members.append(messages[0][1:-1])
            messages = messages[1:]
        members.append(b'"input":[%b]' % b",".join(map(as_item, messages)))
        return b"{%b}" % b",".join(members)

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        return render(conversation, view, alternate)

    def dropping(self, payload: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """No thoughts are tied in this format: what is encrypted is taken anywhere."""
        return payload, headers

    def messages_in(self, payload: bytes) -> bytes:
        return RawObject(payload).raw("input") or b"[]"

    def editor(
        self,
        context: ContextMembers = UNTOLD,
        request: WireRequest | None = None,  # noqa: ARG002 - one answer is like another
        early: EarlyFrames | None = None,
        *,
        hides_usage: bool = False,  # noqa: ARG002 - it is given unasked
    ) -> ResponsesEditor:
        return ResponsesEditor(context.status, context.report, early if isinstance(early, CompactionEvents) else None)

    def early(self, request: WireRequest, shape: EventShape, compaction_id: str) -> CompactionEvents:
        """The safest frame is a comment. Where the provider keeps the answer, an id of ours would come back to it."""
        stores = not isinstance(request, ResponsesRequest) or request.stores
        quiet = shape == "chunk" or (shape == "start" and stores)
        return CompactionEvents("comment" if quiet else shape, compaction_id, request.model)

    def as_stream(
        self,
        request: WireRequest,  # noqa: ARG002 - one stream is like another
        chunks: AsyncIterator[bytes],
        *,
        is_stream: bool,
        headers: Headers,
    ) -> AsyncIterator[bytes]:
        return as_stream(chunks, is_stream=is_stream, headers=headers)

    def error(self, error: StenoError) -> bytes:
        return error.envelope

    def error_frame(self, error: StenoError) -> bytes:
        return error_frames(error.envelope)

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        return error_frames(error_body(status, headers, body, now))

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:  # noqa: ARG002 - it knows none
        return False

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:  # noqa: ARG002 - it is given unasked
        return False


RESPONSES: WireFormat = Responses()
