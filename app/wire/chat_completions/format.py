"""The format, put together."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Sequence

import msgspec

from app.wire.chat_completions.early import ChunkHead, CompactionEvents
from app.wire.chat_completions.editor import CompletionEditor
from app.wire.chat_completions.messages import read_message
from app.wire.chat_completions.payload import render
from app.wire.chat_completions.request import NAME, PATH, read_request
from app.wire.chat_completions.streamed import frames_of
from app.wire.chat_completions.summaries import ChatSummaries
from app.wire.early import EarlyFrames, EventShape
from app.wire.format import WireFormat
from app.wire.types import UNTOLD, ContextMembers, Headers, WireRequest

_USAGE_OPTION = re.compile(rb"stream_options|include_usage")


class ChatCompletions(WireFormat):
    name = NAME
    path = PATH
    summaries = ChatSummaries()
    answer = "chat completion"
    read = staticmethod(read_request)
    message = staticmethod(read_message)
    render = staticmethod(render)

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - nobody has to say
        return b'{"model":%b,"messages":[%b]}' % (msgspec.json.encode(model), b",".join(messages))

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

    def frames_of(self, request: WireRequest, headers: Headers, body: bytes) -> Iterable[bytes]:
        return frames_of(body, request.wants_usage, headers)

    def refuses_to_tell_usage(self, refusal: bytes) -> bool:
        return _USAGE_OPTION.search(refusal) is not None


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
