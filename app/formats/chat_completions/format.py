"""The format, put together."""

from __future__ import annotations

from app.formats.chat_completions.answers import ChatAnswers
from app.formats.chat_completions.messages import BREAKPOINTS, read_message
from app.formats.chat_completions.payload import render
from app.formats.chat_completions.request import NAME, PATH, ChatRequest, chat_request
from app.formats.chat_completions.summaries import ChatSummaries
from app.formats.format import WireFormat


class ChatCompletions(WireFormat):
    name = NAME
    request = ChatRequest
    requested = staticmethod(chat_request)
    path = PATH
    summaries = ChatSummaries()
    answers = ChatAnswers()
    breakpoints = BREAKPOINTS
    message = staticmethod(read_message)
    render = staticmethod(render)


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
