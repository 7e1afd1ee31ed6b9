"""The format, put together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.formats.format import WireFormat
from app.formats.messages.answers import MessagesAnswers
from app.formats.messages.content import BREAKPOINTS
from app.formats.messages.messages import is_beside, read_message
from app.formats.messages.payload import render
from app.formats.messages.request import (
    NAME,
    PATH,
    MessagesRequest,
    messages_request,
    refuses_thinking,
    system_of,
    window_asked,
)
from app.formats.messages.summaries import MessagesSummaries
from app.formats.messages.tokens import token_rules
from app.formats.types import WireRequest


class Messages(WireFormat):
    name = NAME
    path = PATH
    other_paths = (b"/v1/complete",)
    counting_path = PATH + b"/count_tokens"
    largest_body = 32_000_000
    answers = MessagesAnswers()
    breakpoints = BREAKPOINTS
    summaries = MessagesSummaries()
    request = MessagesRequest
    beside = staticmethod(system_of)
    requested = staticmethod(messages_request)
    window_asked = staticmethod(window_asked)
    token_rules = staticmethod(token_rules)
    message = staticmethod(read_message)
    render = staticmethod(render)

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:
        shown = b'{"model":%b' % msgspec.json.encode(model)
        if output is not None:
            shown += b',"max_tokens":%d' % output
        if messages and is_beside(messages[0]):
            shown += b',"system":%b' % messages[0]
        return shown + b',"messages":[%b]}' % b",".join(raw for raw in messages if not is_beside(raw))

    def refuses_thinking(self, refusal: bytes, request: WireRequest, *, changed: bool) -> bool:
        return isinstance(request, MessagesRequest) and refuses_thinking(refusal, request, changed=changed)


MESSAGES: WireFormat = Messages()
