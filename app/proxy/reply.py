"""Replies: what an answer says about the context, and how the provider's answer goes down to the client.

What `http/own_headers` names is said here, but for the request's id, which is a part of `http/asgi.Signature`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Self

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from app.compaction.fallback import Decision
from app.compaction.request import ChatRequest
from app.compaction.view import Recalled
from app.conversation.reasons import Code, Reason
from app.errors import StenoError, UpstreamDisconnected
from app.formats.answers import LARGEST_WHOLE, AnswerEditor, ContextMembers
from app.formats.format import WireFormat
from app.formats.paths import Uncompacted, path_of
from app.formats.sse import FrameSplitter, first_end, last_end
from app.http import own_headers
from app.http.asgi import AbortedAnswer, ClientAnswer
from app.http.connection import UpstreamExchange
from app.http.headers import EVENT_STREAM, Headers, are_of_steno, media_type, returned
from app.http.upstream import Headers as Received
from app.proxy.conversation_ids import encoded_name
from app.proxy.exchange import Attempt, Call, Exchange, RequestRecord
from app.proxy.learn import LONGEST_REASON, record_unread
from app.proxy.request import INLINE_BODY, Unread
from app.proxy.services import Services

log = structlog.get_logger("steno.bypass")

FIRST_PIECE_SECONDS = 1.0
"""Seconds for which the beginning of a stream is held back, until the model says something: it may be an error, or end
without a word because the prompt fills the window. Behind a changed payload it is held back as long as a stream may be
silent, while not many frames come."""
MOST_EMPTY_FRAMES = 10
"""Frames that a beginning without content may have: in more of them the model says something in words unknown here."""
FRAMES_AT_ONCE = 64
"""Frames of a stream that are passed on before others have their turn: one read can bring thirty thousand."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class Tokens(msgspec.Struct, frozen=True):
    """Sizes of a request in the provider's tokens, all of them estimates."""

    estimated: int
    """Tokens of the history as it came."""
    forwarded: int
    """Tokens of the payload that was sent."""
    saved: int
    window: int
    """The model's context window; 0 where that is not known."""

    @classmethod
    def counted(cls, before: int, after: int, window: int) -> Self:
        return cls(before, after, before - after, window)


class Context(msgspec.Struct, frozen=True):
    """The `context` object, wherever one stands: in answers, streams, events and the routes that plan or compact.

    Nothing else writes it. `app/api/schema.py` describes each member; `make examples` renews what shows one.
    """

    conversation_id: str
    status: str
    actions: list[str]
    tokens: Tokens
    chunks: list[str]
    reason: str | None
    messages: Mapping[str, int] | UnsetType = UNSET
    recalled: Mapping[str, int] | UnsetType = UNSET


def context_of(request: ChatRequest, decision: Decision) -> Context:
    view = decision.view
    recalled = view.recalled if view else ()
    quoted = {index for part in recalled if isinstance(part, Recalled) for index in part.messages}
    return Context(
        conversation_id=request.conversation_id,
        status=decision.status,
        actions=list(decision.actions),
        tokens=Tokens.counted(*request.tokens(decision), request.window.context),
        chunks=[chunk.id for chunk in view.chunks] if view else [],
        reason=decision.reason,
        messages=(view and view.changed) or UNSET,
        recalled={"messages": len(quoted), "tokens": request.recalled(recalled)} if recalled else UNSET,
    )


def status_member(decision: Decision) -> bytes:
    return b'"context_status":"%b"' % decision.status.encode()


def context_members(request: ChatRequest, decision: Decision) -> ContextMembers:
    """JSON members of an answer: the status alone, and the status with the context."""
    status, context = status_member(decision), context_of(request, decision)
    return ContextMembers(status, status + b',"context":' + msgspec.json.encode(context))


def context_headers(request: ChatRequest, decision: Decision | None) -> Headers:
    """Build the `x-context-*` headers; without a decision the status is `pending`."""
    line = request.budget.line
    before = b"%d" % line.to_provider_tokens(request.conversation.tokens)
    headers = [
        (own_headers.STATUS, decision.status.encode() if decision else b"pending"),
        (own_headers.CONVERSATION_ID, encoded_name(request.conversation_id)),
        (own_headers.TOKENS_BEFORE, before),
        (own_headers.WINDOW, b"%d" % request.measure.window.context),
    ]
    if decision is None:
        return headers
    after = b"%d" % request.tokens(decision)[1]
    headers.append((own_headers.TOKENS_AFTER, after))
    if decision.actions:
        headers.append((own_headers.ACTIONS, ",".join(decision.actions).encode()))
    if (reason := decision.reason) is not None:
        # It may quote the request, which may hold line ends.
        headers.append((own_headers.REASON, _UNPRINTABLE.sub("?", reason[:LONGEST_REASON]).encode()))
    return headers


