"""The format, put together."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from app.formats.format import WireFormat
from app.formats.responses.answers import ResponsesAnswers
from app.formats.responses.items import BREAKPOINTS, INSTRUCTIONS, read_item, stands_beside
from app.formats.responses.payload import render
from app.formats.responses.request import NAME, PATH, ResponsesRequest, as_item, read_request
from app.formats.responses.summaries import ResponsesSummaries
from app.formats.responses.tokens import token_rules


class Responses(WireFormat):
    name = NAME
    path = PATH
    other_paths = (b"/v1/conversations",)
    counting_path = PATH + b"/input_tokens"
    summaries = ResponsesSummaries()
    answers = ResponsesAnswers()
    breakpoints = BREAKPOINTS
    request = ResponsesRequest
    read = staticmethod(read_request)
    token_rules = staticmethod(token_rules)
    message = staticmethod(read_item)
    render = staticmethod(render)

    def alone(self, raw: bytes) -> bytes:
        """A raw message as JSON. The instructions beside the input are the whole member, with its key."""
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


RESPONSES: WireFormat = Responses()
