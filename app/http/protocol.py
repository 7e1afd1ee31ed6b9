"""HTTP protocol of uvicorn with what it lacks.

Two deadlines, bodies that survive an offer to upgrade, no trailers among the headers, a bound for connections, for
requests that wait on one, and for what is read before anything comes of it, and refusals that say what is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import Any, ClassVar, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import HeadersTooLarge, InvalidRequest, StenoError, TooManyConnections
from app.http.admission import HEADER_BYTES, authority_of
from app.http.asgi import AUTHORITY, CONNECTION, HANDSHAKE
from app.http.cycle import END_OF_HEAD, Cycle, KnownHead
from app.http.headers import shown

TARGET_BYTES = 65_536
"""Bytes that the request line may take beside the headers."""
MOST_WAITING = 16
"""Requests that wait on one connection for those before them. Hardly any client sends a second one early."""
SPARE_CONNECTIONS = 100
"""Connections beyond the limit that get a 503; further ones are closed without an answer."""
PIECE_BYTES = 8_192
"""Bytes fed at once, at most."""
MOST_STEPS = 400
"""Events of the parser in so many bytes, before others have their turn: a packet can hold 40,000 chunks."""
TICK_SECONDS = 0.2
"""Seconds that a connection stays idle at most beyond its time."""
TELLING_SECONDS = 1.0
"""Seconds that a refused connection stays open: a client that is still sending would not read the answer otherwise."""


class HeldFlow(FlowControl):
    """Flow control that reads nothing from a client while what was read is held back."""

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
    """Connections without a request, the one that has had none for longest first, and how long each may stay so.

    One timer for all of them: to set one for each, and take it back, costs more than all else about a connection.
    """

    def __init__(self) -> None:
        self._until: dict[StrictProtocol, float] = {}
        """End of each connection's time, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._until)

    @property
    def oldest(self) -> StrictProtocol:
        return next(iter(self._until))

    def join(self, connection: StrictProtocol, seconds: float) -> None:
        self._until.pop(connection, None)
        self._until[connection] = connection.loop.time() + seconds
        if self._timer is None:
            self._timer = connection.loop.call_later(TICK_SECONDS, self._tick, connection.loop)

    def prolong(self, connection: StrictProtocol, seconds: float) -> None:
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


