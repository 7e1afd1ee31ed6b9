"""Endpoints of chat requests, of requests to count tokens, and of all other paths of providers. They are plain ASGI.

A chat request is served in these steps: identify, read, prepare, send, recover, relay, record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import structlog
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.conversation.reasons import Code, Reason, because
from app.errors import BodyTooLarge, RequestTimedOut, StenoError, UpstreamUnreachable
from app.formats.paths import format_at, uncompacted
from app.formats.refusals import is_repeatable
from app.http.asgi import (
    CONNECTION,
    KNOWN,
    SIGNATURE,
    AbortedAnswer,
    ClientAnswer,
    ClientDisconnected,
    body_pieces,
    peer_of,
    read_body,
    until_disconnect,
)
from app.http.headers import EVENT_STREAM, Headers, are_of_steno, forwarded, value_of
from app.providers.ledger import NOT_REPORTED
from app.proxy.caller import Caller
from app.proxy.early_stream import announce_summary
from app.proxy.exchange import Attempt, Exchange, Services
from app.proxy.learn import conversation_seen, latest_history, learn_cut, learn_status, learn_usage, record_calls
from app.proxy.recovery import choose_recovery, inspect_answer, learn_recovery, takes_place
from app.proxy.reply import bypass, context_headers, passing, relay_answer, relay_raw, relay_unread
from app.proxy.request import Unread, count_meanwhile, plain_body, read_request
from app.proxy.request_log import FIRST_ERROR, REQUEST
from app.proxy.retries import RetryBudget
from app.proxy.router import ROUTE
from app.settings import LimitSettings

log = structlog.get_logger("steno.chat")


FAILED = Decision(None, why=because(Code.INTERNAL_ERROR), failed=True)
"""Decision to forward a request unchanged after an internal error."""


class tolerated:  # noqa: N801 - a context manager; as a generator it would take 2 % of each request's time
    """Context manager that logs and suppresses Steno's own faults, so that the request continues."""

    def __init__(self, event: str, request: ChatRequest, *raised: type[Exception]) -> None:
        """`raised`: expected errors, which are not suppressed."""
        self._event, self._request, self._raised = event, request, raised

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        is_fault = isinstance(error, Exception) and not isinstance(error, self._raised)
        if is_fault:
            request_id, conversation_id = self._request.request_id, self._request.conversation_id
            log.error(self._event, request_id=request_id, conversation_id=conversation_id, exc_info=error)
        return is_fault


