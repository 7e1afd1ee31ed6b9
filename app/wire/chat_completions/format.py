"""The format, put together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.wire.chat_completions.answers import ChatAnswers
from app.wire.chat_completions.messages import read_message
from app.wire.chat_completions.payload import render
from app.wire.chat_completions.request import NAME, PATH, read_request
from app.wire.chat_completions.summaries import ChatSummaries
from app.wire.format import WireFormat


class ChatCompletions(WireFormat):
    name = NAME
    path = PATH
    summaries = ChatSummaries()
    answers = ChatAnswers()
    read = staticmethod(read_request)
    message = staticmethod(read_message)
    render = staticmethod(render)

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - nobody has to say
        return b'{"model":%b,"messages":[%b]}' % (msgspec.json.encode(model), b",".join(messages))


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