class StrictProtocol(HttpToolsProtocol):
    """Protocol that gives up a client that owes a request's headers, or takes nothing of an answer, for too long.

    No other protocol is spoken here, so a request that offers one is an ordinary request. The parser takes what follows
    its headers for that other protocol: its body would be read as further requests.
    """

    header_seconds: ClassVar[float]
    stall_seconds: ClassVar[float]
    head_bytes: ClassVar[int]
    """Bytes that a request line and its headers may take, before anything is known of them."""
    most_connections: ClassVar[int]
    idle: ClassVar[Idle]
    _rests = False
    """True if nothing came since the last answer."""
    _telling: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None
    _in_head = False
    """True between the beginning of a request and the end of its headers."""
    _in_body = False
    """True between the end of a request's headers and its own end."""
    _unfed = b""
    """Bytes that were received, and wait for their turn."""
    _steps = 0
    """Events of the bytes that were fed last: a request's beginning, its headers, pieces of its body, its end."""
    _unaccounted = 0
    """Bytes that came since the last event: of headers, trailers, or what may stand beside a chunk."""
    cycle: Cycle
    _flow: HeldFlow
    _known: KnownHead | None = None
    """Latest head, if it came in one piece."""
    _owed = 0
    """Bytes of the body still to come that the parser does not see, because the head was recognised."""
    _offers = False
    """True if the headers that were read last offer another protocol."""
    _shakes_hands = False
    """True if the offer is a WebSocket, which only a GET can begin."""
    _served: Cycle | None = None
    """Request that is being answered, or was answered last."""
    _refusal: StenoError | None = None
    """Reason why nothing more is read. It is answered in its turn."""
    _closing = False
    """True once nothing more is read, and nothing more is said."""

    def data_received(self, data: bytes) -> None:
        rests, self._rests = self._rests, False
        # The parser waits for a request, and has seen whatever was received before.
        is_next = (rests or self.cycle is None) and not (
            self._in_head or self._in_body or self._unaccounted or self._flow.held or self.transport.is_closing()
        )
        if is_next and self._known is not None and (length := self._known.length_in(data)) is not None:
            self._begin_again(self._known, length, data)
            return
        if rests:
            self.idle.prolong(self, self.header_seconds)
        if is_next:
            data = self._feed_head(data)
        elif self._owed:
            data = self._feed_owed(data)
        self._unfed += data
        if not self._flow.held:
            self._feed_in_pieces()

    def _begin_again(self, head: KnownHead, length: bytes, data: bytes) -> None:
        """Begin the request whose head was recognised at the beginning of the data. The parser does not see it."""
        self.idle.leave(self)
        cycle = self.cycle = Cycle(
            head.scope(length), self.transport, self.flow, self.on_response_complete, keep_alive=True
        )
        end = head.size + int(length)
        if len(data) < end:
            self._in_body, self._owed = True, end - head.size
            self._feed_owed(data[head.size :])
        else:
            cycle.body, cycle.more_body = data[head.size : end], False
        self._start(cycle)
        if len(data) > end:
            self._unfed = data[end:]
            self._feed_in_pieces()

    def _feed_head(self, data: bytes) -> bytes:
        """Feed a head by itself, if it is here, to recognise it the next time. Returns the bytes behind it."""
        end = data.find(END_OF_HEAD, 0, PIECE_BYTES) + len(END_OF_HEAD)
        if end < len(END_OF_HEAD):
            return data
        self._feed_piece(data[:end])
        # It began and its headers ended, and of its body nothing came: so this is all of the head, and nothing else.
        if self._steps == 2 and self._in_body and self.cycle.keep_alive and not self.cycle.waiting_for_100_continue:
            self._known = KnownHead.of(data[:end], {**self.cycle.scope, CONNECTION: None})
        return data[end:]

    def _feed_owed(self, data: bytes) -> bytes:
        """Take the body from the data. Returns the bytes behind it."""
        body = data[: self._owed]
        self._owed -= len(body)
        self.on_body(body)
        if not self._owed:
            self.on_message_complete()
        return data[len(body) :]

    def _feed_in_pieces(self) -> None:
        """Feed pieces while little comes of them. Those that become much, such as tiny chunks, wait for the next
        turn."""
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
                head, self._shakes_hands = self._head_without_offer(), self._asks_for_websocket()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn has it.
                data = head + data[end_of_head:]
            else:
                return

    def _head_without_offer(self) -> bytes:
        """Build the request's head without the offer; what follows is then framed as for any other request."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                kept = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade" and (kept or not value):
                lines.append(name + b": " + kept)
        return b"\r\n".join((*lines, b"", b""))

    def _asks_for_websocket(self) -> bool:
        offered = b",".join(value for name, value in self.headers if name == b"upgrade").lower().split(b",")
        return self.parser.get_method() == b"GET" and b"websocket" in map(bytes.strip, offered)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._steps += 1
        self._offers = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body they are trailers, which must not replace a header that was checked.
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))  # Space at the end belongs to the line.

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        if not (self._offers or self.cycle.response_complete):
            self.cycle.body += body
            if len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            self.cycle.wake()

    def on_message_complete(self) -> None:
        self._steps += 1
        if not self._offers:
            self._in_body = False
            if not self.cycle.response_complete:
                self.cycle.more_body = False
                self.cycle.wake()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(self.transport)
        if len(self.connections) > self.most_connections and self.idle:
            oldest = self.idle.oldest
            oldest.transport.close()
            oldest.left()
        if len(self.connections) <= self.most_connections:
            self.idle.join(self, self.header_seconds)
            return
        self._closing = True
        if len(self.connections) > self.most_connections + SPARE_CONNECTIONS:
            self.transport.abort()
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
        """Begin a request, in place of uvicorn's method, which makes a cycle of its own."""
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
            HANDSHAKE: self._shakes_hands,
        }
        self._shakes_hands = False
        before: Cycle | None = self.cycle
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        cycle = self.cycle = Cycle(self.scope, self.transport, self.flow, self.on_response_complete, keep_alive)
        cycle.waiting_for_100_continue = self.expect_100_continue
        if before is None or before.response_complete:
            self._start(cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_response_complete(self) -> None:
        """Go on after an answer. uvicorn's method would set a timer for each connection that waits for a request."""
        self.server_state.total_requests += 1
        if self._served is not None:  # The request and its scope would hold each other until the collector comes by.
            self._served.scope.pop(CONNECTION, None)  # type: ignore[misc] # ours, beside ASGI's
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start(cast("Cycle", self.pipeline.pop()[0]))
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._in_head:
            self.idle.join(self, self.header_seconds)
        else:
            self._rests = True
            self.idle.join(self, self.timeout_keep_alive)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that the parser cannot read, which says more than uvicorn's message."""
        if isinstance(ours := getattr(sys.exception(), "__context__", None), StenoError):
            self._refuse(ours)
            return
        after = f", after the header {shown(self.headers[-1][0])!r}" if self.headers else ""
        self._refuse(InvalidRequest(f"This is no HTTP request that can be read: {sys.exception() or msg}{after}."))

    def _start(self, cycle: Cycle) -> None:
        """Start the request's task and keep it, in place of uvicorn's method."""
        self._served = cycle.scope[CONNECTION] = cycle  # type: ignore[literal-required] # ours, beside ASGI's
        cycle.task = self.loop.create_task(cycle.run_asgi(self.app))
        cycle.task.add_done_callback(self.tasks.discard)
        self.tasks.add(cycle.task)

    @property
    def _busy(self) -> bool:
        return self._served is not None and not self._served.response_complete

    def _refuse(self, error: StenoError) -> None:
        """Refuse a request in its turn: each has one answer, in their order, also the one that cannot be read."""
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
        """Count the connection as closed."""
        self.idle.leave(self)
        self.connections.discard(self)


def protocol_within(receive_seconds: float, connections: int) -> type[HttpToolsProtocol]:
    bounds = {
        "header_seconds": receive_seconds,
        "stall_seconds": receive_seconds,
        "head_bytes": HEADER_BYTES + TARGET_BYTES,
        "most_connections": connections,
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
