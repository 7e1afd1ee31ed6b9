"""The format, put together."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import msgspec

from app.errors import StenoError
from app.wire.early import EarlyFrames, EventShape
from app.wire.format import WireFormat
from app.wire.messages.early import MessageEvents
from app.wire.messages.editor import MessageEditor
from app.wire.messages.errors import own_error, refusal_frame
from app.wire.messages.messages import is_beside, read_message
from app.wire.messages.native import MessagesCompaction
from app.wire.messages.payload import render
from app.wire.messages.request import NAME, PATH, MessagesRequest, dropping, read_request, refuses_ties, window_asked
from app.wire.messages.streamed import frames_of
from app.wire.messages.summaries import MessagesSummaries
from app.wire.messages.tokens import token_rules
from app.wire.sse import event
from app.wire.types import UNTOLD, ContextMembers, Headers, WireRequest


class Messages(WireFormat):
    name = NAME
    path = PATH
    summaries = MessagesSummaries()
    native = MessagesCompaction()
    read = staticmethod(read_request)
    window_asked = staticmethod(window_asked)
    token_rules = staticmethod(token_rules)
    message = staticmethod(read_message)
    render = staticmethod(render)
    dropping = staticmethod(dropping)
    refusal_frame = staticmethod(refusal_frame)

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:
        shown = b'{"model":%b' % msgspec.json.encode(model)
        if output is not None:
            shown += b',"max_tokens":%d' % output
        if messages and is_beside(messages[0]):
            shown += b',"system":%b' % messages[0]
        return shown + b',"messages":[%b]}' % b",".join(raw for raw in messages if not is_beside(raw))

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

    def frames_of(self, request: WireRequest, headers: Headers, body: bytes) -> Iterable[bytes]:  # noqa: ARG002 - all streams are alike
        return frames_of(body, headers)

    def error(self, error: StenoError) -> bytes:
        return own_error(error)

    def failed(self, envelope: bytes) -> bytes:
        # Without its name clients take it for no error.
        return event(envelope, "error")

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:
        return isinstance(request, MessagesRequest) and refuses_ties(refusal, request)


MESSAGES: WireFormat = Messages()
