"""Delivery: an answer written as HTTP, with the delays, cuts and encodings that its fault asks for."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from lab.simulator.connection import Connection
from lab.simulator.content import Content
from lab.simulator.format import Format, Frame
from lab.simulator.log import Record
from lab.simulator.script import Fault, Headers

EVENT_STREAM = "text/event-stream; charset=utf-8"


class Delivery:
    """Writes the answer to one request."""

    def __init__(
        self,
        connection: Connection,
        record: Record,
        fault: Fault,
        written: Format[Any],
        on_status: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._format = written
        self._record = record
        self._fault = fault
        self._on_status = on_status
        self._accepts_gzip = "gzip" in (record.header("accept-encoding") or "")

    async def content(self, content: Content) -> None:
        """Write an answer in one piece."""
        await self._wait()
        fault = self._fault
        compress = self._accepts_gzip and fault.gzip is not False
        body = gzip.compress(content.body, 1, mtime=0) if compress else content.body
        length = {"content-length": str(len(body))} if fault.framing == "chunked" and fault.cut != "end" else {}
        await self._start(content.status, content.content_type, compress, length)
        await self._connection.write(body if fault.cut is None else body[: fault.after])
        if fault.cut is None:
            await self._connection.finish()
        else:
            await self._connection.sever(fault.cut)

    async def stream(self, frames: Iterable[Frame]) -> None:
        """Write server-sent events, and what closes them unless the fault breaks them off."""
        await self._wait()
        fault = self._fault
        encode = _encoder(self._accepts_gzip and fault.gzip is True)
        await self._start(200, EVENT_STREAM, self._accepts_gzip and fault.gzip is True, {"cache-control": "no-cache"})
        await asyncio.sleep(fault.first_token_delay)
        if fault.preamble:
            await self._connection.write(encode(fault.preamble))
        sent = 0
        for index, frame in enumerate(frames):
            if index >= fault.after and (fault.cut or fault.error_frame):
                break
            if index:
                # Also without a delay: frames leave one by one, and a closed connection is noticed.
                await asyncio.sleep(fault.chunk_delay)
            await self._connection.write(encode(self._written(frame)))
            sent += 1
        await self._end_stream(encode, sent)

    async def _end_stream(self, encode: Callable[[bytes], bytes], sent: int) -> None:
        match self._fault.error_frame:
            case None if self._fault.cut is None:
                if self._format.closing:
                    await self._connection.write(encode(self._frame(self._format.closing)))
            case None:
                pass
            case bytes() as raw:
                await self._connection.write(encode(raw))
            case error:
                await self._connection.write(encode(self._written(self._format.error_frame(error, sent))))
        await self._connection.sever(self._fault.cut or "end")

    async def _wait(self) -> None:
        if self._fault.hang:
            await asyncio.Event().wait()
        await asyncio.sleep(self._fault.delay)

    async def _start(self, status: int, content_type: str, compressed: bool, more: Mapping[str, str]) -> None:
        own = {
            "content-type": content_type,
            **self._format.headers(self._record.request_id, status),
            **({"content-encoding": "gzip", "vary": "accept-encoding"} if compressed else {}),
            **_retry_headers(self._fault.retry_after),
            **more,
        }
        self._on_status(status)
        headers = _merged(own, self._fault.headers)
        await self._connection.start(status, headers, until_eof=self._fault.framing == "eof")

    def _written(self, frame: Frame) -> bytes:
        named = b"" if frame.event is None else b"event: " + frame.event.encode() + self._fault.newline
        return named + self._frame(msgspec.json.encode(frame.data))

    def _frame(self, data: bytes) -> bytes:
        return b"data: " + data + self._fault.newline * 2


def _encoder(compress: bool) -> Callable[[bytes], bytes]:
    if not compress:
        return lambda data: data
    compressor = zlib.compressobj(wbits=31)
    # A flush after each frame, or the caller would wait for the whole stream.
    return lambda data: compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def _retry_headers(seconds: float | None) -> dict[str, str]:
    if seconds is None:
        return {}
    return {"retry-after": str(-int(-seconds // 1)), "retry-after-ms": str(round(seconds * 1000))}


def _merged(own: Mapping[str, str], headers: Headers) -> list[tuple[bytes, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    replaced = {name.lower() for name, _ in pairs}
    kept = [(name, value) for name, value in own.items() if name not in replaced]
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (*kept, *pairs)]