class ChatEndpoint:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        record, client = scope[REQUEST], ClientAnswer(send, scope[SIGNATURE], scope.get(CONNECTION))
        exchange = None
        try:
            caller = self._identify_caller(scope)  # First, so that Steno reads no body of a refused client.
            exchange = Exchange(services, record, client, caller)
            with services.in_flight.counted() as count:
                await self._read_body(exchange, receive, scope, count)
                with until_disconnect(client):
                    try:
                        await self.serve(exchange)
                    finally:
                        await exchange.close()
        except ClientDisconnected:
            return
        except StenoError as error:
            record.failed(error)
            if client.started:
                raise AbortedAnswer(error.message) from error
            await client.error(error, exchange.headers if exchange else [], scope[ROUTE].format.editor.own_error(error))

    async def serve(self, exchange: Exchange) -> None:
        """Serve a request whose body has arrived. If the client has to wait for a summary, `_prepare` and `_recover`
        begin the client's stream (`exchange.stream`). Attempts are recorded even if the client disconnects."""
        request = await self._read(exchange)
        if isinstance(request, Unread):
            await relay_unread(exchange, request)
            return
        try:
            attempt = await self._prepare(exchange, request)
            await self._send(exchange, attempt)
            if attempt.refusal is not None:
                attempt = exchange.attempt = await self._recover(exchange, attempt)
            if exchange.stream is None:
                await relay_answer(exchange, attempt)
            else:
                await exchange.stream.relay(attempt)
        except StenoError as error:
            if exchange.stream is None:
                exchange.headers = context_headers(request, exchange.attempt.decision) if exchange.attempt else []
                raise
            exchange.record.failed(error)
            await exchange.stream.fail(error)
        finally:
            self._record(exchange, request)

    def _identify_caller(self, scope: Scope) -> Caller:
        """Identify the caller by headers and query. Raises `MissingCredentials` and `InvalidCredentials`."""
        known: dict[str, Any] = scope.get(KNOWN, {})
        caller: Caller | None = known.get("caller")
        if caller is None:
            # Requests with the same head share the caller, but the lengths of their bodies may differ.
            headers, route = [header for header in scope["headers"] if header[0] != b"content-length"], scope[ROUTE]
            tenant = self._services.authenticator.identify(headers, peer_of(scope), scope["query_string"]).tenant
            caller = Caller(tenant, headers, route.format, route.conversation, route.upstream, route.target)
            known["caller"] = caller
        return caller

    async def _read_body(
        self, exchange: Exchange, receive: Receive, scope: Scope, count: Callable[[int], None]
    ) -> None:
        """Read and decode the body. Raises `BodyTooLarge`, `RequestTimedOut` and `ClientDisconnected`."""
        services, caller, limits = self._services, exchange.caller, self._services.limits
        if services.tracer is not None:
            # In the headers of calls to providers, this span replaces the client's span as the parent.
            span = exchange.record.span = services.tracer.begins(caller.target, caller.headers)
            span.says("steno.request.id", exchange.record.request_id)
            caller = replace(caller, headers=span.parent_of(caller.headers))
        at_most, connection = limits.largest_body, scope.get(CONNECTION)
        body = await read_body(receive, scope["headers"], at_most, limits.receive_seconds, count, connection)
        if caller.header(b"content-encoding"):
            plain = await plain_body(body, caller.headers, at_most, count, services.work, caller.tenant)
            if plain is not None:
                exchange.encoded = caller, body
                caller, body = caller.with_plain_body(), plain
        exchange.caller, exchange.body = caller, body

    async def _read(self, exchange: Exchange) -> ChatRequest | Unread:
        """Read the request. Raises `UnknownUpstream` and `InvalidRequest`."""
        body, request_id = exchange.body, exchange.record.request_id
        try:
            return await read_request(self._services, exchange.caller, body, request_id)
        except StenoError:
            raise
        except Exception:
            log.exception("a request was not understood", request_id=request_id)
            return Unread(Reason(Code.INTERNAL_ERROR), body)

    async def _prepare(self, exchange: Exchange, request: ChatRequest) -> Attempt:
        """Decide on the payload. If the decision fails, the payload is the client's own bytes."""
        began = monotonic()
        decision = await self._decide(exchange, request)
        seconds = round(monotonic() - began, 3)
        attempt = exchange.begin_attempt(request, decision, seconds if exchange.waits_for_summary else None)
        exchange.record.decided(request, attempt.decision, seconds=seconds, waited=exchange.waits_for_summary)
        return attempt

    async def _decide(self, exchange: Exchange, request: ChatRequest) -> Decision:
        compactor = self._services.compactor
        with tolerated("a request was not prepared", request):
            # A request with an early decision needs no `prepare`, unless Steno has to leave out refused thinking.
            if not request.thinking_from and (early := request.decide_early()) is not None:
                return early
            self._services.store.writes.catch_up()
            announcing = partial(announce_summary, exchange, request)
            decision = await compactor.for_request(request, announcing, may_postpone=True).prepare()
            compactor.count_reused(decision)
            return decision
        return FAILED

    async def _send(self, exchange: Exchange, attempt: Attempt) -> None:
        """Send a payload, wait for the answer, and meanwhile count the uncounted messages. If the client's stream has
        begun, the client cannot retry, so Steno retries. Raises the upstream errors."""
        if exchange.stream is not None:
            exchange.stream.decide(attempt.decision)
        retries, may_repeat = RetryBudget(attempt.request.wait_seconds), exchange.stream is not None
        counting = count_meanwhile(self._services, attempt.request)
        try:
            while True:
                try:
                    await self._send_once(exchange, attempt)
                except UpstreamUnreachable:  # Steno may repeat: the provider has not received the request.
                    if not may_repeat or (pause := retries.pause()) is None:
                        raise
                else:
                    refusal, headers = attempt.refusal, attempt.answering.headers
                    status = attempt.answering.status if refusal is None else refusal.status
                    if not may_repeat or not status or not is_repeatable(status, headers):
                        return
                    if (pause := retries.pause(headers)) is None:
                        return
                    await attempt.answering.close()
                    seconds, request_id = round(pause, 3), exchange.record.request_id
                    log.info("asked once more", request_id=request_id, status=status, seconds=seconds)
                await asyncio.sleep(pause)
        finally:
            if counting is not None:
                await asyncio.wait({counting})

    async def _send_once(self, exchange: Exchange, attempt: Attempt) -> None:
        request = attempt.request
        write = partial(request.payload, attempt.decision, ask_usage=attempt.asks_usage)
        body = await request.beside(self._services.work.do, write) if attempt.decision.view else write()
        attempt.size = len(body)
        answering = await exchange.call(request.provider, body, request.model, logs_refusal=False)
        learn_status(attempt, answering.status)
        with tolerated("a refusal was not learnt from", request, StenoError):
            await inspect_answer(exchange, attempt, answering)
        is_shown = attempt.refusal is None or not attempt.refusal.keeps_messages
        if answering.status >= FIRST_ERROR and is_shown:
            exchange.record.refused(answering)

    async def _recover(self, exchange: Exchange, refused: Attempt) -> Attempt:
        """Send other payloads after a refusal. Return the attempt whose answer the client gets."""
        changed = None
        with tolerated("a request was not prepared", refused.request):
            changed = await choose_recovery(exchange, refused)
        if changed is None:
            return refused
        exchange.recovered_from, is_taken = refused.refusal, False
        try:
            await self._send(exchange, changed)
        except StenoError as error:
            if refused.refusal is not None and refused.refusal.keeps_messages:
                raise
            exchange.record.failed(error)
        else:
            if changed.refusal is not None:
                changed = await self._recover(exchange, changed)
            is_taken = takes_place(refused, changed)
            await (refused if is_taken else changed).answering.close()
        learn_recovery(exchange, refused, changed, is_taken=is_taken)
        return changed if is_taken else refused

    def _record(self, exchange: Exchange, request: ChatRequest) -> None:
        """Learn from the answer, queue the request's records, and start a background summary if one is due soon."""
        services, attempt, editor = self._services, exchange.attempt, exchange.editor
        if attempt is None or services.store.writes.is_erased(request.tenant, request.conversation_id, request.epoch):
            return
        if editor is not None:
            usage = attempt.calls[-1].usage = editor.usage
            if editor.complete and not editor.failed:
                with tolerated("an answer's usage was not learnt from", request):
                    kind = value_of(attempt.answering.headers, b"content-type") or ""
                    learn_usage(attempt, usage, streamed=kind.lower().startswith(EVENT_STREAM))
            if editor.window_full or (editor.at_length and not editor.has_content):
                with tolerated("a full window was not learnt from", request):
                    learn_cut(attempt, editor)
        if exchange.record.span is not None:
            calls = exchange.attempts[-1].calls
            exchange.record.span.used(calls[-1].tokens if calls else NOT_REPORTED)
        services.store.writes.soon(partial(self._write_behind, exchange.attempts, request, attempt.decision))
        bound, measure = request.conversation.bound, request.measure
        if bound is None or bound > measure.least_counted:
            services.background.consider(request, measure.rules.compaction.background, attempt.decision)

    def _write_behind(self, attempts: Sequence[Attempt], request: ChatRequest, decision: Decision) -> None:
        """Record a finished request: the cost of its calls, its conversation and, if enabled, its messages."""
        store = self._services.store
        for attempt in attempts:
            with tolerated("an answer was not recorded", request):
                record_calls(self._services, attempt)
        store.writes.record(conversation_seen(request, decision))
        if self._services.keeps_messages:
            store.writes.record_history(latest_history(request))


