"""uvicorn's HTTP protocol with what it lacks.

Two deadlines, bodies that survive an offer to upgrade, no trailers among the headers, a bound for connections, for
requests that wait on one, and for what is read before anything comes of it, and refusals that say what is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, ClassVar, cast
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.errors import HeadersTooLarge, InvalidRequest, StenoError, TooManyConnections
from app.headers.relayed import shown
from app.proxy.asgi import CONNECTION, MEMORY
from app.proxy.origins import AUTHORITY, authority_of
from app.settings import LimitSettings

TARGET_BYTES = 65_536
"""What the request line may take beside the headers."""
MOST_WAITING = 16
"""Requests that wait on one connection for those before them. Hardly any client sends a second one early."""
SPARE_CONNECTIONS = 100
"""Beyond the limit, to hear so; what comes beyond them is closed without a word."""
PIECE_BYTES = 8_192
"""Fed at once, at most."""
MOST_STEPS = 400
"""What the parser may find in so many bytes, before others have their turn: a packet can hold 40,000 chunks."""
TICK_SECONDS = 0.2
"""How much longer than it may a connection stays idle at most."""
JOINED = 65_536
"""A body up to this long is written in one piece with its head: the copy costs less than a second piece."""
TELLING_SECONDS = 1.0
"""For as long such a connection stays open: a client that is still sending would not read the answer otherwise."""

_IN_NAMES = bytes(set(range(0x100)) - {*range(0x21), 0x7F, *b'()<>@,;:[]={}\\"'})
_IN_VALUES = bytes(set(range(0x100)) - {*range(0x20), 0x7F} | {0x09})
_FRAMING = frozenset(map(len, ("content-length", "transfer-encoding", "connection")))


class HeldFlow(FlowControl):
    """Reads nothing more from a client as long as what was read is held back, whoever else wants to read on."""

    held = False

    def hold(self) -> None:
        self.held = True
        if not self.read_paused:
            self._transport.pause_reading()

    def release(self) -> None:
        self.held = False
        if not self.read_paused:
            self._transport.resume_reading()

    def pause_reading(self) -> None:
        if not self.held:
            super().pause_reading()
        self.read_paused = True

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()
        self.read_paused = False


class Idle:
    """The connections without a request, the one that has had none for longest first, and how long each may stay so.

    One timer for all of them: to set one for each, and take it back, costs more than all else about a connection.
    """

    def __init__(self) -> None:
        self._until: dict[StrictProtocol, float] = {}
        """By the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._until)

    @property
    def oldest(self) -> StrictProtocol:
        return next(iter(self._until))

    def join(self, connection: StrictProtocol, seconds: float) -> None:
        """A new one, or one that begins to be: the latest."""
        self._until.pop(connection, None)
        self._until[connection] = connection.loop.time() + seconds
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK_SECONDS, self._tick, connection.loop)

    def prolong(self, connection: StrictProtocol, seconds: float) -> None:
        """One that stays in its place."""
        if connection in self._until:
            self._until[connection] = connection.loop.time() + seconds

    def leave(self, connection: StrictProtocol) -> None:
        self._until.pop(connection, None)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [each for each, until in self._until.items() if until <= now]:
            connection.transport.close()
            self.leave(connection)
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop) if self._until else None


class Cycle(RequestResponseCycle):
    """A request and its answer. Unlike uvicorn's own it checks a head as a whole, and may let it wait for the body."""

    holds_head = False
    """The head goes with what comes next, which is the whole body: one packet instead of two."""
    _held = b""
    _is_bodiless = False

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._begin(message["status"], message["headers"])
        elif not self.response_complete:
            self._go_on(message.get("body", b""), ends=not message.get("more_body", False))
        else:
            raise RuntimeError("The answer has ended already.")

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        headers = list(headers)
        if b"".join([name for name, _ in headers]).translate(None, _IN_NAMES) or b"".join(
            [value for _, value in headers]
        ).translate(None, _IN_VALUES):
            raise RuntimeError("A header holds bytes that end a line or a word.")
        self.response_started, self.waiting_for_100_continue = True, False
        self._is_bodiless = self.scope["method"] == "HEAD"
        lines, closes = [STATUS_LINE[status]], False
        for name, value in headers:
            if len(name) in _FRAMING:
                closes = self._frame(name.lower(), value) or closes
            lines.append(b"%b: %b\r\n" % (name.lower(), value))
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and not self._is_bodiless and status not in (204, 304):
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if self.holds_head and not self._is_bodiless:
            self._held = head
        else:
            self.transport.write(head)

    def _frame(self, name: bytes, value: bytes) -> bool:
        """Notes where the body ends, as a header says it. Whether the connection is to end with it."""
        if name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        return name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]

    def _go_on(self, body: bytes, *, ends: bool) -> None:
        if self._is_bodiless:
            self.expected_content_length = 0
        elif self.chunked_encoding:
            last = b"0\r\n\r\n" if ends else b""
            self._write(b"%x\r\n%b\r\n%b" % (len(body), body, last) if body else last)
        elif len(body) > self.expected_content_length:
            raise RuntimeError("The body is longer than its headers say.")
        else:
            self.expected_content_length -= len(body)
            self._write(body)
        if not ends:
            return
        if self.expected_content_length != 0:
            raise RuntimeError("The body is shorter than its headers say.")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _write(self, data: bytes) -> None:
        held, self._held = self._held, b""
        if len(data) > JOINED and held:
            self.transport.writelines([held, data])
        elif held or data:  # Some transports never come to the end of an empty piece.
            self.transport.write(held + data)


