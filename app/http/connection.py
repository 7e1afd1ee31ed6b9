"""Connections to a provider. An exchange is one request on a connection, and its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from app.errors import StenoError, UpstreamDisconnected, UpstreamTimedOut
from app.http.http1 import AnswerReading, GarbledAnswer, WrittenHead, unsendable

IDLE_SECONDS = 30.0
"""Seconds until an idle connection is closed."""
MOST_UNREAD = 128 << 10
"""Unread bytes of an answer above which reading from the network pauses."""
AT_ONCE = 64 << 10
"""Maximum bytes of one read from the network, and of one piece that an answer's reader gets."""
MOST_PARTS = 4_096
"""Number of unread parts above which reading pauses. One read can bring 10,000 tiny parts, each a Python object."""
JOINED = 64 << 10
"""Maximum bytes of a body that is joined with its head for one write. Joining is cheaper than a second write."""

NEVER = math.inf
_TICK = 0.001
"""Seconds by which a timer may fire too early, because the loop's clock has a resolution of 1 ms."""


class Timeouts(Struct, frozen=True):
    """Timeouts of the phases of a call, in seconds."""

    connect: float
    first_byte: float
    between_bytes: float
    """Longest wait for more bytes of an answer, and for the provider to accept more bytes of a request."""


class _Stalled(Exception):
    """Fault of an exchange: the provider sent or accepted nothing until the deadline."""


class Connection(asyncio.BufferedProtocol):
    """Connection to a provider. It calls `freed` when it can be reused, and `lost` (maybe twice) when it is closed.

    `room`: read buffer. Each read is parsed at once, so all connections of a loop can share the buffer.
    """

    def __init__(
        self, room: memoryview, freed: Callable[[Connection], None], lost: Callable[[Connection], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.exchange: UpstreamExchange | None = None
        """Exchange that uses the connection; None while the connection is idle."""
        self.deadline = NEVER
        """Loop time at which the exchange fails or the idle connection closes. Use `expire_at` for an earlier time."""
        self.used = False
        """True once an exchange is complete and the connection can be reused."""
        self.is_full = False
        """True if the transport's write buffer is full."""
        self._room, self._freed, self._lost = room, freed, lost
        self._transport: Any = None  # Set by `connection_made`.
        self._held = False
        self._fires_at = NEVER
        self._timer: asyncio.TimerHandle | None = None

    def write(self, *pieces: bytes) -> None:
        if self._transport.is_closing():  # uvloop's transport would raise here. The exchange gets the error instead.
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
        """End the connection's exchange. If unwritten bytes of the request remain, Steno does not reuse the connection,
        because the provider would read these bytes as the next request."""
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
        """Set the deadline (loop time). Move a later timer to it. An earlier timer moves itself to it on firing."""
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

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, _: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        if self.exchange is not None:
            self.exchange.received(self._room[:nbytes])
        else:
            self.abort()  # Otherwise Steno would read these bytes as the answer to the next request.

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
    """One request and its answer. Until the answer is complete or closed, no other exchange uses the connection."""

    __slots__ = ("_connection", "_fault", "_reading", "_timeouts", "_waiter", "_written", "headers", "status")

    status: int
    headers: list[tuple[bytes, bytes]]
    """Headers of the answer, set by `send`."""

    def __init__(self, connection: Connection, timeouts: Timeouts, *, to_head: bool) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._reading = AnswerReading(to_head=to_head)
        self._written = False
        """True if the whole request was passed to the connection."""
        self._fault: Exception | None = None
        """Error that ended the exchange."""
        self._waiter: asyncio.Future[None] | None = None
        connection.exchange = self
        connection.deadline = NEVER  # The connection is not idle any more.

    @property
    def is_silent(self) -> bool:
        return not self._reading.began

    async def send(self, written: WrittenHead, content: bytes | AsyncGenerator[bytes, None]) -> None:
        """Send the request, and return once the answer's headers have arrived. Raises `Upstream...` errors."""
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
        """Return the unread part of the body, and keep it unread. If the part has at most `beyond` bytes, first wait at
        most `seconds` for more bytes. Raises `Upstream...` errors."""
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
        """Return the next unread part of the body, and keep it unread; empty if there is none yet."""
        parts = self._reading.parts
        return parts[0] if parts else b""

    @property
    def is_over(self) -> bool:
        return self._reading.complete and not self._reading.unread

    async def read_ahead(self, most: int, *, raises: bool = True) -> tuple[bytes, bool]:
        """Wait for the whole body, or more than `most` bytes. Return the bytes, which stay unread, and whether they are
        the whole body. Raises `Upstream...` errors; with `raises=False`, only the next read raises them."""
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

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives. Raises `Upstream...` errors."""
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
        """Close the connection, unless the answer is complete."""
        if self._connection.exchange is self:
            self._connection.abort()

    # Callbacks of the connection.

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
        """Handle the end of the connection, which also ends an answer without a length."""
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

    async def _send_arriving(self, written: WrittenHead, content: AsyncGenerator[bytes, None]) -> None:
        """Send the pieces of a body as they arrive. Stop if the provider refuses the request before the body's end."""
        (head, length), sent = written, 0
        self._connection.write(head)
        async with aclosing(content):
            async for piece in content:
                if not piece:
                    continue  # An empty chunk would end the body.
                sent += len(piece)
                if length is None:
                    self._connection.write(b"%x\r\n" % len(piece), piece, b"\r\n")
                elif sent <= length:
                    self._connection.write(piece)
                if await self._is_refused():
                    return
        if length is None:
            self._connection.write(b"0\r\n\r\n")
        elif sent != length:
            raise unsendable(f"Its length is said to be {length}, and is {sent}.")
        self._written = True

    async def _is_refused(self) -> bool:
        """Wait until more of the body can be sent. Return True if the provider refused or answered the request."""
        reading = self._reading
        while True:
            if reading.complete or (reading.arrived and (reading.status >= 400 or self._fault is not None)):
                return True
            if not self._connection.is_full and self._fault is None:
                return False
            await self._something(self._timeouts.between_bytes)

    async def _something(self, seconds: float) -> None:
        """Wait for new bytes, space in the write buffer, or the connection's end. Raises `Upstream...` errors."""
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
                connection.deadline = NEVER  # Now Steno waits for the client.

    def _error(self, fault: Exception) -> StenoError:
        if isinstance(fault, _Stalled):
            if self._reading.arrived:
                return UpstreamTimedOut("The provider stopped sending in the middle of its answer.")
            return UpstreamTimedOut("The provider accepted the request and then sent nothing for too long.")
        if self._reading.arrived:
            return UpstreamDisconnected("The provider closed the connection in the middle of its answer.")
        return UpstreamDisconnected("The provider closed the connection before it answered.")
