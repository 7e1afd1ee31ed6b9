"""Replies: relay the provider's answer to the client, with headers and members about the context.

This module sets the headers that `http/headers` names, except the request's id, which `http/asgi.Signature` sets.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import NotRequired

import msgspec
import structlog
from pydantic import with_config
from typing_extensions import TypedDict

from app.compaction.decision import Decision, Status
from app.compaction.request import ChatRequest
from app.conversation.reasons import Code, Reason
from app.errors import StenoError, UpstreamDisconnected
from app.formats.answers import LARGEST_WHOLE, AnswerEditor, ContextMembers
from app.formats.format import WireFormat
from app.formats.paths import Uncompacted, path_of
from app.formats.sse import FrameSplitter, first_end, last_end
from app.http.asgi import AbortedAnswer, ClientAnswer
from app.http.connection import UpstreamExchange
from app.http.headers import (
    ACTIONS,
    CONVERSATION_ID,
    EVENT_STREAM,
    REASON,
    STATUS,
    TOKENS_AFTER,
    TOKENS_BEFORE,
    WINDOW,
    Headers,
    are_of_steno,
    media_type,
    returned,
)
from app.proxy.conversation_ids import encoded_name
from app.proxy.exchange import Attempt, Call, Exchange, Services
from app.proxy.learn import LONGEST_REASON, record_unread
from app.proxy.request import INLINE_BODY, Unread
from app.proxy.request_log import RequestRecord

log = structlog.get_logger("steno.bypass")

FRAMES_AT_ONCE = 64
"""Maximum frames relayed before other tasks run. One read can bring 30,000 frames."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class Tokens(TypedDict):
    """Estimates in the provider's tokens, and the model's `window`."""

    estimated: int
    forwarded: int
    saved: int
    window: int


@with_config(use_attribute_docstrings=True)
class Context(TypedDict):
    """Report of the changes to a request's context."""

    # The docstrings are the descriptions in the schema: after a change, run `make examples`.
    conversation_id: str
    """The conversation's name, from the client or from Steno."""
    status: Status
    """Status of the context."""
    actions: list[str]
    """Changes to the history, in the order of the stages."""
    tokens: Tokens
    chunks: list[str]
    """The summaries in the payload, in order."""
    reason: str | None
    """Why Steno could not do something."""
    messages: NotRequired[Mapping[str, int]]
    """Number of messages changed by each action; absent if none."""
    recalled: NotRequired[Mapping[str, int]]
    """Number of `messages` with quoted passages, and `tokens` of the passages; absent if none."""


def tokens_of(before: int, after: int, window: int) -> Tokens:
    return {"estimated": before, "forwarded": after, "saved": before - after, "window": window}


def context_of(request: ChatRequest, decision: Decision) -> Context:
    view = decision.view
    context: Context = {
        "conversation_id": request.conversation_id,
        "status": decision.status,
        "actions": list(decision.actions),
        "tokens": tokens_of(*request.tokens(decision), request.window.context),
        "chunks": [chunk.id for chunk in view.chunks] if view else [],
        "reason": decision.reason,
    }
    if view and view.changed:
        context["messages"] = view.changed
    if view and view.recalled:
        quoted = {index for note in view.recalled for index in note.messages}
        context["recalled"] = {"messages": len(quoted), "tokens": request.recalled(view.recalled)}
    return context


def status_member(decision: Decision) -> bytes:
    return b'"context_status":"%b"' % decision.status.encode()


def context_members(request: ChatRequest, decision: Decision) -> ContextMembers:
    """Build the JSON members for an answer: the status alone, and the status with the context."""
    status, context = status_member(decision), context_of(request, decision)
    return ContextMembers(status, status + b',"context":' + msgspec.json.encode(context))


