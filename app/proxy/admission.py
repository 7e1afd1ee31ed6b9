"""Admissions: a request's head that was let in once is let in again, and not looked at anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from app.headers.relayed import Headers
from app.proxy.asgi import Signature
from app.proxy.caller import Caller
from app.proxy.record import RequestRecord

Serve = Callable[[Caller, RequestRecord, Signature, Scope, Receive, Send], Awaitable[None]]


class Admission:
    """Serves the requests with a head as the first one was: without the gate, for the same caller."""

    __slots__ = ("_caller", "_first", "_serve", "_shared")

    def __init__(self, serve: Serve, caller: Caller, first: RequestRecord, shared: Headers) -> None:
        """Serve with `shared`, the headers that let a page read the answers."""
        self._serve = serve
        self._caller = caller
        self._first = first
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = self._first.again()
        signature = Signature(record.request_id, self._shared, record.begins)
        try:
            await self._serve(self._caller, record, signature, scope, receive, send)
        finally:
            record.ends()
