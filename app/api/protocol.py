"""uvicorn's HTTP protocol with the deadlines that uvicorn does not have."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class PunctualProtocol(HttpToolsProtocol):
    """Closes a connection that owes a request's headers for too long; uvicorn would wait for ever."""

    header_seconds: ClassVar[float]
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._expect_nothing()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # Otherwise the next request is here already.
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_headers(self) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(self.header_seconds, self.transport.close)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def protocol_within(seconds: float) -> type[HttpToolsProtocol]:
    """The protocol with so much time for a request's headers."""

    class Protocol(PunctualProtocol):
        header_seconds = seconds

    return Protocol
