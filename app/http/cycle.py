"""Cycles of the server (a request on a connection and its answer), and a cache of the connection's latest head.

A client usually sends the same head with each request of a connection, except for the digits of the body's length.
The server compares a new head with the latest one, and parses it only if they differ.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from app.http.asgi import KNOWN
from app.http.headers import FRAMING, Headers, written

JOINED = 65_536
"""Maximum bytes of a body written in one piece with its head: the copy costs less than a second write."""
CLOSES = b"connection: close\r\n"
END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]{0,18})[ \t]*\r\n", re.IGNORECASE)
_ZERO = ord("0")


class Cycle(RequestResponseCycle):
    """Request and its answer. Unlike uvicorn's cycle it checks all headers at once, creates its event only if needed,
    and has methods that read the body and write the answer without ASGI messages."""

    logger = logging.getLogger("uvicorn.error")
    disconnected = False
    waiting_for_100_continue = False
    more_body = True
    response_started = False
    response_complete = False
    chunked_encoding: bool | None = None
    expected_content_length = 0
    task: asyncio.Task[None] | None = None
    _leave: Callable[[], None] | None = None
    _event: asyncio.Event | None = None
    _is_taken = False
    """True once `whole_body` has returned the body."""
    _holds_head = False
    _held = b""
    """Head to be written together with the next piece of the body."""
    _is_bodiless = False

    def __init__(
        self,
        scope: Any,
        transport: asyncio.Transport,
        flow: FlowControl,
        on_response: Callable[[], None],
        keep_alive: bool,
    ) -> None:
        self.scope = scope
        self.transport = transport
        self.flow = flow
        self.keep_alive = keep_alive
        self.on_response = on_response
        self.body: bytes | bytearray = bytearray()  # type: ignore[assignment] # bytes if it arrived with its head

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override] # an attribute there
        """Event that is set while `receive` has a message to return."""
        if self._event is None:
            self._event = asyncio.Event()
            if not self._is_taken and (self.body or not self.more_body):
                self._event.set()
        return self._event

    def wake(self) -> None:
        if self._event is not None:
            self._event.set()

    def whole_body(self) -> bytes | None:
        """Return the body, once, if all of it has arrived."""
        if self.more_body or self.disconnected or self.waiting_for_100_continue:
            return None
        if self.flow.read_paused:  # Taking the body makes room, as in `receive`.
            self.flow.resume_reading()
        if self._event is not None:
            self._event.clear()
        body, self.body, self._is_taken = bytes(self.body), b"", True
        return body

    def when_left(self, leave: Callable[[], None] | None) -> None:
        """Set the callback for a disconnect of the client; call it at once if the client has disconnected."""
        self._leave = leave
        if leave is not None and self.disconnected:
            leave()

    def left(self) -> None:
        # uvicorn notifies only the latest request, which may be waiting behind this one.
        self.disconnected = self.disconnected or not self.response_complete
        self.wake()
        if self._leave is not None:
            self._leave()

    def hold_head(self) -> None:
        """Hold the answer's head until the next piece of the body, to send one packet instead of two."""
        self._holds_head = True

    @property
    def is_stalled(self) -> bool:
        """True if the client has not read earlier writes, so that further ones must wait."""
        return self.flow.write_paused

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, in one packet if it is short. `headers` must contain the length."""
        if self.response_started:
            raise RuntimeError("The answer has begun already.")
        if self.disconnected:
            return
        head = self._head(status, headers)
        if self._is_bodiless:
            self.transport.write(head)
        elif len(body) > JOINED:
            self.transport.writelines([head, body])
        else:
            self.transport.write(head + body)
        self._end()

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            headers = [(name.lower(), value) for name, value in message["headers"]]
            head = self._head(message["status"], headers)
            if self._holds_head and not self._is_bodiless:
                self._held = head
            else:
                self.transport.write(head)
        else:
            self.go_on(message.get("body", b""), ends=not message.get("more_body", False))

    def _head(self, status: int, headers: Headers) -> bytes:
        """Begin the answer, and return its head. Names of headers must be in lower case."""
        lines, closes = written(headers), False
        self.response_started, self.waiting_for_100_continue = True, False
        self._is_bodiless = self.scope["method"] == "HEAD"
        for name, value in headers:
            if name in FRAMING:
                closes = self._frame(name, value) or closes
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += CLOSES
        if self.chunked_encoding is None and not self._is_bodiless and status not in (204, 304):
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        return b"%b%b\r\n" % (STATUS_LINE[status], lines)

    def _frame(self, name: bytes, value: bytes) -> bool:
        """Read how the body is framed from a header. Return True if the header asks to close the connection."""
        if name == b"content-length" and self.chunked_encoding is None:
            self.expected_content_length, self.chunked_encoding = int(value), False
        elif name == b"transfer-encoding" and value.lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        return name == b"connection" and b"close" in [token.strip() for token in value.lower().split(b",")]

    def go_on(self, piece: bytes, *, ends: bool) -> None:
        """Send more of an answer that has begun."""
        if self.disconnected:
            return
        if self.response_complete or not self.response_started:
            raise RuntimeError("The answer has ended already, or has not begun.")
        if self._is_bodiless:
            self.expected_content_length, piece = 0, b""
        elif self.chunked_encoding:
            last = b"0\r\n\r\n" if ends else b""
            piece = b"%x\r\n%b\r\n%b" % (len(piece), piece, last) if piece else last
        elif len(piece) > self.expected_content_length:
            raise RuntimeError("The body is longer than its headers say.")
        else:
            self.expected_content_length -= len(piece)
        if self._held:
            piece, self._held = self._held + piece, b""
        if piece:  # Some transports never finish writing an empty piece.
            self.transport.write(piece)
        if ends:
            if self.expected_content_length != 0:
                raise RuntimeError("The body is shorter than its headers say.")
            self._end()

    def _end(self) -> None:
        self.response_complete = True
        if self._event is not None:
            self._event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class KnownHead:
    __slots__ = ("_after", "_before", "_gap", "_headers", "_known", "_place", "_scope", "size")

    def __init__(self, scope: Mapping[str, Any], place: int, before: bytes, gap: int, after: bytes) -> None:
        """Remember a head. `place`: index of `content-length` in the headers; `gap`: end of its digits in the bytes."""
        self._scope = scope
        self._headers: Headers = scope["headers"]
        self._place = place
        self._before = before
        self._gap = gap
        self._after = after
        self._known: dict[str, Any] = {}
        self.size = gap + len(after)

    @classmethod
    def of(cls, head: bytes, scope: Mapping[str, Any]) -> KnownHead | None:
        """Remember the bytes of a head, and the scope parsed from them; None without a single plain content-length."""
        places = [place for place, (name, _) in enumerate(scope["headers"]) if name == b"content-length"]
        found = _LENGTH.search(head)
        if found is None or len(places) != 1 or scope["headers"][places[0]][1] != found[1]:
            return None
        start, end = found.span(1)
        own = {**scope, "headers": scope["headers"].copy(), "state": scope["state"].copy()}
        return cls(own, places[0], head[:start], end, head[end:])

    def length_in(self, data: bytes) -> bytes | None:
        """Return the digits of the length if the data begins with this head; None otherwise. The number of digits must
        be the same, so that the size of all headers stays the same."""
        if not data.startswith(self._before) or not data.startswith(self._after, self._gap):
            return None
        digits = data[len(self._before) : self._gap]
        return digits if digits.isdigit() and digits[0] != _ZERO else None

    def scope(self, length: bytes) -> dict[str, Any]:
        headers = self._headers.copy()
        headers[self._place] = (b"content-length", length)
        # Copies, so that a request's changes do not reach other requests.
        return {**self._scope, "headers": headers, "state": self._scope["state"].copy(), KNOWN: self._known}