def context_headers(request: ChatRequest, decision: Decision | None) -> Headers:
    """Build the `x-context-*` headers; without a decision the status is `pending`."""
    headers = [
        (STATUS, decision.status.encode() if decision else b"pending"),
        (CONVERSATION_ID, encoded_name(request.conversation_id)),
        (TOKENS_BEFORE, b"%d" % request.received_tokens),
        (WINDOW, b"%d" % request.measure.window.context),
    ]
    if decision is None:
        return headers
    headers.append((TOKENS_AFTER, b"%d" % request.tokens(decision)[1]))
    if decision.actions:
        headers.append((ACTIONS, ",".join(decision.actions).encode()))
    if (reason := decision.reason) is not None:
        # The reason may quote the request, including line ends.
        headers.append((REASON, _UNPRINTABLE.sub("?", reason[:LONGEST_REASON]).encode()))
    return headers


async def relay_answer(exchange: Exchange, attempt: Attempt) -> None:
    """Relay the provider's answer, and add headers and members about the context."""
    request, decision, answering = attempt.request, attempt.decision, attempt.answering
    if decision.view is None and are_of_steno(answering.headers):
        await relay_as_sent(exchange, answering, [])  # The provider is another Steno, which sets the headers.
        return
    own, reports = context_headers(request, decision), exchange.services.events.body
    kind = media_type(answering.headers) if answering.status == 200 and reports else ""
    if kind not in (EVENT_STREAM, "application/json"):
        await relay_as_sent(exchange, answering, own)
        return
    context = context_members(request, decision)
    editor = request.format.editor(context, request.wire, hides_usage=attempt.asks_usage)
    if kind == EVENT_STREAM:
        await start_stream(exchange, answering, own)
        await relay_stream(exchange, answering, editor, learns=True)
        return
    body, is_whole = await answering.read_ahead(LARGEST_WHOLE)
    if not is_whole:
        await relay_raw(answering, exchange.client, own, exchange.record)
        return
    body, exchange.editor = editor.whole(body), editor
    await exchange.client.whole(answering.status, returned(answering.headers, own, body_changed=True), body)


async def relay_as_sent(
    exchange: Exchange, answering: UpstreamExchange, own: Headers, reader: AnswerEditor | None = None
) -> None:
    """Relay an answer with an unchanged body. If a stream breaks off, add an error frame. `reader`: editor that reads
    the usage of a successful answer."""
    kind = media_type(answering.headers) if answering.status == 200 else ""
    if kind == EVENT_STREAM:
        await start_stream(exchange, answering, own)
        await relay_stream(exchange, answering, reader or exchange.caller.format.editor())
        return
    if reader is not None and kind == "application/json":
        body, is_whole = await answering.read_ahead(LARGEST_WHOLE)
        if is_whole:
            reader.whole(body)
    await relay_raw(answering, exchange.client, own, exchange.record)


async def relay_raw(answering: UpstreamExchange, client: ClientAnswer, own: Headers, record: RequestRecord) -> None:
    """Relay an answer without parsing its body. Raises `AbortedAnswer` if the provider's answer breaks off."""
    # A 304 may state the length of a body that it does not have, and uvicorn would wait for the body.
    await client.start(answering.status, returned(answering.headers, own, body_changed=answering.status == 304))
    try:
        async for chunk in answering:
            await client.body(chunk)
    except StenoError as error:
        record.cut(error)
        raise AbortedAnswer(error.message) from error
    await client.end()


async def start_stream(exchange: Exchange, answering: UpstreamExchange, own: Headers) -> None:
    """Send status and headers of a stream. If the first frame has arrived, it will be sent in the same packet."""
    if last_end(answering.first_part):
        exchange.client.hold_head()
    await exchange.client.start(answering.status, returned(answering.headers, own, body_changed=True))


