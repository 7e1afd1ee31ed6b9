"""A connection to the provider, and the exchange that has it: one request, and its answer as it arrives."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from msgspec import Struct

from app.errors import StenoError, UpstreamDisconnected, UpstreamTimedOut
from app.http.http1 import AnswerReading, GarbledAnswer, WrittenHead, unsendable

IDLE_SECONDS = 30.0
"""Time for which an idle connection is kept."""
MOST_UNREAD = 128 << 10
"""Bytes of an answer that wait for their reader. Beyond that no more are taken from the network."""
AT_ONCE = 64 << 10
"""Bytes that are read from the network, and handed over, together."""
MOST_PARTS = 4_096
"""Parts that wait: a part is a Python object, however short it is. One read can bring ten thousand of one byte each."""
JOINED = 64 << 10
"""A body up to this long is written together with its head: the copy costs less than a second write."""

NEVER = math.inf
_TICK = 0.001
"""The loop's clock has milliseconds: a timer may fire so much early."""


class Timeouts(Struct, frozen=True):
    """Timeouts in seconds, each for one phase."""

    connect: float
    first_byte: float
    between_bytes: float
    """Longest wait for more of an answer, or for the provider to take a byte of a request."""


class _Stalled(Exception):
    """The other side sent or took nothing until the deadline."""


