"""The few steps of ASGI that the proxy routes share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from starlette.types import Receive, Scope, Send

from app.errors import BodyTooLarge, RequestTimedOut, StenoError
from app.headers.relayed import Headers, value_of


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
    receive: Receive, headers: Headers, at_most: int, seconds: float, count: Callable[[int], None] = _uncounted
) -> bytes:
    """The whole body; `count` is told the bytes of each piece, and may raise.

    Raises `BodyTooLarge` (before the body is sent, where its length is announced), `RequestTimedOut` or
    `ClientDisconnected`.
    """
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
    receive: Receive, answer: ClientAnswer, work: Coroutine[Any, Any, None], arrived: asyncio.Event | None = None
) -> None:
    """Does the work, unless the client leaves first: then it is cancelled, and with it the call to the provider.

    `arrived` is set once the work has taken the whole body: only then may anybody else listen to the client.
    """
    working, has_left = cast("asyncio.Task[Any]", asyncio.current_task()), False
    others = working.cancelling()

    async def watch() -> None:
        nonlocal has_left
        with suppress(Exception):  # Who cannot be listened to is gone.
            await _disconnected(receive, arrived)
        if not answer.ended:  # To the server everybody has left once an answer has ended.
            has_left = True
            working.cancel()

    watching = asyncio.ensure_future(watch())
    try:
        await work
    except asyncio.CancelledError:
        if not has_left or working.cancelling() > others + 1:  # The server wants to end, too.
            raise
    finally:
        watching.cancel()
        if has_left:
            working.uncancel()  # Also where the work made something else of it.


async def _disconnected(receive: Receive, arrived: asyncio.Event | None) -> None:
    if arrived is not None:
        await arrived.wait()
    while (await receive())["type"] != "http.disconnect":
        pass


class ClientAnswer:
    """One answer to the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.ended = False

    async def start(self, status: int, headers: Headers) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes) -> None:
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self, piece: bytes = b"") -> None:
        self.ended = True
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await self.end(body)

    async def error(self, error: StenoError, headers: Headers | None = None, body: bytes | None = None) -> None:
        """`body`: in the request's own format."""
        body = error.envelope if body is None else body
        await self.whole(error.status, [*error.headers, *(headers or [])], body)