UPLOAD_BYTES = 1_000_000_000
"""Maximum bytes of a streamed body. Such a body takes no memory, but occupies a connection."""


class CountingEndpoint(ChatEndpoint):
    """Endpoint of requests to count tokens. Steno forwards them unchanged to the provider, and records no usage."""

    async def serve(self, exchange: Exchange) -> None:
        entry = uncompacted("POST", exchange.caller.target)
        reason = Reason(Code.PATH_NOT_COMPACTED) if entry is None else passing(entry, exchange.services.formats)
        await relay_unread(exchange, Unread(reason, exchange.body), is_recorded=False)


class PassthroughEndpoint:
    """Endpoint that streams the body in pieces, so that an upload costs no memory."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services, headers, route, record = self._services, list(scope["headers"]), scope[ROUTE], scope[REQUEST]
        client, own = ClientAnswer(send, scope[SIGNATURE], scope.get(CONNECTION)), []
        try:
            # Without this check, unknown clients could use the provider through Steno.
            tenant = services.authenticator.identify(headers, peer_of(scope), scope["query_string"]).tenant
            if (entry := uncompacted(scope["method"], route.target)) is not None:
                own = bypass(services, record, entry.name, passing(entry, services.formats))
            provider = services.providers.of(None, format_at(route.target, headers), tenant, route.upstream)
            with until_disconnect(client):
                record.goes_to(provider)
                sent = forwarded(headers, read_here=False)
                head = provider.upstream.head(scope["method"].encode(), route.target, sent)
                answering = await provider.upstream.relay(head, _body(headers, receive, services.limits))
                record.answered(answering)
                try:
                    passed = [] if are_of_steno(answering.headers) else own
                    await relay_raw(answering, client, passed, record)
                finally:
                    await answering.close()
        except ClientDisconnected:
            return
        except StenoError as error:
            record.failed(error)
            await client.error(error, own)


def _body(headers: Headers, receive: Receive, limits: LimitSettings) -> bytes | AsyncGenerator[bytes, None]:
    """Return the body as it arrives, or no bytes if the headers announce no body. Raises `BodyTooLarge`."""
    length = int(value_of(headers, b"content-length") or 0)
    if not length and value_of(headers, b"transfer-encoding") is None:
        return b""
    _check_size(length)
    return _arriving(receive, limits)


async def _arriving(receive: Receive, limits: LimitSettings) -> AsyncGenerator[bytes, None]:
    """Yield the body's pieces. Raises `BodyTooLarge`, `RequestTimedOut` and `ClientDisconnected`."""
    pieces, size = body_pieces(receive), 0
    while True:
        try:
            async with asyncio.timeout(limits.receive_seconds):
                piece = await anext(pieces, None)
        except TimeoutError as error:
            seconds = limits.receive_seconds
            raise RequestTimedOut(f"No byte of the request body arrived for {seconds:g} seconds.") from error
        if piece is None:
            break
        size += len(piece)
        _check_size(size)
        yield piece


def _check_size(size: int) -> None:
    if size > UPLOAD_BYTES:
        raise BodyTooLarge(f"The request body is larger than {UPLOAD_BYTES} bytes.")
