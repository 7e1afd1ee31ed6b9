"""Delivery: an answer written as HTTP, with the delays, cuts and encodings that its fault asks for."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Mapping

from lab.simulator.connection import Connection
from lab.simulator.format import Content, Format, Stream
from lab.simulator.log import Record
from lab.simulator.script import Fault, Headers


class Delivery:
    """Writes the answer to one request."""

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
        """Write an answer in one piece."""
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
