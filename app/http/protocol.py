"""HTTP server protocol: uvicorn's protocol with additional checks and limits.

It closes a connection whose headers arrive too slowly, or whose client does not read. It limits connections, pipelined
requests, and the bytes of headers, trailers and chunk extensions. It also reads the body of a request with `Upgrade`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, ClassVar, cast
from urllib.parse import unquote

import httptools
from msgspec import Struct
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import HeadersTooLarge, InvalidRequest, StenoError, TooManyConnections
from app.http.admission import HEADER_BYTES, authority_of
from app.http.asgi import AUTHORITY, CONNECTION, HANDSHAKE, KNOWN, Cycle
from app.http.headers import Headers, shown

HEAD_BYTES = HEADER_BYTES + 65_536
"""Maximum bytes between two parser events: a request line with headers, trailers, or chunk extensions."""
MOST_WAITING = 16
"""Maximum number of pipelined requests that wait on one connection."""
SPARE_CONNECTIONS = 100
"""Number of connections above the limit that Steno answers with 503. Steno closes further ones without an answer."""
PIECE_BYTES = 8_192
"""Maximum bytes fed to the parser at once."""
MOST_STEPS = 400
"""Parser events of a piece above which other tasks run before the next piece. A packet can hold 40,000 HTTP chunks."""
TICK_SECONDS = 0.2
"""Interval of the check for idle connections. A connection closes at most this long after its deadline."""
IDLE_SECONDS = 75.0
"""Seconds after which an idle connection of a client is closed. Most balancers close their connections earlier, nginx
after 60. If Steno closed a connection first, a request sent at this moment would fail."""
TELLING_SECONDS = 1.0
"""Seconds that a refused connection stays open. A client that is still sending reads the answer late."""


END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]{0,18})[ \t]*\r\n", re.IGNORECASE)
_ZERO = ord("0")


class HeldFlow(FlowControl):
    """Flow control that can also pause reading until received bytes are parsed."""

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
    """Deadlines of the connections without a request. The longest idle connection comes first.

    All connections share one timer, because a timer for each would cost more than all other work for the connection.
    """

    def __init__(self) -> None:
        self._until: dict[StrictProtocol, float] = {}
        """Deadline of each connection, by the loop's clock."""
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


class KnownHead(Struct, frozen=True):
    """Latest request head of a connection. Most clients repeat the head in each request, with other digits in its
    content-length. Steno does not parse a repeated head again."""

    _scope: Mapping[str, Any]
    _place: int
    """Index of `content-length` in the headers. The digits of this header stand between `_before` and `_after`."""
    _before: bytes
    _gap: int
    """Length of the head up to and including the digits."""
    _after: bytes
    size: int
    _known: dict[str, Any]

    @classmethod
    def of(cls, head: bytes, scope: Mapping[str, Any]) -> KnownHead | None:
        """Build an object from a head and its scope. Return None unless the head has one plain content-length."""
        places = [place for place, (name, _) in enumerate(scope["headers"]) if name == b"content-length"]
        found = _LENGTH.search(head)
        if found is None or len(places) != 1 or scope["headers"][places[0]][1] != found[1]:
            return None
        start, end = found.span(1)
        own = {**scope, "headers": scope["headers"].copy(), "state": scope["state"].copy()}
        return cls(own, places[0], head[:start], end, head[end:], len(head), {})

    def length_in(self, data: bytes) -> bytes | None:
        """Return the digits of the content-length if the data begins with this head, else None. Heads are equal if only
        these digits differ and their number is the same, so that no head exceeds the size limit."""
        if not data.startswith(self._before) or not data.startswith(self._after, self._gap):
            return None
        digits = data[len(self._before) : self._gap]
        return digits if digits.isdigit() and digits[0] != _ZERO else None

    def scope(self, length: bytes) -> dict[str, Any]:
        headers: Headers = self._scope["headers"].copy()
        headers[self._place] = (b"content-length", length)
        # Copies, so that a request's changes do not reach other requests.
        return {**self._scope, "headers": headers, "state": self._scope["state"].copy(), KNOWN: self._known}