async def relay_stream(
    exchange: Exchange, chunks: AsyncIterator[bytes], editor: AnswerEditor, *, learns: bool = False
) -> None:
    """Relay frames as they arrive. A broken stream ends with an error frame. `learns`: keep the editor, so that Steno
    can learn from the answer's usage."""
    splitter, last, broken = FrameSplitter(), b"", None
    try:
        async for chunk in chunks:
            last = await _relay_frames(exchange, chunks, editor, splitter.together(chunk))
    except StenoError as error:
        last, broken = b"", error
    rest = last + editor.edit(splitter.flush())
    if learns:
        exchange.editor = editor
    if editor.complete:
        await exchange.client.end(rest)
        return
    broken = broken or UpstreamDisconnected("The provider's stream ended in the middle of the answer.")
    exchange.record.cut(broken)
    # Drop the rest of an incomplete frame. If the client has a part of the frame, end it with a blank line, so that the
    # error gets its own frame.
    await exchange.client.end(last + (b"\n\n" if splitter.overran else b"") + editor.error_frame(broken))


async def _relay_frames(exchange: Exchange, chunks: AsyncIterator[bytes], editor: AnswerEditor, frames: bytes) -> bytes:
    """Relay complete frames. If the stream has ended, return its last frames for the caller to send, else no bytes."""
    start, edited = 0, 0
    while start < len(frames):
        pieces = []
        while start < len(frames) and edited < FRAMES_AT_ONCE:
            if (quiet := editor.quiet(frames, start)) > start:
                pieces.append(frames[start:quiet])
                start = quiet
                continue
            end = first_end(frames, start)
            pieces.append(editor.edit(frames[start:end]))
            start, edited = end, edited + 1
        passed = b"".join(pieces)
        if start == len(frames) and isinstance(chunks, UpstreamExchange) and chunks.is_over:
            return passed
        await exchange.client.body(passed)
        if edited == FRAMES_AT_ONCE:
            edited = 0
            await asyncio.sleep(0)
    return b""


async def relay_unread(exchange: Exchange, unread: Unread, *, is_recorded: bool = True) -> None:
    """Forward a body unread, and relay the answer. `is_recorded`: enter the call into the ledger, even if the client
    disconnects."""
    services, caller, reason, body = exchange.services, exchange.caller, unread.reason, exchange.body
    writes, epoch = services.store.writes, services.store.writes.epoch
    path = None if reason.code is Code.SUMMARY_CALL else path_of(caller.target).decode("latin-1")
    exchange.headers = own = bypass(services, exchange.record, path, reason)
    reading = partial(caller.format.model_in, body, caller.target)  # An unreadable body often shows its model.
    model = await services.work.do(caller.tenant, reading) if len(body) > INLINE_BODY else reading()
    provider = services.providers.of(model, caller.format.name, caller.tenant, caller.upstream)
    answering = await exchange.call(provider, unread.body)
    reader = caller.format.editor() if is_recorded else None
    try:
        # If the provider is another Steno, the client gets the other Steno's headers.
        await relay_as_sent(exchange, answering, [] if are_of_steno(answering.headers) else own, reader)
    finally:
        if reader is not None and not writes.is_erased(caller.tenant, "", epoch):
            call = Call(answering.status, reader.usage if reader.ended else None)
            record_unread(exchange, provider, model, call, own[0][1].decode(), unread.body)


def passing(entry: Uncompacted, formats: Iterable[WireFormat]) -> Reason:
    if entry.reason is not Code.PATH_NOT_COMPACTED:
        return Reason(entry.reason)
    paths = ", ".join(format_.path.decode() for format_ in formats)
    return Reason(Code.PATH_NOT_COMPACTED, f"only POST {paths} is compacted")


def bypass(services: Services, record: RequestRecord, path: str | None, reason: Reason) -> Headers:
    """Count and log a request that Steno forwards unread, and return the headers about the context."""
    status = "full" if reason.code is Code.INTERNAL_ERROR else "bypassed"
    record.metrics.payloads[status].inc()
    if status == "bypassed" and path is not None and (count := services.throttle.count(path)) is not None:
        log.info("conversations passed un-compacted", path=path, reason=reason.text, times=count)
    return [(STATUS, status.encode()), (REASON, reason.text.encode())]
