"""Requests of clients and their answers: `Cycle`, and helpers that read the body and write the answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from functools import lru_cache
from time import time
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.errors import BodyTooLarge, RequestTimedOut, StenoError
from app.http.headers import FRAMING, REQUEST_ID, Headers, value_of, written

CONNECTION = "steno.connection"
"""Scope key: the request's `Cycle`, if Steno's own protocol serves it."""

KNOWN = "steno.known_head"
"""Scope key: dict that is shared by all requests with the same head on one connection (see `KnownHead`). It caches
values that depend on the head alone."""
AUTHORITY = "steno.authority"
"""Scope key: the host in a request target that is an absolute URL; None for a path."""
HANDSHAKE = "steno.handshake"
"""Scope key: True if the request asks for a WebSocket. The headers in the scope do not include the `Upgrade` header."""
JOINED = 65_536
"""Maximum bytes of a body that is joined with its head for one write. Joining is cheaper than a second write."""
CLOSES = b"connection: close\r\n"


class Cycle(RequestResponseCycle):
    """Request and its answer. Unlike uvicorn's, this class checks all headers of the answer in one step, and can send
    the head together with the next piece of the body."""

    logger = logging.getLogger("uvicorn.error")
    disconnected = False
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    task: asyncio.Task[None] | None = None
    _leave: Callable[[], None] | None = None
    _holds_head = False
    _held = b""
    """Head to be written together with the next piece of the body."""
    _is_bodiless = False

    def __init__(
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        on_response: Callable[[], None],
        keep_alive: bool,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.keep_alive = keep_alive
        self.on_response = on_response
        self.message_event = asyncio.Event()
        self.body: bytes | bytearray = bytearray()  # type: ignore[assignment] # bytes if it arrived with its head

    def whole_body(self) -> bytes | None:
        """Take the body if all of it has arrived, else return None. This is faster than `receive` with a timeout."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        if self.flow.read_paused:  # As in `receive`, this makes room for more bytes.
            self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), b""
        return body

    def when_left(self, leave: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect of the client; call it at once if the client has disconnected."""
        self._leave = leave
        if leave is not None and self.disconnected:
            leave()

    def left(self) -> None:
        # uvicorn notifies only the latest request, which may be waiting behind this one.
        self.disconnected = self.disconnected or not self.response_complete
        self.message_event.set()
        if self._leave is not None:
            self._leave()

    def hold_head(self) -> None:
        """Hold the answer's head until the next piece of the body, to send one packet instead of two."""
        self._holds_head = True

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            head = self._head(message["status"], message["headers"])
            if self._holds_head and not self._is_bodiless:
                self._held = head
            else:
                self.transport.write(head)
        else:
            self._write_body(message.get("body", b""), ends=not message.get("more_body", False))

    def _head(self, status: int, headers: Headers) -> bytes:
        """Begin the answer, and return its head. Names of headers must be in lower case."""
        lines, closes = written(headers), False
        self.response_started, self.waiting_for_100_continue = True, False
        self._is_bodiless = self.scope["method"] == "HEAD"
        for name, value in headers:
            if name in FRAMING:
                closes = self._frame(name, value) or closes
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += CLOSES
        if self.chunked_encoding is None and not self._is_bodiless and status not in (204, 304):
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        return b"%b%b\r\n" % (STATUS_LINE[status], lines)

    def _frame(self, name: bytes, value: bytes) -> bool:
        """Apply a framing header to the body. Return True if the header asks to close the connection."""
        if name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        return name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]

    def _write_body(self, piece: bytes, *, ends: bool) -> None:
        if self.response_complete:
            raise RuntimeError("The answer has ended already.")
        if self._is_bodiless:
            self.expected_content_length, piece = 0, b""
        elif self.chunked_encoding:
            last = b"0\r\n\r\n" if ends else b""
            piece = b"%x\r\n%b\r\n%b" % (len(piece), piece, last) if piece else last
        elif len(piece) > self.expected_content_length:
            raise RuntimeError("The body is longer than its headers say.")
        else:
            self.expected_content_length -= len(piece)
        held, self._held = self._held, b""
        if held and len(piece) > JOINED:
            self.transport.writelines([held, piece])
        elif held or piece:  # Some transports never finish writing an empty piece.
            self.transport.write(held + piece)
        if not ends:
            return
        if self.expected_content_length != 0:
            raise RuntimeError("The body is shorter than its headers say.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class ClientDisconnected(Exception):
    """Raised when the client disconnects before its request has arrived."""


class AbortedAnswer(Exception):
    """Raised when the provider's answer broke off. The server then closes the connection without ending the answer,
    because the client would take a regular end for a complete answer."""


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
    """Return the whole body. `count` is called with the size of each piece, and may raise an exception.

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
    """Cancel the block, and so the call to the provider, when the client disconnects. Under another server than Steno's
    own, the block always runs to its end."""
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
            working.uncancel()  # Necessary even if the block replaced the CancelledError.


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


SIGNATURE = "steno.signature"
"""Scope key: the request's `Signature`."""


class Signature:
    """Headers that Steno adds to an answer: the request's id, the date, the server, and CORS headers."""

    def __init__(self, request_id: str, shared: Headers, began: Callable[[int], None]) -> None:
        """`shared`: CORS headers for the page; `began`: called with the status when the answer begins."""
        self.shared = shared
        self._request_id = request_id.encode()
        self._began = began

    def under(self, status: int, headers: Headers) -> Headers:
        """Add the CORS headers, and the request's id as `x-context-request-id`. Add `date`, `server` and `x-request-id`
        (also the request's id) unless the provider set them."""
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
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.hold_head()
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.end(body)

    async def error(self, error: StenoError, headers: Headers | None = None, body: bytes | None = None) -> None:
        """Send an error. `body`: the error in the request's format; None for OpenAI's format."""
        body = error.envelope if body is None else body
        await self.whole(error.status, [*error.headers, *(headers or [])], body)