class StrictProtocol(HttpToolsProtocol):
    """Server protocol with the deadlines and limits that the module docstring lists.

    Steno serves a request with `Upgrade` as an ordinary request. The parser stops after the headers of such a request,
    and would parse its body as further requests. So Steno removes the `Upgrade` header and parses the head again.
    """

    receive_seconds: ClassVar[float]
    """Longest wait for a request's headers, and for a client that does not read."""
    most_connections: ClassVar[int]
    idle: ClassVar[Idle]
    _rests = False
    """True if no bytes arrived since the last answer."""
    _telling: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None
    _in_head = False
    """True between the beginning of a request and the end of its headers."""
    _in_body = False
    """True between the end of a request's headers and the end of its body."""
    _unfed = b""
    """Received bytes that are not parsed yet."""
    _steps = 0
    """Number of parser events in the latest piece: request begins, headers end, body continues, request ends."""
    _unaccounted = 0
    """Number of bytes since the latest parser event: headers, trailers or chunk extensions."""
    cycle: Cycle
    _flow: HeldFlow
    _known: KnownHead | None = None
    """Latest head, if it arrived in one piece."""
    _owed = 0
    """Missing bytes of a body whose head was recognised. Steno reads such a body without the parser."""
    _offers = False
    """True if the latest headers ask for an upgrade to another protocol."""
    _shakes_hands = False
    """True if the latest request is a GET that asks for a WebSocket."""
    _served: Cycle | None = None
    """Request that is being answered, or was answered last."""
    _refusal: StenoError | None = None
    """Error for an unreadable request, sent after earlier requests' answers. Steno reads nothing after the request."""
    _closing = False
    """True once nothing more is read or written."""

    def data_received(self, data: bytes) -> None:
        rests, self._rests = self._rests, False
        # True if these bytes begin a request: the parser has read all earlier bytes, and waits for a request.
        is_next = (rests or self.cycle is None) and not (
            self._in_head or self._in_body or self._unaccounted or self._flow.held or self.transport.is_closing()
        )
        if is_next and self._known is not None and (length := self._known.length_in(data)) is not None:
            self._begin_again(self._known, length, data)
            return
        if rests:
            self.idle.prolong(self, self.receive_seconds)
        if is_next:
            data = self._feed_head(data)
        elif self._owed:
            data = self._feed_owed(data)
        self._unfed += data
        if not self._flow.held:
            self._feed_in_pieces()

    def _begin_again(self, head: KnownHead, length: bytes, data: bytes) -> None:
        """Begin a request with a recognised head, without the parser."""
        self.idle.leave(self)
        cycle = self.cycle = Cycle(
            head.scope(length), self.transport, self.flow, self.on_response_complete, keep_alive=True
        )
        end = head.size + int(length)
        if len(data) < end:
            self._in_body, self._owed = True, end - head.size
            if begun := data[head.size :]:
                self._feed_owed(begun)
        else:
            cycle.body, cycle.more_body = data[head.size : end], False
            cycle.message_event.set()
        self._start(cycle)
        if len(data) > end:
            self._unfed = data[end:]
            self._feed_in_pieces()

    def _feed_head(self, data: bytes) -> bytes:
        """If the data begins with a complete head, parse it and keep it for recognition. Return the unparsed bytes."""
        end = data.find(END_OF_HEAD, 0, PIECE_BYTES) + len(END_OF_HEAD)
        if end < len(END_OF_HEAD):
            return data
        self._feed_piece(data[:end])
        # Exactly two events, the beginning and the end of the headers: the data is one whole head.
        if self._steps == 2 and self._in_body and self.cycle.keep_alive and not self.cycle.waiting_for_100_continue:
            self._known = KnownHead.of(data[:end], {**self.cycle.scope, CONNECTION: None})
        return data[end:]

    def _feed_owed(self, data: bytes) -> bytes:
        """Move the missing bytes of the body from the data to the request. Return the remaining bytes."""
        body = data[: self._owed]
        self._owed -= len(body)
        self.on_body(body)
        if not self._owed:
            self.on_message_complete()
        return data[len(body) :]

    def _feed_in_pieces(self) -> None:
        """Parse the received bytes in pieces. After a piece with many events, such as tiny HTTP chunks, other tasks run
        before the next piece is parsed."""
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
        if self._unaccounted > HEAD_BYTES:
            text = f"Headers, or what stands beside a body, take more than {HEAD_BYTES} bytes before they end."
            self._refuse(HeadersTooLarge(text, "headers"))

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                [end_of_head] = offer.args
                head, self._shakes_hands = self._head_without_offer(), self._asks_for_websocket()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # The same as in uvicorn.
                data = head + data[end_of_head:]
            else:
                return

    def _head_without_offer(self) -> bytes:
        """Return the request's head without its `Upgrade` header, so that the parser reads the body as usual."""
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
        # Trailers are dropped, because they must not replace a checked header.
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))  # The parser keeps trailing space.

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        if not (self._offers or self.cycle.response_complete):
            self.cycle.body += body
            if len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            self.cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._steps += 1
        if not self._offers:
            self._in_body = False
            if not self.cycle.response_complete:
                self.cycle.more_body = False
                self.cycle.message_event.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self.flow = self._flow = HeldFlow(self.transport)
        if len(self.connections) > self.most_connections and self.idle:
            oldest = self.idle.oldest
            oldest.transport.close()
            oldest.left()
        if len(self.connections) <= self.most_connections:
            self.idle.join(self, self.receive_seconds)
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
        """Begin a request. uvicorn's code would create its own cycle in place of Steno's `Cycle`."""
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
        """Start the next request, or wait for one. uvicorn's method would set a timer for each connection."""
        self.server_state.total_requests += 1
        if self._served is not None:  # Breaks the reference cycle of request and scope.
            self._served.scope.pop(CONNECTION, None)  # type: ignore[misc] # Steno's own key
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start(cast("Cycle", self.pipeline.pop()[0]))
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._in_head:
            self.idle.join(self, self.receive_seconds)
        else:
            self._rests = True
            self.idle.join(self, IDLE_SECONDS)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that the parser cannot read, with more detail than uvicorn's message."""
        if isinstance(ours := getattr(sys.exception(), "__context__", None), StenoError):
            self._refuse(ours)
            return
        after = f", after the header {shown(self.headers[-1][0])!r}" if self.headers else ""
        self._refuse(InvalidRequest(f"This is no HTTP request that can be read: {sys.exception() or msg}{after}."))

    def _start(self, cycle: Cycle) -> None:
        """Start the request's task. Unlike uvicorn's method, this keeps the task in the cycle."""
        self._served = cycle.scope[CONNECTION] = cycle  # type: ignore[literal-required] # Steno's own key
        cycle.task = self.loop.create_task(cycle.run_asgi(self.app))
        cycle.task.add_done_callback(self.tasks.discard)
        self.tasks.add(cycle.task)

    def _refuse(self, error: StenoError) -> None:
        """Answer the unreadable request with an error, after the answers to earlier requests."""
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # The unreadable request was waiting behind earlier requests.
        elif self._in_body and self.cycle.response_started:
            self._closing = True
            self.transport.close()  # An error cannot follow an answer that has begun.
            return
        elif self._in_body:
            self._say(error)  # The request is being served, and waits for its body.
            return
        if self._served is not None and not self._served.response_complete:
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
        # The timer aborts, because closing would wait until the client has read all written bytes.
        self._stalling = self.loop.call_later(self.receive_seconds, self.transport.abort)

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
    bounds = {"receive_seconds": receive_seconds, "most_connections": connections, "idle": Idle()}
    return type(HttpToolsProtocol.__name__, (StrictProtocol,), bounds)


def _answer(error: StenoError) -> bytes:
    headers = [*error.headers, (b"content-length", b"%d" % len(error.envelope)), (b"connection", b"close")]
    status = b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())
    return b"\r\n".join((status, *(name + b": " + value for name, value in headers), b"", error.envelope))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