async def read_beginning(answering: UpstreamExchange, format_: WireFormat, seconds: float) -> AnswerEditor:
    """Read a stream until the model says something, it ends, or so many seconds have passed. Raises the upstream
    errors."""
    began, frames, seen = monotonic(), 0, 0
    editor, splitter = format_.editor(), FrameSplitter()
    beginning = await answering.beginning(seconds)
    while len(beginning) > seen:
        for frame in splitter.feed(beginning[seen:]):
            editor.edit(frame)
            frames += 1
            if editor.has_content:
                return editor
        if frames > MOST_EMPTY_FRAMES:
            seconds = min(seconds, FIRST_PIECE_SECONDS)
        seen, left = len(beginning), began + seconds - monotonic()
        if left <= 0 or editor.ended or editor.failed:
            break
        beginning = await answering.beginning(left, seen)
    return editor


async def relay_answer(exchange: Exchange, attempt: Attempt) -> None:
    """Send the provider's status first, then its bytes with what was done to the context."""
    request, decision, answering = attempt.request, attempt.decision, attempt.answering
    if decision.view is None and are_of_steno(answering.headers):
        await relay_as_sent(exchange, answering, [])  # Another Steno, which may have done more.
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
        await relay_stream(exchange, answering.chunks(), editor, learns=True)
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
    """Relay without adding to the body; but a stream that is cut still ends with an error. `reader`: the one that is
    to read what a good answer says of itself, also where the client leaves."""
    kind = media_type(answering.headers) if answering.status == 200 else ""
    if kind == EVENT_STREAM:
        await start_stream(exchange, answering, own)
        await relay_stream(exchange, answering.chunks(), reader or exchange.caller.format.editor())
        return
    if reader is not None and kind == "application/json":
        body, is_whole = await answering.read_ahead(LARGEST_WHOLE)
        if is_whole:
            reader.whole(body)
    await relay_raw(answering, exchange.client, own, exchange.record)


async def relay_raw(answering: UpstreamExchange, client: ClientAnswer, own: Headers, record: RequestRecord) -> None:
    """Relay status, headers and bytes as the provider sent them. Raises `AbortedAnswer` if the answer broke off."""
    # A 304 has the length of a body that does not come; uvicorn would wait for it.
    await client.start(answering.status, returned(answering.headers, own, body_changed=answering.status == 304))
    try:
        async for chunk in answering.chunks():
            await client.body(chunk)
    except StenoError as error:
        record.cut(error)
        raise AbortedAnswer(error.message) from error
    await client.end()


async def start_stream(exchange: Exchange, answering: UpstreamExchange, own: Headers) -> None:
    """Send status and headers of a stream, together with its first frame where that has come."""
    if last_end(answering.first_part):
        exchange.client.hold_head()
    await exchange.client.start(answering.status, returned(answering.headers, own, body_changed=True))


async def relay_stream(
    exchange: Exchange, chunks: AsyncIterator[bytes], editor: AnswerEditor, *, learns: bool = False
) -> None:
    """Relay frames as they arrive. A stream that breaks off ends with an error frame, never cleanly. `learns`: it is
    known what was sent for the answer, so that its usage teaches something."""
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
    # What is left of a frame is dropped, and a part of it that was passed on is ended: the error must stand in a
    # frame of its own.
    await exchange.client.end(last + (b"\n\n" if splitter.overran else b"") + editor.error_frame(broken))


async def _relay_frames(exchange: Exchange, chunks: AsyncIterator[bytes], editor: AnswerEditor, frames: bytes) -> bytes:
    """Relay complete frames. Returns the last ones, if it is known of them that they are."""
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
    """Relay a body unread, for the provider to judge. `is_recorded`: the call is entered into the ledger, also where
    the client leaves."""
    services, caller, reason, body = exchange.services, exchange.caller, unread.reason, exchange.body
    writes, epoch = services.store.writes, services.store.writes.epoch
    path = None if reason.code is Code.SUMMARY_CALL else path_of(caller.target).decode("latin-1")
    exchange.headers = own = bypass(services, exchange.record, path, reason)
    reading = partial(caller.format.model_in, body, caller.target)  # It may be readable where the rest is not.
    model = await services.work.do(caller.tenant, reading) if len(body) > INLINE_BODY else reading()
    provider = services.providers.of(model, caller.format.name, caller.tenant, caller.upstream)
    answering = await exchange.call(provider, unread.body)
    reader = caller.format.editor() if is_recorded else None
    try:
        await relay_as_sent(exchange, answering, unless_told(own, answering.headers), reader)
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
    """Count a request that is forwarded unread, and log its path. Returns its headers."""
    status = "full" if reason.code is Code.INTERNAL_ERROR else "bypassed"
    record.metrics.payloads[status].inc()
    if status == "bypassed" and path is not None and (count := services.throttle.count(path)) is not None:
        log.info("conversations passed un-compacted", path=path, reason=reason.text, times=count)
    return [(own_headers.STATUS, status.encode()), (own_headers.REASON, reason.text.encode())]


def unless_told(own: Headers, answered: Received) -> Headers:
    """Return `own`, or no headers if the answer has those of another Steno."""
    return [] if are_of_steno(answered) else own
