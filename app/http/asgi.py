"""Steps of ASGI that the proxy routes share."""

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
"""Scope key: the server's side of the request, where the server is ours."""

KNOWN = "steno.known_head"
"""Scope key: what was worked out of a head that a connection has sent before, and of nothing else. See `KnownHead`."""
AUTHORITY = "steno.authority"
"""Scope key: the host in a target that is a whole URL, None for a path. The server sets it."""
HANDSHAKE = "steno.handshake"
"""Scope key: true if the request asks for a WebSocket. Our server alone knows: it takes offers out of the headers."""


class ClientDisconnected(Exception):
    """Raised when the client left before its request had arrived."""


class AbortedAnswer(Exception):
    """The provider's answer broke off: ends the connection without the end of the message.

    A clean end would be taken for a complete answer. The server closes the connection when an application raises.
    """


def peer_of(scope: Scope) -> str:
    """Address that the connection came from; empty if the server does not know it."""
    return scope["client"][0] if scope.get("client") else ""


async def read_body(
    receive: Receive,
    headers: Headers,
    at_most: int,
    seconds: float,
    count: Callable[[int], None] = lambda _: None,
    connection: Cycle | None = None,
) -> bytes:
    """Return the whole body, at once where the connection has it; `count` is given its bytes, and may raise.

    Raises `BodyTooLarge` (before the body is sent, where its length is announced), `RequestTimedOut` or
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
    """Work until the client leaves: then the work is cancelled, and with it the call to the provider. Under another
    server than ours it goes on."""
    connection = answer.connection
    if connection is None or (working := connection.task) is None:
        yield
        return
    has_left, others = False, working.cancelling()

    def leave() -> None:
        nonlocal has_left
        if not answer.ended:  # To the server every client has left once an answer has ended.
            has_left = True
            working.cancel()

    connection.when_left(leave)
    try:
        yield
    except asyncio.CancelledError:
        if not has_left or working.cancelling() > others + 1:  # The server wants to end, too.
            raise
    finally:
        connection.when_left(None)
        if has_left:
            working.uncancel()  # Also where the work made something else of it.


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


SIGNATURE = "steno.signature"
"""Scope key: headers that Steno adds to every answer."""


class Signature:
    """Headers of every answer beside its own: the request's id, the date, and which page may read it."""

    def __init__(self, request_id: str, shared: Headers, began: Callable[[int], None]) -> None:
        """Sign with `shared`, the headers that let a page read the answer; `began` is given its status."""
        self.shared = shared
        self._request_id = request_id.encode()
        self._began = began

    def under(self, status: int, headers: Headers) -> Headers:
        """Add the request's id, and `date`, `server` and `x-request-id` where an answer has none: the provider's
        pass."""
        self._began(status)
        names = {name for name, _ in headers}
        if REQUEST_ID in names:  # Of another Steno.
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
    """One answer to the client."""

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
        """Send an error. `body`: in the request's own format."""
        body = error.envelope if body is None else body
        await self.whole(error.status, [*error.headers, *(headers or [])], body)
