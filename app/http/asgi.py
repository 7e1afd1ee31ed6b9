"""ASGI helpers of the proxy routes: read the client's body, and write its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import TYPE_CHECKING

from starlette.types import Message, Receive, Scope, Send

from app.errors import BodyTooLarge, RequestTimedOut, StenoError
from app.http.headers import Headers, value_of
from app.http.own_headers import REQUEST_ID

if TYPE_CHECKING:
    from app.http.cycle import Cycle

CONNECTION = "steno.connection"
"""Scope key: the request's `Cycle`, if Steno's own protocol serves it."""

KNOWN = "steno.known_head"
"""Scope key: values derived only from a request head that this connection has sent before. See `KnownHead`."""
AUTHORITY = "steno.authority"
"""Scope key: the host in a request target that is an absolute URL; None for a path. The server sets it."""
HANDSHAKE = "steno.handshake"
"""Scope key: true if the request asks for a WebSocket. The server sets it, and removes the offer from the headers."""


class ClientDisconnected(Exception):
    """Raised when the client disconnects before its request has arrived."""


class AbortedAnswer(Exception):
    """Raised when the provider's answer broke off. The server then closes the connection without ending the answer,
    because the client would take a clean end for a complete answer.
    """


def peer_of(scope: Scope) -> str:
    """Return the address of the connection's other end; empty if the server does not know it."""
    return scope["client"][0] if scope.get("client") else ""


async def read_body(
    receive: Receive,
    headers: Headers,
    at_most: int,
    seconds: float,
    count: Callable[[int], None] = lambda _: None,
    connection: Cycle | None = None,
) -> bytes:
    """Return the whole body. `count` is called with the number of bytes, and may raise.

    Raises `BodyTooLarge` (before the body is read, if the headers announce its length), `RequestTimedOut` or
    `ClientDisconnected`.
    """
    if connection is not None and (body := connection.whole_body()) is not None:
        _check_size(len(body), at_most)
        count(len(body))
        return body
    _check_size(int(value_of(headers, b"content-length") or 0), at_most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for piece in body_pieces(receive):
                size += len(piece)
                _check_size(size, at_most)
                count(len(piece))
                pieces.append(piece)
    except TimeoutError as error:
        raise RequestTimedOut(f"The request body did not arrive within {seconds:g} seconds.") from error
    return b"".join(pieces)


def _check_size(size: int, at_most: int) -> None:
    if size > at_most:
        raise BodyTooLarge(f"The request body is larger than {at_most} bytes. Send less, or raise limits.body_bytes.")


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        if piece := message.get("body", b""):
            yield piece
        more = message.get("more_body", False)


@contextmanager
def until_disconnect(answer: ClientAnswer) -> Iterator[None]:
    """Cancel the block, and with it the call to the provider, when the client disconnects. Under a server other than
    Steno's own, nothing is cancelled."""
    connection = answer.connection
    if connection is None or (working := connection.task) is None:
        yield
        return
    has_left, others = False, working.cancelling()

    def leave() -> None:
        nonlocal has_left
        if not answer.ended:  # The server also reports a disconnect after the answer has ended.
            has_left = True
            working.cancel()

    connection.when_left(leave)
    try:
        yield
    except asyncio.CancelledError:
        if not has_left or working.cancelling() > others + 1:  # The server cancelled the task, too.
            raise
    finally:
        connection.when_left(None)
        if has_left:
            working.uncancel()  # Also if the block replaced the CancelledError by another error.


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


SIGNATURE = "steno.signature"
"""Scope key: headers that Steno adds to every answer."""


class Signature:
    """Headers that Steno adds to an answer: the request's id, the date, the server, and CORS headers."""

    def __init__(self, request_id: str, shared: Headers, began: Callable[[int], None]) -> None:
        """`shared`: CORS headers for the page; `began`: called with the answer's status."""
        self.shared = shared
        self._request_id = request_id.encode()
        self._began = began

    def under(self, status: int, headers: Headers) -> Headers:
        """Add the request's id and the CORS headers. Add `date`, `server` and `x-request-id` unless the provider set
        them."""
        self._began(status)
        names = {name for name, _ in headers}
        if REQUEST_ID in names:  # Set by another Steno.
            headers = [header for header in headers if header[0] != REQUEST_ID]
        kept = [*headers, *self.shared, (REQUEST_ID, self._request_id)]
        if b"date" not in names:
            kept.append((b"date", _date(int(time()))))
        if b"server" not in names:
            kept.append((b"server", b"steno"))
        if b"x-request-id" not in names:
            kept.append((b"x-request-id", self._request_id))
        return kept

    def on(self, send: Send) -> Send:

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in message["headers"]]
                message = {**message, "headers": self.under(message["status"], headers)}
            await send(message)

        return signed


class ClientAnswer:
    def __init__(self, send: Send, signature: Signature | None = None, connection: Cycle | None = None) -> None:
        self._send = send
        self._signature = signature
        self.connection = connection
        self.started = False
        self.ended = False

    def hold_head(self) -> None:
        if self.connection is not None:
            self.connection.hold_head()

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        signed = headers if self._signature is None else self._signature.under(status, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": signed})

    async def body(self, piece: bytes) -> None:
        if not piece:
            return
        if self.connection is None or self.connection.is_stalled:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        else:
            self.connection.go_on(piece, ends=False)

    async def end(self, piece: bytes = b"") -> None:
        self.ended = True
        if self.connection is None or self.connection.is_stalled:
            await self._send({"type": "http.response.body", "body": piece, "more_body": False})
        else:
            self.connection.go_on(piece, ends=True)

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        if self.connection is None or self.connection.is_stalled:
            await self.start(status, headers)
            await self.end(body)
        else:
            self.started = self.ended = True
            signed = headers if self._signature is None else self._signature.under(status, headers)
            self.connection.answer(status, signed, body)

    async def error(self, error: StenoError, headers: Headers | None = None, body: bytes | None = None) -> None:
        """Send an error. `body`: the error in the request's format; None for OpenAI's."""
        body = error.envelope if body is None else body
        await self.whole(error.status, [*error.headers, *(headers or [])], body)
