"""The format, put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from app.wire.early import EarlyFrames, EventShape
from app.wire.format import WireFormat
from app.wire.responses.early import CompactionEvents
from app.wire.responses.editor import ResponsesEditor
from app.wire.responses.frames import error_frames
from app.wire.responses.items import INSTRUCTIONS, read_item, stands_beside
from app.wire.responses.native import ResponsesCompaction
from app.wire.responses.payload import render
from app.wire.responses.request import NAME, PATH, ResponsesRequest, as_item, read_request
from app.wire.responses.streamed import frames_of
from app.wire.responses.summaries import ResponsesSummaries
from app.wire.responses.tokens import token_rules
from app.wire.types import UNTOLD, ContextMembers, Headers, WireRequest


class Responses(WireFormat):
    name = NAME
    path = PATH
    summaries = ResponsesSummaries()
    opens_early = True
    native = ResponsesCompaction()
    history = "input"
    answer = "response"
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

    def frames_of(self, request: WireRequest, headers: Headers, body: bytes) -> Iterable[bytes]:  # noqa: ARG002 - all streams are alike
        return frames_of(body, headers)

    def failed(self, envelope: bytes) -> bytes:
        return error_frames(envelope)


RESPONSES: WireFormat = Responses()
