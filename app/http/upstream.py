"""The upstream: the provider behind Steno, as three calls. What carries them can change without touching the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

import httpx2 as httpx
from msgspec import Struct

from app.errors import UpstreamDisconnected, UpstreamTimedOut
from app.http.connection import Exchange, Timeouts
from app.http.credentials import without_keys
from app.http.headers import for_anybody, with_hop
from app.http.http1 import RequestHead
from app.http.pool import Pool

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_SECONDS = 5.0
"""Time to make a connection to a provider."""
LARGEST_OWN_ANSWER = 4 << 20
"""Bytes of an answer to a call of Steno's own."""
LONGEST_REFUSAL = 64 << 10
"""Bytes of a refusal that are read: more than any takes that is meant to be."""


class UpstreamAnswer(Protocol):
    """A provider's answer whose status and headers have arrived."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """Names in lower case, in the provider's order, with its repeats."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, undecoded. Raises `UpstreamDisconnected` or `UpstreamTimedOut`."""
        ...

    async def close(self) -> None:
        """Gives the answer up: the provider sees the connection close."""
        ...


class WholeAnswer(Struct, frozen=True):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


async def read_into(body: bytearray, chunks: AsyncIterator[bytes], most: int) -> bool:
    """Whether that was all: once the body is longer than so many bytes, the chunks that follow are not read.

    Raises the upstream errors; what came before them is in the body.
    """
    async for chunk in chunks:
        body += chunk
        if len(body) > most:
            return False
    return True


def arrived_whole(answering: UpstreamAnswer) -> bytes | None:
    """Body of an answer that has already come whole; None if it is still to be waited for."""
    return answering.remainder() if isinstance(answering, Exchange) else None


def arrived_part(answering: UpstreamAnswer) -> bytes:
    """Beginning of an answer's body that has already come."""
    return answering.first_part if isinstance(answering, Exchange) else b""


def is_over(answering: UpstreamAnswer) -> bool:
    """True if it is already known that nothing more of the body comes."""
    return isinstance(answering, Exchange) and answering.is_over


class Upstream:
    """The provider over HTTP/1.1: no proxies of the environment, no redirects, and no HTTP/2, where the end of one
    stream may be that of all on the connection.

    With a `key` of ours, written as headers for a target, a caller's headers go there by a list only. Every request
    says to the provider that it came through this `instance`. The header `withheld` is sent to no provider.
    """

    def __init__(
        self,
        base_url: str,
        connect: float,
        first_byte: float,
        between_bytes: float,
        instance: bytes,
        key: Callable[[bytes], Headers] | None = None,
        withheld: bytes | None = None,
    ) -> None:
        self._withheld = withheld
        self._base = httpx.URL(base_url)
        self._path = urlsplit(base_url).path.rstrip("/").encode()
        self._instance = instance
        self._key = key
        self._timeouts = Timeouts(connect, first_byte, between_bytes)
        self._pool = Pool(self._base, self._timeouts)

    def head(self, method: bytes, target: bytes, headers: Headers) -> RequestHead:
        """Head of the requests that are relayed there. `target` is the client's raw path and query; the base URL's path
        replaces `/v1`. Raises `UpstreamDisconnected` for what cannot be written."""
        sent, at = self._with_key(with_hop(headers, self._instance), target), self._at_provider(target)
        return RequestHead(method, at, self._base.netloc, sent)

    def relay(self, head: RequestHead, content: bytes | AsyncIterator[bytes]) -> Awaitable[Exchange]:
        """Send a request as it is."""
        written = head.before(content)
        return self._pool.exchange(written, content, to_head=head.asks_head_alone, is_safe=head.is_safe)

    @asynccontextmanager
    async def call(
        self, target: bytes, body: bytes, headers: Headers, seconds: float, method: bytes = b"POST"
    ) -> AsyncIterator[UpstreamAnswer]:
        """A call of our own, to be read as it arrives, within so many seconds from its start to its end.

        Raises the upstream errors, also where the block that reads it takes too long.
        """
        try:
            async with asyncio.timeout(seconds):  # In all: a drip would never trip the timeouts of each phase.
                answer = await self.relay(self.head(method, target, headers), body)
                try:
                    yield answer
                finally:
                    await answer.close()
        except TimeoutError as error:
            raise UpstreamTimedOut(f"The provider did not answer within {seconds:g} seconds.") from error

    async def ask(self, target: bytes, headers: Headers, seconds: float, body: bytes = b"") -> WholeAnswer:
        """A question of our own about the provider, within so many seconds: GET, or POST with a body."""
        whole = bytearray()
        async with self.call(target, body, headers, seconds, b"POST" if body else b"GET") as answer:
            if not await read_into(whole, answer.chunks(), LARGEST_OWN_ANSWER):
                raise UpstreamDisconnected(f"The answer is larger than {LARGEST_OWN_ANSWER} bytes.")
            return WholeAnswer(answer.status, answer.headers, bytes(whole))

    async def close(self) -> None:
        await self._pool.close()

    def _with_key(self, headers: list[tuple[bytes, bytes]], target: bytes) -> list[tuple[bytes, bytes]]:
        lowered = ((name.lower(), value) for name, value in headers)
        kept = [(name, value) for name, value in lowered if name != self._withheld]
        return kept if self._key is None else [*for_anybody(kept), *self._key(target)]

    def _at_provider(self, target: bytes) -> bytes:
        """`/v1` becomes the path of the base URL; Azure's own paths are the same there."""
        path, question_mark, query = target.partition(b"?")
        if path == b"/v1" or path.startswith(b"/v1/"):
            path = self._path + path[len(b"/v1") :] or b"/"
        if question_mark and self._key is not None:
            query = without_keys(query)
        return path + question_mark + query
