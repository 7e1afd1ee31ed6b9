"""REST that compacts: for gateways that send the request themselves, and on demand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import partial
from time import monotonic
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace
from pydantic import BaseModel, Field

from app.api.dependencies import (
    Body,
    ConversationId,
    OfFormat,
    Tenant,
    TheServices,
    format_of,
    known,
    readable,
    request_body,
)
from app.api.summaries import SummaryOut, summary_out
from app.compaction.chunks import SummaryChunk
from app.compaction.fallback import Decision
from app.compaction.request import ChatRequest
from app.compaction.select import build_view, paths, widest_path
from app.compaction.view import Conversation
from app.conversation.reasons import Code, because
from app.errors import InvalidRequest, NothingToCompact
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, Unreadable
from app.formats.requests import BOUNDS, WireRequest, read_focus
from app.http.own_headers import CONVERSATION_ID
from app.proxy.caller import Caller
from app.proxy.conversation_ids import encoded_name
from app.proxy.exchange import REQUEST, RequestRecord
from app.proxy.learn import conversation_seen, latest_history
from app.proxy.reply import context_of
from app.proxy.request import count_messages, parse_request, split_body
from app.proxy.services import Services
from app.store import StoredConversation
from app.store.chunks import chunks_in

NO_MESSAGES = (
    "Steno does not keep messages, so it can only compact those you send:"
    ' {"model": "...", "messages": [...], "instructions": "..."}, as in a chat completions request.'
)
NOT_KEPT = (
    "The messages of the conversation's latest request are not stored as they were sent: they came before messages were"
    " kept, their secrets were removed, or they are too many. Send them."
)


class Asked(OfFormat, kw_only=True):
    """Body of a compaction on demand: a request, or its members beside the messages that are stored."""

    through: Annotated[int, Meta(ge=0)] | None = None
    """The last message that is to be summarised, counted after the instructions, from 0."""
    through_turn: Annotated[int, Meta(ge=1)] | None = None
    """The turn whose end is to be summarised, counted from 1."""


class _Members(Asked, kw_only=True):
    format: Any = None
    model: object = None
    instructions: object = None
    context: Raw = Raw()
    messages: Raw = Raw()
    input: Raw = Raw()


class AskedRequest(Struct, frozen=True):
    format: WireFormat
    wire: WireRequest
    head: bytes | None
    """Digest of the history, where it was stored; None where the body has the messages."""


def _members(body: bytes) -> _Members | None:
    """Members beside the messages; None if the body cannot be read: reading all of it raises the error. Raises
    `InvalidRequest`."""
    try:
        members = msgspec.json.decode(body, type=_Members) if body.strip() else _Members()
    except msgspec.ValidationError as error:
        if (named := re.search(r"`\$\.(through\w*)`", str(error))) is None:
            return None
        raise InvalidRequest(f"{error}: a message counts from 0, a turn from 1.", named[1]) from error
    except msgspec.DecodeError:
        return None
    if members.through is not None and members.through_turn is not None:
        raise InvalidRequest("Send through or through_turn, not both.", "through")
    return members


async def _asked(
    services: Services, tenant: str, conversation: StoredConversation, body: bytes, members: _Members | None
) -> AskedRequest:
    """Raises `InvalidRequest`."""
    if services.keeps_messages and members is not None and not (members.messages or members.input):
        return await _stored(services, tenant, conversation, members)
    format_ = await format_of(services, tenant, body)
    return AskedRequest(format_, await services.work.do(tenant, lambda: _read_forced(services, format_, body)), None)


def _position(conversation: Conversation, members: _Members | None) -> int | None:
    """Index of the message before which summaries are to end; None where nothing was said. Raises `InvalidRequest`."""
    transcript = conversation.transcript
    if members is None or members.through is members.through_turn is None:
        return None
    if members.through is not None:
        if members.through >= len(transcript):
            raise InvalidRequest(
                f"The history has {len(transcript)} messages after the instructions, counted from 0; through is"
                f" {members.through}.",
                "through",
            )
        return members.through + 1
    starts, turn = (*transcript.turn_starts, len(transcript)), members.through_turn or 0
    if turn >= len(starts):
        raise InvalidRequest(f"The history has {len(starts) - 1} turns; through_turn is {turn}.", "through_turn")
    return starts[turn]


async def _stored(services: Services, tenant: str, conversation: StoredConversation, members: _Members) -> AskedRequest:
    """A request made of the stored history, in its format, and the digest that the history had as it was sent."""
    history = await services.store.history(tenant, conversation.id)
    format_ = next((each for each in services.formats if history and each.name == history.format), None)
    if history is None or history.head is None or format_ is None or len(history.messages) > BOUNDS.messages:
        raise InvalidRequest(NOT_KEPT, "messages")
    named = members.model if isinstance(members.model, str) else conversation.model

    def read() -> WireRequest:
        body = format_.assembled(named, [message.sent.encode() for message in history.messages])
        if members.context:
            body = RawObject(body).spliced(add=b'"context":' + bytes(members.context))
        return format_.read(body)

    with readable(format_):
        wire = await services.work.do(tenant, read)
    focus = read_focus(members.instructions, "instructions")
    return AskedRequest(format_, wire.asking(focus=focus), history.head)


def _read_forced(services: Services, format_: WireFormat, body: bytes) -> WireRequest:
    """Raises `InvalidRequest`."""
    is_first = format_ is services.format
    try:
        asked = format_.read(body)
    except Unreadable as error:
        if is_first and error.reason is Code.UNREADABLE and _lacks_messages(body):
            raise InvalidRequest(NO_MESSAGES, "messages") from error
        with readable(format_):
            raise
    if not asked.raw_messages:
        raise InvalidRequest(NO_MESSAGES, "messages")
    if not is_first:  # There `instructions` may be a member of its own.
        return asked
    return asked.asking(focus=read_focus(RawObject(body).value("instructions"), "instructions"))


def _lacks_messages(body: bytes) -> bool:
    try:
        return RawObject(body).value("messages") is None
    except Unreadable:
        return True


class CompactionOut(BaseModel):
    """Payload that would be sent to the provider."""

    object: Literal["compaction"] = "compaction"
    format: str
    model: str
    messages: list[dict[str, Any]] = Field(description="To be sent in place of those that came, in the same format.")
    context_status: str
    context: dict[str, Any]


class ThroughOut(BaseModel):
    index: int = Field(description="The last message they stand for, counted after the instructions, from 0.")
    turn: int = Field(description="Turns that have begun by then.")


class ForcedCompactionOut(CompactionOut):
    summaries: list[SummaryOut] = Field(description="Those that were made for it.")
    through: ThroughOut | None = Field(
        description="Where the summaries end, which is where it was asked for or at the nearest place before it; null"
        " where nothing was asked for."
    )


router = APIRouter(prefix="/context", tags=["compactions"])


@router.post("/compact", openapi_extra=request_body(OfFormat), response_model=CompactionOut)
async def compact(request: Request, services: TheServices, tenant: Tenant, body: Body) -> Response:
    """Makes the payload that Steno would send for this request; its `format` is chat_completions unless it says
    otherwise. Summaries are made and kept; the model is asked nothing."""
    chat = await parsed(request, services, tenant, body)
    decision = await _prepare(services, chat, request.scope[REQUEST])
    return _answer(await chat.beside(services.work.do, lambda: _compaction(chat, decision)))


@router.post(
    "/conversations/{conversation_id}/compact",
    openapi_extra=request_body(Asked),
    response_model=ForcedCompactionOut,
)
async def compact_conversation(
    request: Request, services: TheServices, tenant: Tenant, conversation_id: ConversationId, body: Body
) -> Response:
    """Summarises now what would be summarised when the window is full, or what stands before the end of `through`, a
    message, or of `through_turn`. The body is a request, in chat completions unless its `format` says otherwise;
    without messages it is about those that are stored. `context.instructions` says what the summary is to look
    after, and in chat completions `instructions`, too."""
    record: RequestRecord = request.scope[REQUEST]
    conversation = await known(services, tenant, conversation_id)
    members = await services.work.do(tenant, lambda: _members(body))
    asked = await _asked(services, tenant, conversation, body, members)
    # First, so that no other name in the request stands before it.
    headers = [(CONVERSATION_ID, encoded_name(conversation_id)), *request.scope["headers"]]
    caller = Caller(tenant, headers, asked.format, target=_target(request, asked.format))
    with readable(asked.format):
        chat = await parse_request(services, asked.wire, caller, record.request_id)
    # A summary of messages that are not stored as they were sent would fit no request.
    if asked.head not in (None, chat.conversation.chain.digests[-1]):
        raise InvalidRequest(NOT_KEPT, "messages")
    await count_messages(services, tenant, chat.conversation, chat.prompt)
    held = await _chunks(services, chat)
    through = None
    if (position := _position(chat.conversation, members)) is None:
        # As if a compaction were due. Masking alone would do for the numbers, but what was asked for is a summary.
        threshold = await chat.beside(services.work.do, partial(_threshold, chat, held.values()))
        with readable(asked.format):
            chat = await parse_request(services, asked.wire.asking(threshold=threshold), caller, record.request_id)
        chat = replace(chat, policy=replace(chat.policy, mask=None))
        decision = await _prepare(services, chat, record)
    else:
        decision, covered = await _up_to(services, chat, record, position)
        through = covered and {"index": covered - 1, "turn": chat.conversation.transcript.turn_at(covered)}
    made = [chunk for id_, chunk in (await _chunks(services, chat)).items() if id_ not in held]
    summaries = [summary_out(chunk).model_dump(mode="json") for chunk in made]
    shown = await chat.beside(services.work.do, lambda: _compaction(chat, decision))
    return _answer({**shown, "summaries": summaries, "through": through or None})


async def _up_to(services: Services, chat: ChatRequest, record: RequestRecord, position: int) -> tuple[Decision, int]:
    """Decision with summaries of what stands before a position, or as near before it as they can end, and how many
    messages that is; 0 where none could be made. Raises `NothingToCompact`, and `StorageUnavailable` by the store's
    error."""
    began = monotonic()
    if not chat.policy.summarises or not chat.compaction:
        return Decision(None, why=because(Code.COMPACTION_OFF)), 0
    decision = await services.compaction.for_request(chat).compact(position)
    if decision.view is None and any(reason.code is Code.NOTHING_TO_SUMMARISE for reason in decision.why):
        first = next((cut for cut in chat.conversation.transcript.cuts if cut), None)
        can = "none can end anywhere" if first is None else f"the first one can end with message {first - 1}"
        what = f"No summary can end with message {position - 1} or before it"
        raise NothingToCompact(f"{what}: {can}, counted after the instructions, from 0.", "through")
    await _keep(services, chat, record, decision, began)
    return decision, chat.covered(decision)


async def parsed(
    request: Request, services: Services, tenant: str, body: bytes, *, remember: bool = True
) -> ChatRequest:
    """Request of the format that its member `format` names. Raises `InvalidRequest`."""
    format_ = await format_of(services, tenant, body)
    caller = Caller(tenant, request.scope["headers"], format_, target=_target(request, format_))
    with readable(format_):
        wire = await split_body(services, caller, body)
        return await parse_request(services, wire, caller, request.scope[REQUEST].request_id, remember=remember)


def _target(request: Request, format_: WireFormat) -> bytes:
    """Target that a request of the format would be posted to, with this request's query: a key may stand in it."""
    return (b"" if format_.spec.address else format_.path) + b"?" + bytes(request.scope["query_string"])


