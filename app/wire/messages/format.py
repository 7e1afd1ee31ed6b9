"""The format, put together."""

from __future__ import annotations

import re
import secrets
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
from app.wire.messages.early import MessageEvents
from app.wire.messages.editor import MessageEditor
from app.wire.messages.errors import own_error, own_error_frame, refusal_frame
from app.wire.messages.messages import is_beside, read_message
from app.wire.messages.native import MessagesCompaction
from app.wire.messages.payload import render
from app.wire.messages.request import NAME, PATH, MessagesRequest, dropping, read_request, refuses_ties, window_asked
from app.wire.messages.streamed import as_stream
from app.wire.messages.summaries import MessagesSummaries
from app.wire.messages.tokens import token_rules
from app.wire.model import model_in
from app.wire.native import NativeCompaction


class Messages:
    name = NAME
    path = PATH
    opens_early = False
    summaries: SummaryDialect = MessagesSummaries()
    native: NativeCompaction | None = MessagesCompaction()

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> MessagesRequest:
        return read_request(body, bounds, beginnings)

    def window_asked(self, headers: Headers) -> int | None:
        return window_asked(headers)

    def model_in(self, body: bytes) -> str:
        return model_in(body)

    def token_rules(self, model: str, host: str = "") -> CountingRules:
        return token_rules(model, host)

    def message(self, raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
        return read_message(raw, ignore)

    def alone(self, raw: bytes) -> bytes:
        return raw

    def raw_of(self, alone: bytes) -> bytes:
        return alone

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:
        shown = b'{"model":%b' % msgspec.json.encode(model)
        if output is not None:
            shown += b',"max_tokens":%d' % output
        if messages and is_beside(messages[0]):
            shown += b',"system":%b' % messages[0]
        return shown + b',"messages":[%b]}' % b",".join(raw for raw in messages if not is_beside(raw))

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        return render(conversation, view, alternate)

    def dropping(self, payload: bytes, headers: Headers) -> tuple[bytes, Headers]:
        return dropping(payload, headers)

    def messages_in(self, payload: bytes) -> bytes:
        return RawObject(payload).raw("messages") or b"[]"

    def editor(
        self,
        context: ContextMembers = UNTOLD,
        request: WireRequest | None = None,  # noqa: ARG002 - all there is to know of an answer stands in it
        early: EarlyFrames | None = None,
        *,
        hides_usage: bool = False,  # noqa: ARG002 - a stream gives it unasked
    ) -> MessageEditor:
        begins_answer = isinstance(early, MessageEvents) and early.begins_answer
        return MessageEditor(context.status, context.report, begins_answer)

    def early(self, request: WireRequest, shape: EventShape, compaction_id: str) -> MessageEvents:
        return MessageEvents(shape, compaction_id, f"msg_{secrets.token_hex(12)}", request.model)

    def as_stream(
        self,
        request: WireRequest,  # noqa: ARG002 - every stream of this format is the same
        chunks: AsyncIterator[bytes],
        *,
        is_stream: bool,
        headers: Headers,
    ) -> AsyncIterator[bytes]:
        return as_stream(chunks, is_stream=is_stream, headers=headers)

    def error(self, error: StenoError) -> bytes:
        return own_error(error)

    def error_frame(self, error: StenoError) -> bytes:
        return own_error_frame(error)

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        return refusal_frame(status, headers, body, now)

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:
        return isinstance(request, MessagesRequest) and refuses_ties(refusal, request)

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:  # noqa: ARG002 - nobody asks
        return False


MESSAGES: WireFormat = Messages()