class Served:
    """A request that is being answered, or was the last to be on its connection (`asgi.Connection`)."""

    __slots__ = ("_leave", "cycle", "task")

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.task: asyncio.Task[None] | None = None
        self._leave: Callable[[], None] | None = None

    def whole_body(self) -> bytes | None:
        cycle = self.cycle
        if cycle.more_body or cycle.disconnected or cycle.waiting_for_100_continue:
            return None
        # As `receive` does: reading may be held back because of what was just taken.
        cycle.flow.resume_reading()
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    def hold_head(self) -> None:
        self.cycle.holds_head = True

    def when_left(self, leave: Callable[[], None] | None) -> None:
        self._leave = leave
        if leave is not None and self.cycle.disconnected:
            leave()

    def left(self) -> None:
        # uvicorn notifies the latest request alone, which may be one that waits behind this one.
        self.cycle.disconnected = self.cycle.disconnected or not self.cycle.response_complete
        self.cycle.message_event.set()
        if self._leave is not None:
            self._leave()


class StrictProtocol(HttpToolsProtocol):
    """Gives up a client that owes a request's headers, or takes nothing of an answer, for too long.

    No other protocol is spoken here, so a request that offers one is an ordinary request. The parser takes what follows
    its headers for that other protocol: its body would be read as further requests, whoever wrote it.
    """

    header_seconds: ClassVar[float]
    stall_seconds: ClassVar[float]
    head_bytes: ClassVar[int]
    """A request line and its headers may take so many, before anything is known of them."""
    most_connections: ClassVar[int]
    idle: ClassVar[Idle]
    _rests = False
    """Nothing came since the last answer."""
    _telling: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None
    _in_head = False
    """Between the beginning of a request and the end of its headers."""
    _in_body = False
    """Between the end of a request's headers and its own end."""
    _unfed = b""
    """What was received, and waits for its turn."""
    _steps = 0
    """What came of the bytes that were fed last: a request's beginning, its headers, pieces of its body, its end."""
    _unaccounted = 0
    """Bytes that came since then: of headers, trailers, or what may stand beside a chunk."""
    _flow: HeldFlow
    _memory: dict[str, object]
    _offers = False
    """The headers that were read last offer another protocol."""
    _served: Served | None = None
    _refusal: StenoError | None = None
    """Why nothing more is read. It is answered in its turn."""
    _closing = False
    """Nothing more is read, and nothing more is said."""

    def data_received(self, data: bytes) -> None:
        if self._rests:
            self._rests = False
            self.idle.prolong(self, self.header_seconds)
        self._unfed += data
        if not self._flow.held:
            self._feed_in_pieces()

    def _feed_in_pieces(self) -> None:
        """As long as little comes of them. What much comes of, such as tiny chunks, goes on in the next turn."""
        unfed, self._unfed = self._unfed, b""
        for start in range(0, len(unfed), PIECE_BYTES):
            if self._refusal is not None or self._closing or self.transport.is_closing():
                return
            self._feed_piece(unfed[start : start + PIECE_BYTES])
            if self._steps > MOST_STEPS:
                self._unfed = unfed[start + PIECE_BYTES :]
                self._flow.hold()
                self.loop.call_soon(self._go_on)
                return

    def _go_on(self) -> None:
        if not self.transport.is_closing():
            self._flow.release()
            self._feed_in_pieces()

    def _feed_piece(self, data: bytes) -> None:
        self._steps = 0
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        self._unaccounted = 0 if self._steps else self._unaccounted + len(data)
        if self._unaccounted > self.head_bytes:
            text = f"Headers, or what stands beside a body, take more than {self.head_bytes} bytes before they end."
            self._refuse(HeadersTooLarge(text, "headers"))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                [end_of_head] = offer.args
                head = self._head_without_offer()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn has it.
                data = head + data[end_of_head:]
            else:
                return

    def _head_without_offer(self) -> bytes:
        """The request's head as it would be without the offer; what follows is then framed as for any other request."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                kept = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade" and (kept or not value):
                lines.append(name + b": " + kept)
        return b"\r\n".join((*lines, b"", b""))

    def on_message_begin(self) -> None:
        self._in_head = True
        self._steps += 1
        self._offers = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body they are trailers: whoever can add one must not replace a header that was checked.
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))  # Space at the end belongs to the line.

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        if not self._offers:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._steps += 1
        if not self._offers:
            self._in_body = False
            super().on_message_complete()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(transport)
        self._memory = {}
        if len(self.connections) > self.most_connections and self.idle:
            oldest = self.idle.oldest
            oldest.transport.close()
            oldest.left()
        if len(self.connections) <= self.most_connections:
            self.idle.join(self, self.header_seconds)
            return
        self._closing = True
        if len(self.connections) > self.most_connections + SPARE_CONNECTIONS:
            transport.abort()
            return
        text = f"{self.most_connections} connections are open, and each has a request: the most by limits.connections."
        self.transport.write(_answer(TooManyConnections(f"{text} Try again in a second.")))
        self.transport.write_eof()
        self._telling = self.loop.call_later(TELLING_SECONDS, self.transport.abort)

    def on_headers_complete(self) -> None:
        self._steps += 1
        if self.parser.get_method() == b"CONNECT":
            raise InvalidRequest("This is no proxy: CONNECT is not served.")
        if len(self.pipeline) >= MOST_WAITING:
            raise InvalidRequest(f"More than {MOST_WAITING} requests wait on this connection. Wait for their answers.")
        self._offers = self.parser.should_upgrade()
        if self._offers:
            return
        self.idle.leave(self)
        self._in_head, self._in_body = False, True
        self._begin_cycle()

    def _begin_cycle(self) -> None:
        """In place of uvicorn's, which makes a cycle of its own."""
        version, scope = self.parser.get_http_version(), cast("dict[str, Any]", self.scope)
        target = httptools.parse_url(self.url)
        path = target.path.decode("ascii")
        scope |= {
            "method": self.parser.get_method().decode("ascii"),
            "http_version": version,
            "path": unquote(path) if "%" in path else path,
            "raw_path": target.path,
            "query_string": target.query or b"",
            AUTHORITY: authority_of(self.url),
            MEMORY: self._memory,
        }
        before: RequestResponseCycle | None = self.cycle
        cycle = self.cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_response_complete(self) -> None:
        """In place of uvicorn's, which sets a timer for each connection that waits for a request."""
        self.server_state.total_requests += 1
        if self._served is not None:  # The request and its scope would hold each other until the collector comes by.
            self._served.cycle.scope.pop(CONNECTION, None)  # type: ignore[misc] # ours, beside ASGI's
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._in_head:
            self.idle.join(self, self.header_seconds)
        else:
            self._rests = True
            self.idle.join(self, self.timeout_keep_alive)

    def send_400_response(self, msg: str) -> None:
        """Called where the parser's error is handled, which says more than uvicorn's message."""
        if isinstance(ours := getattr(sys.exception(), "__context__", None), StenoError):
            self._refuse(ours)
            return
        after = f", after the header {shown(self.headers[-1][0])!r}" if self.headers else ""
        self._refuse(InvalidRequest(f"This is no HTTP request that can be read: {sys.exception() or msg}{after}."))

    def _start_asgi_task(self, cycle: Any, app: ASGI3Application) -> None:
        """In place of uvicorn's, which keeps the task to itself."""
        self._served = cycle.scope[CONNECTION] = Served(cycle)
        self._served.task = self.loop.create_task(cycle.run_asgi(app))
        self._served.task.add_done_callback(self.tasks.discard)
        self.tasks.add(self._served.task)

    @property
    def _busy(self) -> bool:
        """Whether a request is being answered."""
        return self._served is not None and not self._served.cycle.response_complete

    def _refuse(self, error: StenoError) -> None:
        """Each request has one answer, and they come in the requests' order: so has the one that cannot be read."""
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # It was to be served after the others, and has no end now.
        elif self._in_body and self.cycle.response_started:
            self._closing = True
            self.transport.close()  # It is answered already, or a part of the answer is on its way.
            return
        elif self._in_body:
            self._say(error)  # It is being served, and waits for its body.
            return
        if self._busy:
            self._refusal = error
            self.flow.pause_reading()
        else:
            self._say(error)

    def _say(self, error: StenoError) -> None:
        self._closing = True
        self.transport.write(_answer(error))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not closed, because that would wait until the client takes what was written.
        self._stalling = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stalling)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.left()
        _cancel(self._telling)
        _cancel(self._stalling)
        super().connection_lost(exc)
        if self._served is not None:
            self._served.left()

    def left(self) -> None:
        """The connection is closed, or as good as that: it counts no more."""
        self.idle.leave(self)
        self.connections.discard(self)


def protocol_within(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """The protocol with the deadlines and bounds of these settings."""

    bounds = {
        "header_seconds": limits.receive_seconds,
        "stall_seconds": limits.write_stall_seconds,
        "head_bytes": limits.header_bytes + TARGET_BYTES,
        "most_connections": limits.connections,
        "idle": Idle(),
    }
    return type(HttpToolsProtocol.__name__, (StrictProtocol,), bounds)


def _answer(error: StenoError) -> bytes:
    headers = [*error.headers, (b"content-length", b"%d" % len(error.envelope)), (b"connection", b"close")]
    status = b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())
    return b"\r\n".join((status, *(name + b": " + value for name, value in headers), b"", error.envelope))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
