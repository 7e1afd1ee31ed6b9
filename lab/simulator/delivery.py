"""Delivery: an answer written as HTTP over one connection, with the delays, cuts and encodings of its fault."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lab.simulator.format import Content, Format, Stream
from lab.simulator.log import Record
from lab.simulator.script import Cut, Fault, Headers


class Delivery:
    def __init__(
        self,
        connection: Connection,
        record: Record,
        fault: Fault,
        written: Format,
        on_status: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._format = written
        self._record = record
        self._fault = fault
        self._on_status = on_status
        self._accepts_gzip = "gzip" in (record.header("accept-encoding") or "")

    async def content(self, content: Content) -> None:
        await self._wait()
        fault = self._fault
        body = gzip.compress(content.body, 1, mtime=0) if self._accepts_gzip else content.body
        length = {"content-length": str(len(body))} if fault.cut != "end" else {}
        encoding = {"content-encoding": "gzip", "vary": "accept-encoding"} if self._accepts_gzip else {}
        await self._start(content.status, content.content_type, {**encoding, **length})
        await self._connection.write(body if fault.cut is None else body[: fault.after])
        if fault.cut is None:
            await self._connection.finish()
        else:
            await self._connection.sever(fault.cut)

    async def stream(self, stream: Stream) -> None:
        """Write the frames one by one, and what closes them unless the fault breaks them off."""
        await self._wait()
        fault = self._fault
        await self._start(200, stream.content_type, {"cache-control": "no-cache"})
        await asyncio.sleep(fault.first_token_delay)
        for index, frame in enumerate(stream.frames):
            if index >= fault.after and fault.cut:
                break
            if index:
                # Also without a delay: frames leave one by one, and a closed connection is noticed.
                await asyncio.sleep(fault.chunk_delay)
            await self._connection.write(frame)
        if fault.cut is None and stream.closing:
            await self._connection.write(stream.closing)
        await self._connection.sever(fault.cut or "end")

    async def _wait(self) -> None:
        if self._fault.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(self._fault.delay)

    async def _start(self, status: int, content_type: str, more: Mapping[str, str]) -> None:
        own = {
            "content-type": content_type,
            **self._format.headers(self._record.request_id, status),
            **(_retry_headers(self._fault.retry_after) if self._format.has_retry_header else {}),
            **more,
        }
        self._on_status(status)
        await self._connection.start(status, _merged(own, self._fault.headers))


def _retry_headers(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return {}
    return {"retry-after": str(-int(-seconds // 1)), "retry-after-ms": str(round(seconds * 1000))}


def _merged(own: Mapping[str, str], headers: Headers) -> list[tuple[bytes, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    replaced = {name.lower() for name, _ in pairs}
    kept = [(name, value) for name, value in own.items() if name not in replaced]
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*kept, *pairs)]


# Connection: one request read, one answer written, and the socket below for what ASGI cannot express

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
            # With a linger time of 0 the kernel sends RST instead of FIN.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        else:
            transport.close()

    @property
    def _transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._scope["extensions"][EXTENSION]["transport"]
        return transport
