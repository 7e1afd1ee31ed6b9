"""Requests for a compaction on demand: a request or the stored messages, what to look after, and how far."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from app.api.dependencies import format_of, readable
from app.compaction.request import ChatRequest
from app.compaction.view import Conversation
from app.conversation.reasons import Code
from app.errors import InvalidRequest
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, Unreadable
from app.formats.requests import BOUNDS, WireRequest, read_focus
from app.proxy.services import Services
from app.store import StoredConversation

NO_MESSAGES = (
    "Steno does not keep messages, so it can only compact those you send:"
    ' {"model": "...", "messages": [...], "instructions": "..."}, as in a chat completions request.'
)
NOT_KEPT = (
    "The messages of the conversation's latest request are not stored as they were sent: they came before messages were"
    " kept, their secrets were removed, or they are too many. Send them."
)
_THROUGH = ("through", "through_turn")


class Asked(Struct, frozen=True):
    format: WireFormat
    wire: WireRequest
    through: int | None = None
    """The last message that is to be summarised, counted after the instructions, from 0."""
    through_turn: int | None = None
    """The turn whose end is to be summarised, counted from 1."""
    head: bytes | None = None
    """Digest of the history, where it was stored; None where the body has the messages."""


async def read_asked(services: Services, tenant: str, conversation: StoredConversation, body: bytes) -> Asked:
    """Raises `InvalidRequest`."""
    members = await services.work.do(tenant, lambda: _members(body))
    through, through_turn = (_whole(name, members, least) for name, least in zip(_THROUGH, (0, 1), strict=True))
    if through is not None and through_turn is not None:
        raise InvalidRequest("Send through or through_turn, not both.", "through")
    if services.keeps_messages and members.keys().isdisjoint(("messages", "input")) and "broken" not in members:
        format_, wire, head = await _stored(services, tenant, conversation, members)
    else:
        format_, head = await format_of(services, tenant, body), None
        wire = await services.work.do(tenant, lambda: _read_forced(services, format_, body))
    return Asked(format_, wire, through, through_turn, head)


def check_history(asked: Asked, chat: ChatRequest) -> None:
    """Refuse stored messages that are not letter by letter as they were sent: their summary would fit no request.
    Raises `InvalidRequest`."""
    if asked.head not in (None, chat.conversation.chain.digests[-1]):
        raise InvalidRequest(NOT_KEPT, "messages")


def position_in(conversation: Conversation, asked: Asked) -> int | None:
    """Index of the message before which summaries are to end; None where nothing was said. Raises `InvalidRequest`."""
    transcript = conversation.transcript
    if asked.through is not None:
        if asked.through >= len(transcript):
            raise InvalidRequest(
                f"The history has {len(transcript)} messages after the instructions, counted from 0; through is"
                f" {asked.through}.",
                "through",
            )
        return asked.through + 1
    if asked.through_turn is None:
        return None
    starts = (*transcript.turn_starts, len(transcript))
    if asked.through_turn >= len(starts):
        raise InvalidRequest(
            f"The history has {len(starts) - 1} turns; through_turn is {asked.through_turn}.", "through_turn"
        )
    return starts[asked.through_turn]


def _members(body: bytes) -> dict[str, Any]:
    """Members beside the messages; `broken` where they cannot be read, which whoever reads all of it says."""
    if not body.strip():
        return {}
    try:
        source = RawObject(body)
        named = ("model", "instructions", *_THROUGH)
        members = {name: source.value(name) for name in named if name in source}
        members |= {name: None for name in ("messages", "input") if name in source}
        return members | ({"context": source.raw("context")} if "context" in source else {})
    except Unreadable:
        return {"broken": True}


def _whole(name: str, members: dict[str, Any], least: int) -> int | None:
    """Raises `InvalidRequest`."""
    given = members.get(name)
    if given is None:
        return None
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise InvalidRequest(f"{name} is a whole number from {least} on; it is {given!r:.100}.", name)
    return given


async def _stored(
    services: Services, tenant: str, conversation: StoredConversation, members: dict[str, Any]
) -> tuple[WireFormat, WireRequest, bytes]:
    """A request made of the stored history, in its format, and the digest that the history had as it was sent."""
    history = await services.store.history(tenant, conversation.id)
    format_ = next((each for each in services.formats if history and each.name == history.format), None)
    if history is None or history.head is None or format_ is None or len(history.messages) > BOUNDS.messages:
        raise InvalidRequest(NOT_KEPT, "messages")
    model = members.get("model")
    named = model if isinstance(model, str) else conversation.model

    def read() -> WireRequest:
        body = format_.assembled(named, [message.sent.encode() for message in history.messages])
        if context := members.get("context"):
            body = RawObject(body).spliced(add=b'"context":' + context)
        return format_.read(body)

    with readable(format_):
        wire = await services.work.do(tenant, read)
    focus = read_focus(members.get("instructions"), "instructions")
    return format_, wire.asking(focus=focus), history.head


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
