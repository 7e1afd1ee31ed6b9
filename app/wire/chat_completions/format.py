"""The format, put together."""

from __future__ import annotations

from operator import attrgetter

from app.wire.beginnings import Beginnings
from app.wire.chat_completions.answers import ChatAnswers
from app.wire.chat_completions.messages import BREAKPOINTS, read_message
from app.wire.chat_completions.payload import render
from app.wire.chat_completions.recall_tools import ChatRecallTools
from app.wire.chat_completions.request import NAME, PATH, ChatRequest, chat_request
from app.wire.chat_completions.summaries import ChatSummaries
from app.wire.format import WireFormat
from app.wire.requests import check_number
from app.wire.types import BOUNDS, BodyBounds, WireRequest

_beside = attrgetter(*ChatRequest.__struct_fields__[2:])
"""A function to all members of a request beside its messages. `replace` takes ten times as long."""


class ChatCompletions(WireFormat):
    name = NAME
    request = ChatRequest
    requested = staticmethod(chat_request)
    path = PATH
    summaries = ChatSummaries()
    answers = ChatAnswers()
    breakpoints = BREAKPOINTS
    recall_tools = ChatRecallTools()
    message = staticmethod(read_message)
    render = staticmethod(render)

    def read(self, body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> WireRequest:
        """Members beside the messages of short bodies, read once."""
        if beginnings is None:
            return super().read(body, bounds)
        if (found := beginnings.envelopes.find(body, "messages", bounds.values)) is not None:
            like, source, elements = found
            check_number(len(elements), bounds)
            return ChatRequest(source, tuple(elements), *_beside(like))
        request = super().read(body, bounds, beginnings)
        if not request.wishes.pins:  # Those count the messages.
            beginnings.envelopes.keep(request.source, "messages", lambda rest: ChatRequest(rest, (), *_beside(request)))
        return request


CHAT_COMPLETIONS: WireFormat = ChatCompletions()