class Connection(asyncio.BufferedProtocol):
    """One connection. `freed` is called when it may be used again, `lost`, once or twice, when not any more.

    `room` is where the network is read to. It is empty after each read, so a loop's connections can share it.
    """

    def __init__(
        self, room: memoryview, freed: Callable[[Connection], None], lost: Callable[[Connection], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.exchange: UpstreamExchange | None = None
        """The exchange that has the connection; None while it is idle."""
        self.deadline = NEVER
        """End of the wait for the other side, by the loop's clock; `expire_at` sets an earlier one than NEVER."""
        self.used = False
        """True if the connection carried an exchange before."""
        self.is_full = False
        """Whether too much waits to be written."""
        self._room, self._freed, self._lost = room, freed, lost
        self._transport: Any = None  # There once it is made.
        self._held = False
        self._fires_at = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def write(self, *pieces: bytes) -> None:
        if self._transport.is_closing():  # uvloop's would raise, and an exchange that came later has not heard of it.
            self._ended(ConnectionResetError("It was closed already."))
        elif len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def hold(self) -> None:
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._held:
            self._held = False
            self._transport.resume_reading()

    def release(self, *, reusable: bool) -> None:
        """Note that the connection's exchange is over. Bytes of a request that are still to be written would stand
        before the next one."""
        self.exchange = None
        if not reusable or self._transport.is_closing() or self._transport.get_write_buffer_size():
            self.abort()
            return
        self.go_on()
        self.used = True
        self.expire_at(self.loop.time() + IDLE_SECONDS)
        self._freed(self)

    def abort(self) -> None:
        self._ended(ConnectionAbortedError("It was closed here."))
        if self._transport is not None:
            self._transport.abort()
        self._lost(self)

    def expire_at(self, when: float) -> None:
        """Set when the wait for the other side is over. One timer stays as it is where it fires earlier: it looks
        then."""
        self.deadline = when
        if when < self._fires_at:
            self._set_timer(when)

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = when
        self._timer = self.loop.call_at(when, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._timer, self._fires_at = None, NEVER
        if self.deadline > self.loop.time() + _TICK:
            if self.deadline != NEVER:
                self._set_timer(self.deadline)
        elif self.exchange is not None:
            self.exchange.broke(_Stalled())
        else:
            self.abort()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, _: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self.exchange is not None:
            self.exchange.received(self._room[:nbytes])
        else:
            self.abort()  # No request asked for it, and it would be taken for the answer to the next one.

    def eof_received(self) -> None:
        self._ended(None)
        self._lost(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended(exc)
        self._lost(self)

    def _ended(self, error: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.ended(error)

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self.exchange is not None:
            self.exchange.wake()


class UpstreamExchange:
    """One request and its answer. The connection is its own until the answer is complete, or given up."""

    __slots__ = ("_connection", "_fault", "_reading", "_timeouts", "_waiter", "_written", "headers", "status")

    status: int
    headers: list[tuple[bytes, bytes]]
    """Headers of the answer, there once it has begun."""

    def __init__(self, connection: Connection, timeouts: Timeouts, *, to_head: bool) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._reading = AnswerReading(to_head=to_head)
        self._written = False
        """Whether all of the request was handed to the connection."""
        self._fault: Exception | None = None
        """Reason why no more comes, other than the answer's end."""
        self._waiter: asyncio.Future[None] | None = None
        connection.exchange = self
        connection.deadline = NEVER  # It is idle no more.

    @property
    def is_silent(self) -> bool:
        return not self._reading.began

    async def send(self, written: WrittenHead, content: bytes | AsyncIterator[bytes]) -> None:
        """Sends the request, and returns once the answer's headers are there. Raises the upstream errors."""
        connection, reading = self._connection, self._reading
        try:
            if isinstance(content, bytes):
                self._written = True
                head = written[0]
                pieces = (head + content,) if len(content) <= JOINED else (head, content)
                connection.write(*pieces)
                while connection.is_full and not reading.arrived:
                    await self._something(self._timeouts.between_bytes)
            else:
                await self._send_arriving(written, content)
            while not reading.arrived:
                await self._something(self._timeouts.first_byte)
        except BaseException:
            await self.close()
            raise
        self.status, self.headers = reading.status, reading.headers

    async def beginning(self, seconds: float, beyond: int = 0) -> bytes:
        """The part of the body that is there and was not taken, after waiting so long for more of it than so many
        bytes. Raises the upstream errors."""
        reading = self._reading
        if reading.unread <= beyond and not reading.complete:
            timer = self._connection.loop.call_later(seconds, self.wake)
            try:
                await self._something(self._timeouts.between_bytes)
            finally:
                timer.cancel()
        return b"".join(reading.parts)

    @property
    def first_part(self) -> bytes:
        """The part of the body that is there and will be taken next; empty where nothing is."""
        parts = self._reading.parts
        return parts[0] if parts else b""

    @property
    def is_over(self) -> bool:
        return self._reading.complete and not self._reading.unread

    async def read_ahead(self, most: int, *, raises: bool = True) -> tuple[bytes, bool]:
        """Wait for the body, up to so many bytes. Returns what came of it, which stays to be read, and whether it is
        all. Raises the upstream errors; with `raises` false they are left to the next reader."""
        reading, body = self._reading, bytearray()
        if reading.complete and reading.unread <= most:
            return b"".join(reading.parts), True
        try:
            async for chunk in self:
                body += chunk
                if len(body) > most:
                    break
        except StenoError:
            if raises:
                raise
        finally:
            reading.put_back(bytes(body))
        return bytes(body), reading.complete and len(body) <= most

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives: what waits goes together. Raises the upstream errors."""
        return self

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        reading = self._reading
        while not reading.unread:
            if reading.complete:
                raise StopAsyncIteration
            await self._something(self._timeouts.between_bytes)
        taken = reading.take(AT_ONCE)
        if self._connection.exchange is self and reading.unread <= MOST_UNREAD // 2:
            self._connection.go_on()
        return taken

    async def close(self) -> None:
        """Give the answer up: the provider sees the connection close, unless it has answered whole."""
        if self._connection.exchange is self:
            self._connection.abort()

    # What the connection calls.

    def received(self, data: memoryview) -> None:
        reading = self._reading
        try:
            reading.feed(data)
        except GarbledAnswer as error:
            self.broke(error)
            return
        if reading.complete:
            self._connection.release(reusable=self._written and reading.reusable)
        elif reading.unread > MOST_UNREAD or len(reading.parts) > MOST_PARTS:
            self._connection.hold()
        self.wake()

    def ended(self, error: Exception | None) -> None:
        """The connection is closed: for some answers that is their end."""
        if error is None:
            try:
                self._reading.end()
            except GarbledAnswer as garbled:
                error = garbled
        self._fault = self._fault or error
        self._reading.stop()
        self.wake()

    def broke(self, fault: Exception) -> None:
        self._fault = fault
        self._connection.abort()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _send_arriving(self, written: WrittenHead, content: AsyncIterator[bytes]) -> None:
        """A body of known or unknown length. A refusal ends it early, and then the connection is not used again."""
        head, length = written
        self._connection.write(head)
        try:
            self._written = await self._pass_on(length, content)
        finally:
            if isinstance(content, AsyncGenerator):
                await content.aclose()

    async def _pass_on(self, length: int | None, content: AsyncIterator[bytes]) -> bool:
        sent = 0
        async for piece in content:
            if not piece:
                continue  # A chunk of no bytes would be the last one.
            sent += len(piece)
            if length is None:
                self._connection.write(b"%x\r\n" % len(piece), piece, b"\r\n")
            elif sent <= length:
                self._connection.write(piece)
            if await self._is_refused():
                return False
        if length is None:
            self._connection.write(b"0\r\n\r\n")
        elif sent != length:
            raise unsendable(f"Its length is said to be {length}, and is {sent}.")
        return True

    async def _is_refused(self) -> bool:
        """Wait until more can be written; return True if that is useless, because the answer is there already."""
        reading = self._reading
        while True:
            if reading.complete or (reading.arrived and (reading.status >= 400 or self._fault is not None)):
                return True
            if not self._connection.is_full and self._fault is None:
                return False
            await self._something(self._timeouts.between_bytes)

    async def _something(self, seconds: float) -> None:
        """Waits for anything to happen: bytes, room for more, the end. Raises the upstream errors."""
        if self._fault is not None:
            raise self._error(self._fault) from self._fault
        connection = self._connection
        self._waiter = connection.loop.create_future()
        connection.expire_at(connection.loop.time() + seconds)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if connection.exchange is self:
                connection.deadline = NEVER  # The reader may take its time.

    def _error(self, fault: Exception) -> StenoError:
        if isinstance(fault, _Stalled):
            if self._reading.arrived:
                return UpstreamTimedOut("The provider stopped sending in the middle of its answer.")
            return UpstreamTimedOut("The provider accepted the request and then sent nothing for too long.")
        if self._reading.arrived:
            return UpstreamDisconnected("The provider closed the connection in the middle of its answer.")
        return UpstreamDisconnected("The provider closed the connection before it answered.")
