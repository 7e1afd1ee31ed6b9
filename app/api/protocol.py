"""uvicorn's HTTP protocol with the two deadlines that it lacks, and refusals that say what is wrong."""

from __future__ import annotations

import asyncio
import sys
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.api.headers import shown
from app.errors import InvalidRequest
from app.settings import LimitSettings


class PunctualProtocol(HttpToolsProtocol):
    """Gives up a client that owes a request's headers, or takes nothing of an answer, for too long."""

    header_seconds: ClassVar[float]
    stall_seconds: ClassVar[float]
    _owing: asyncio.TimerHandle | None = None
    _stalling: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._expect_headers()

    def on_headers_complete(self) -> None:
        _cancel(self._owing)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # Otherwise the next request is here already.
            self._expect_headers()

    def send_400_response(self, msg: str) -> None:
        """Called where the parser's error is handled, which tells more than uvicorn's message."""
        after = f", after the header {shown(self.headers[-1][0])!r}" if self.headers else ""
        error = InvalidRequest(f"This is no HTTP request that can be read: {sys.exception() or msg}{after}.")
        headers = [*error.headers, (b"content-length", b"%d" % len(error.envelope)), (b"connection", b"close")]
        lines = [b"HTTP/1.1 400 Bad Request", *(name + b": " + value for name, value in headers)]
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
    """The protocol with the deadlines of these settings."""

    deadlines = {"header_seconds": limits.receive_seconds, "stall_seconds": limits.write_stall_seconds}
    return type(HttpToolsProtocol.__name__, (PunctualProtocol,), deadlines)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
