"""Passthrough: relays requests to count tokens, and all other paths and methods of providers, without changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from app.conversation.reasons import Code, Reason
from app.errors import BodyTooLarge, RequestTimedOut, StenoError
from app.formats.paths import format_at, uncompacted
from app.http.asgi import (
    CONNECTION,
    SIGNATURE,
    ClientAnswer,
    ClientDisconnected,
    body_pieces,
    peer_of,
    until_disconnect,
)
from app.http.headers import Headers, forwarded, value_of
from app.proxy.endpoint import ChatEndpoint
from app.proxy.exchange import REQUEST, Exchange
from app.proxy.reply import (
    bypass,
    passing,
    relay_raw,
    relay_unread,
    unless_told,
)
from app.proxy.request import Unread
from app.proxy.router import ROUTE
from app.proxy.services import Services
from app.settings import LimitSettings

UPLOAD_BYTES = 1_000_000_000
"""Maximum bytes of a relayed body: it takes no memory, but occupies a connection."""


class CountingEndpoint(ChatEndpoint):
    """Endpoint of requests to count tokens: forwarded unchanged to the model's provider, and not recorded."""

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
            # Otherwise any client that reaches Steno could use the provider through it.
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
                    await relay_raw(answering, client, unless_told(own, answering.headers), record)
                finally:
                    await answering.close()
        except ClientDisconnected:
            return
        except StenoError as error:
            record.failed(error)
            await client.error(error, own)


def _body(headers: Headers, receive: Receive, limits: LimitSettings) -> bytes | AsyncIterator[bytes]:
    """Return the body as it arrives, or no bytes if the headers announce no body. Raises `BodyTooLarge`."""
    length = int(value_of(headers, b"content-length") or 0)
    if not length and value_of(headers, b"transfer-encoding") is None:
        return b""
    _check_size(length)
    return _arriving(receive, limits)


async def _arriving(receive: Receive, limits: LimitSettings) -> AsyncIterator[bytes]:
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
