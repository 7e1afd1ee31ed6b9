"""The format, put together."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from app.core.tokens.rules import CountingRules, rules_for
from app.core.view.view import Conversation, View
from app.errors import StenoError
from app.wire.chat_completions.early import ChunkHead, CompactionEvents
from app.wire.chat_completions.editor import CompletionEditor
from app.wire.chat_completions.messages import read_message
from app.wire.chat_completions.payload import render
from app.wire.chat_completions.request import NAME, PATH, read_request
from app.wire.chat_completions.streamed import as_stream
from app.wire.chat_completions.summaries import ChatSummaries
from app.wire.format import (
    UNTOLD,
    ContextMembers,
    EarlyFrames,
    EventShape,
    Headers,
    SummaryDialect,
    WireFormat,
    WireRequest,
)
from app.wire.members import RawObject
from app.wire.model import model_in
from app.wire.provider_errors import error_body
from app.wire.sse import event

_USAGE_OPTION = re.compile(rb"stream_options|include_usage")


class ChatCompletions:
    name = NAME
    path = PATH
    opens_early = False
    summaries: SummaryDialect = ChatSummaries()
    native = None
    read = staticmethod(read_request)
    message = staticmethod(read_message)

    def window_asked(self, headers: Headers) -> None:
        """No header of this format is about the window."""

    def model_in(self, body: bytes) -> str:
        return model_in(body)

    def token_rules(self, model: str, host: str = "") -> CountingRules:
        return rules_for(model, host)

    def alone(self, raw: bytes) -> bytes:
        return raw

    def raw_of(self, alone: bytes) -> bytes:
        return alone

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - nobody has to say
        return b'{"model":%b,"messages":[%b]}' % (msgspec.json.encode(model), b",".join(messages))

    def render(self, conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
        return render(conversation, view, alternate)

    def dropping(self, payload: bytes, headers: Headers) -> tuple[bytes, Headers]:
        """No thoughts are tied in this format."""
        return payload, headers

    def messages_in(self, payload: bytes) -> bytes:
        return RawObject(payload).raw("messages") or b"[]"

    def editor(
        self,
        context: ContextMembers = UNTOLD,
        request: WireRequest | None = None,
        early: EarlyFrames | None = None,
        *,
        hides_usage: bool = False,
    ) -> CompletionEditor:
        sent = early.sent if isinstance(early, CompactionEvents) else None
        return CompletionEditor(context.status, context.report, sent, request.choices if request else 1, hides_usage)

    def early(self, request: WireRequest, shape: EventShape, compaction_id: str) -> CompactionEvents:
        head = ChunkHead(f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), request.model)
        # Its chunks begin the answer anyway.
        return CompactionEvents("chunk" if shape == "start" else shape, compaction_id, head)

    def as_stream(
        self, request: WireRequest, chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Headers
    ) -> AsyncIterator[bytes]:
        return as_stream(chunks, is_stream=is_stream, wants_usage=request.wants_usage, headers=headers)

    def error(self, error: StenoError) -> bytes:
        return error.envelope

    def error_frame(self, error: StenoError) -> bytes:
        return event(error.envelope)

    def refusal_frame(self, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        return event(error_body(status, headers, body, now))

    def refuses_ties(self, refusal: bytes, request: WireRequest) -> bool:  # noqa: ARG002 - it knows none
        return False

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:
        return _USAGE_OPTION.search(refusal) is not None


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
