"""uvicorn's HTTP protocol with what it lacks.

Two deadlines, bodies that survive an offer to upgrade, no trailers among the headers, a bound for what is read before a
request can be refused, and refusals that say what is wrong.
"""

from __future__ import annotations

import asyncio
import sys
from http import HTTPStatus
from typing import ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.headers import shown
from app.api.origins import AUTHORITY, authority_of
from app.errors import HeadersTooLarge, InvalidRequest, StenoError
from app.settings import LimitSettings

TARGET_BYTES = 65_536
"""What the request line may take beside the headers."""


class StrictProtocol(HttpToolsProtocol):
    """Gives up a client that owes a request's headers, or takes nothing of an answer, for too long.

    No other protocol is spoken here, so a request that offers one is an ordinary request. The parser takes what follows
    its headers for that other protocol: its body would be read as further requests, whoever wrote it.
    """

    header_seconds: ClassVar[float]
    stall_seconds: ClassVar[float]
    head_bytes: ClassVar[int]
    """A request line and its headers may take so many, before anything is known of them."""
    _owing: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None
    _in_head = False
    """Between the beginning of a request and the end of its headers."""
    _head = 0
    """Bytes that came since then, but for those that it began with."""
    _offers = False
    """The headers that were read last offer another protocol."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        began_before = self._in_head
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        self._head = self._head + len(data) if began_before and self._in_head else 0
        if self._head > self.head_bytes:
            told = f"The headers take more than {self.head_bytes} bytes, before they end."
            self._refuse(HeadersTooLarge(told, "headers"))

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
        self._offers = False
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # After the body they are trailers: whoever can add one must not replace a header that was checked.
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        if not self._offers:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._offers:
            super().on_message_complete()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._expect_headers()

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise InvalidRequest("this is no proxy for CONNECT")
        self._offers = self.parser.should_upgrade()
        if self._offers:
            return
        _cancel(self._owing)
        self._in_head = False
        self.scope[AUTHORITY] = authority_of(self.url)  # type: ignore[literal-required] # ours, beside ASGI's
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # Otherwise the next request is here already.
            self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser's error is handled, which tells more than uvicorn's message."""
        after = f", after the header {shown(self.headers[-1][0])!r}" if self.headers else ""
        self._refuse(InvalidRequest(f"This is no HTTP request that can be read: {sys.exception() or msg}{after}."))

    def _refuse(self, error: StenoError) -> None:
        headers = [*error.headers, (b"content-length", b"%d" % len(error.envelope)), (b"connection", b"close")]
        reason = HTTPStatus(error.status).phrase.encode()
        lines = [b"HTTP/1.1 %d %s" % (error.status, reason), *(name + b": " + value for name, value in headers)]
        self.transport.write(b"\r\n".join((*lines, b"", error.envelope)))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not closed, because that would wait until the client takes what was written.
        self._stalling = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        _cancel(self._stalling)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._owing)
        _cancel(self._stalling)
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        _cancel(self._owing)
        self._owing = self.loop.call_later(self.header_seconds, self.transport.close)


def protocol_within(limits: LimitSettings) -> type[HttpToolsProtocol]:
    """The protocol with the deadlines and bounds of these settings."""

    bounds = {
        "header_seconds": limits.receive_seconds,
        "stall_seconds": limits.write_stall_seconds,
        "head_bytes": limits.header_bytes + TARGET_BYTES,
    }
    return type(HttpToolsProtocol.__name__, (StrictProtocol,), bounds)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
