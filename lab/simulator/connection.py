"""The connection: one request read, one answer written, and the socket below for what ASGI cannot express."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lab.simulator.script import Cut

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
HeaderPairs = Sequence[tuple[bytes, bytes]]

EXTENSION = "simulator"
_RESET = struct.pack("ii", 1, 0)


class OpenProtocol(HttpToolsProtocol):
    """Shows the application what ASGI hides: the target and headers as received, and the transport."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._received: list[tuple[bytes, bytes]] = []
        self.scope["extensions"] = {EXTENSION: {"transport": self.transport, "headers": self._received}}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._received.append((name, value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.scope["extensions"][EXTENSION]["target"] = self.url
        super().on_headers_complete()


def received_target(scope: Scope) -> str:
    return str(scope["extensions"][EXTENSION]["target"], "latin-1")


def received_headers(scope: Scope) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(scope["extensions"][EXTENSION]["headers"])


async def read_body(receive: Receive) -> tuple[bytes, bool]:
    """The body, and whether all of it came before the caller left."""
    pieces: list[bytes] = []
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return b"".join(pieces), False
        pieces.append(event.get("body", b""))
        if not event.get("more_body"):
            return b"".join(pieces), True


async def wait_until_closed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Connection:
    """Writes one answer. `ended` is true once it is complete, or broken off by the simulator itself."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self.ended = False
        self.severed = False

    async def start(self, status: int, headers: HeaderPairs) -> None:
        await self._send({"type": "http.response.start", "status": status, "headers": list(headers)})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.ended = True

    async def sever(self, how: Cut) -> None:
        """Break off, once what was written has left."""
        if how == "end":
            await self.finish()
            return
        transport = self._transport
        while transport.get_write_buffer_size():  # noqa: ASYNC110 -- asyncio notifies nobody that a buffer is empty
            await asyncio.sleep(0.001)
        self.ended = self.severed = True
        if how == "reset":
            _reset(transport)
        else:
            transport.close()

    @property
    def _transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._scope["extensions"][EXTENSION]["transport"]
        return transport


def _reset(transport: asyncio.Transport) -> None:
    # With a linger time of 0 the kernel sends RST instead of FIN.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