def _threshold(chat: ChatRequest, chunks: Iterable[SummaryChunk]) -> int:
    """Largest trigger in tokens that the stored summaries cannot meet, so that a compaction is due.

    Not the smallest there is: target, tail and summaries are measured by it.
    """
    conversation = chat.conversation
    smallest = build_view(conversation, widest_path(paths(conversation, chunks))).tokens
    return max(1, chat.budget.line.to_provider_tokens(smallest) - 1)


async def _chunks(services: Services, chat: ChatRequest) -> dict[str, SummaryChunk]:
    cuts = await chat.beside(services.work.do, lambda: chat.conversation.cut_digests)
    found = await services.store.request(chunks_in, chat.tenant, chat.series, cuts)
    return {chunk.id: chunk for chunk in found}


async def _prepare(services: Services, chat: ChatRequest, record: RequestRecord) -> Decision:
    """Prepare as for a chat request, and remember what it showed, so that the next one is recognised."""
    began = monotonic()
    decision = await services.compaction.for_request(chat).prepare()
    await count_messages(services, chat.tenant, chat.conversation, chat.prompt)
    await _keep(services, chat, record, decision, began)
    return decision


async def _keep(services: Services, chat: ChatRequest, record: RequestRecord, decision: Decision, began: float) -> None:
    """Record and store what the request showed, unless it was erased meanwhile. `began` is the monotonic clock's."""
    record.decided(chat, decision, seconds=round(monotonic() - began, 3), waited=False)
    if services.store.is_erased(*chat.conversation_key, chat.epoch):
        return
    services.store.writes.record(await chat.beside(services.work.do, lambda: conversation_seen(chat, decision)))
    if services.keeps_messages:
        services.store.writes.record_history(latest_history(chat))


def _compaction(chat: ChatRequest, decision: Decision) -> dict[str, Any]:
    return {
        "object": "compaction",
        "format": chat.format.name,
        "model": chat.wire.model,
        "messages": msgspec.Raw(chat.format.messages_in(chat.payload(decision))),
        "context_status": decision.status,
        "context": context_of(chat, decision),
    }


def _answer(shown: dict[str, Any]) -> Response:
    # Not through pydantic: the messages keep their bytes.
    return Response(msgspec.json.encode(shown), media_type="application/json")
