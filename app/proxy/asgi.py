"""The few steps of ASGI that the proxy routes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from email.utils import formatdate
from time import time
from typing import Any, Protocol, cast

from starlette.types import Message, Receive, Scope, Send

from app.errors import BodyTooLarge, RequestTimedOut, StenoError
from app.headers.relayed import Headers, value_of

CONNECTION = "steno.connection"
"""Scope key: the server's side of the request, where the server is ours."""


MEMORY = "steno.memory"
"""Scope key: what is kept for as long as the client's connection stays, by those who keep it; there where the server is
ours."""


class Connection(Protocol):
    """What a server can tell without being asked through a task of its own."""

    def whole_body(self) -> bytes | None:
        """The body, once, if all of it is here already."""
        ...

    def hold_head(self) -> None:
        """The head of the answer waits for what comes next, which is the whole body: one packet instead of two."""
        ...

    def when_left(self, leave: Callable[[], None] | None) -> None:
        """What is called when the client leaves before its answer has ended; at once if it has left. None: nothing."""
        ...

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """In which the request is served; None where that is not known."""
        ...


class ClientDisconnected(Exception):
    """The client left before its request had arrived."""


class AbortedAnswer(Exception):
    """The provider's answer broke off: ends the connection without the end of the message.

    A clean end would be taken for a complete answer. The server closes the connection when an application raises.
    """


def peer_of(scope: Scope) -> str:
    """The address that the connection came from; empty where the server does not know it."""
    return scope["client"][0] if scope.get("client") else ""


def _uncounted(_: int) -> None:
    """For callers with no sum to keep."""


async def read_body(
    receive: Receive,
    headers: Headers,
    at_most: int,
    seconds: float,
    count: Callable[[int], None] = _uncounted,
    connection: Connection | None = None,
) -> bytes:
    """The whole body; `count` is given the bytes of each piece, and may raise.

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


async def until_disconnect(
    receive: Receive,
    answer: ClientAnswer,
    work: Coroutine[Any, Any, None],
    arrived: asyncio.Event | None = None,
    connection: Connection | None = None,
) -> None:
    """Does the work, unless the client leaves first: then it is cancelled, and with it the call to the provider.

    The connection says who leaves. Without one a task listens to the client; `arrived` is set once the work has
    taken the whole body: only then may anybody else listen.
    """
    if connection is None:
        connection = _Listening(receive, arrived)
    # Asyncio's own answer, where it has to be asked for, takes a while before Python 3.12.
    working, has_left = connection.task or cast("asyncio.Task[Any]", asyncio.current_task()), False
    others = working.cancelling()

    def leave() -> None:
        nonlocal has_left
        if not answer.ended:  # To the server everybody has left once an answer has ended.
            has_left = True
            working.cancel()

    connection.when_left(leave)
    try:
        await work
    except asyncio.CancelledError:
        if not has_left or working.cancelling() > others + 1:  # The server wants to end, too.
            raise
    finally:
        connection.when_left(None)
        if has_left:
            working.uncancel()  # Also where the work made something else of it.


class _Listening:
    """A client that is listened to by a task, because its server says nothing unasked."""

    task = None

    def __init__(self, receive: Receive, arrived: asyncio.Event | None) -> None:
        self._receive = receive
        self._arrived = arrived
        self._task: asyncio.Task[None] | None = None

    def whole_body(self) -> None:
        return None

    def hold_head(self) -> None: ...

    def when_left(self, leave: Callable[[], None] | None) -> None:
        if self._task is not None:
            self._task.cancel()
        self._task = None if leave is None else asyncio.ensure_future(self._listen(leave))

    async def _listen(self, leave: Callable[[], None]) -> None:
        with suppress(Exception):  # Who cannot be listened to is gone.
            if self._arrived is not None:
                await self._arrived.wait()
            while (await self._receive())["type"] != "http.disconnect":
                pass
        leave()


class _Date:
    """The `date` of answers, written once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._written = b""

    def now(self) -> bytes:
        if (second := int(time())) != self._second:
            self._second, self._written = second, formatdate(second, usegmt=True).encode()
        return self._written


_DATE = _Date()


SIGNATURE = "steno.signature"
"""Scope key: what Steno adds to the headers of every answer."""


class Signature:
    """What every answer says beside what it is: whose it is, when it was made, and which page may read it."""

    def __init__(self, request_id: str, shared: Headers, began: Callable[[int], None]) -> None:
        """`shared` are the headers that let a page read it; `began` is given its status."""
        self._request_id = request_id.encode()
        self._shared = shared
        self._began = began

    def under(self, status: int, headers: Headers) -> Headers:
        """With the request's id, and `date`, `server` and `x-request-id` where an answer has none: the provider's
        pass."""
        self._began(status)
        kept = [header for header in headers if header[0] != b"x-context-request-id"]
        kept += self._shared
        kept.append((b"x-context-request-id", self._request_id))
        names = {name for name, _ in kept}
        if b"date" not in names:
            kept.append((b"date", _DATE.now()))
        if b"server" not in names:
            kept.append((b"server", b"steno"))
        if b"x-request-id" not in names:
            kept.append((b"x-request-id", self._request_id))
        return kept

    def on(self, send: Send) -> Send:
        """The same for who sends messages of its own."""

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.lower(), value) for name, value in message["headers"]]
                message = {**message, "headers": self.under(message["status"], headers)}
            await send(message)

        return signed


class ClientAnswer:
    """One answer to the client."""

    def __init__(self, send: Send, signature: Signature | None = None, connection: Connection | None = None) -> None:
        self._send = send
        self._signature = signature
        self._connection = connection
        self.started = False
        self.ended = False

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        if self._signature is not None:
            headers = self._signature.under(status, headers)
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes) -> None:
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if self._connection is not None:
            self._connection.hold_head()
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def error(self, error: StenoError, headers: Headers | None = None, body: bytes | None = None) -> None:
        """`body`: in the request's own format."""
        body = error.envelope if body is None else body
        await self.whole(error.status, [*error.headers, *(headers or [])], body)
