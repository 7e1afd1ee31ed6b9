"""The upstream: the provider behind Steno, as three calls. What carries them can change without touching the rest."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

import httpx2 as httpx
from msgspec import Struct

from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable
from app.http.connection import Exchange, Timeouts
from app.http.credentials import without_keys
from app.http.headers import for_anybody, with_hop
from app.http.http1 import RequestHead
from app.http.pool import STALE_SECONDS, Pool, host_and_port, trust

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_SECONDS = 5.0
"""Time to make a connection to a provider."""
LARGEST_OWN_ANSWER = 4 << 20
"""Bytes of an answer to a call of Steno's own."""
LONGEST_REFUSAL = 64 << 10
"""Bytes of a refusal that are read: more than any takes that is meant to be."""
CHUNKS_AT_ONCE = 32
"""Chunks that are passed on before others have their turn: one read can bring ten thousand of one byte each."""


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


@dataclass(slots=True)
class _HttpxAnswer:
    response: httpx.Response

    @property
    def status(self) -> int:
        return self.response.status_code

    @property
    def headers(self) -> Headers:
        return [(name.lower(), value) for name, value in self.response.headers.raw]

    async def chunks(self) -> AsyncIterator[bytes]:
        number = 0
        try:
            async for chunk in self.response.aiter_raw():
                yield chunk
                number += 1
                if number % CHUNKS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except httpx.TimeoutException as error:
            raise UpstreamTimedOut("The provider stopped sending in the middle of its answer.") from error
        except httpx.TransportError as error:
            raise UpstreamDisconnected("The provider closed the connection in the middle of its answer.") from error

    async def close(self) -> None:
        await self.response.aclose()


class Upstream:
    """The provider over HTTP/1.1: what is relayed by our own transport, calls of our own by httpx2.

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
        # No environment proxies, no redirects, no HTTP/2: one stream reset must not end the others on a connection.
        self._client = httpx.AsyncClient(
            # Without TLS nobody is to be trusted, and a context that trusts nobody is made in no time.
            verify=trust() if self._base.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30),
            trust_env=False,
            follow_redirects=False,
        )

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
    async def completion(
        self, target: bytes, body: bytes, headers: Headers, seconds: float
    ) -> AsyncIterator[UpstreamAnswer]:
        """A call of our own, to be read as it arrives, within so many seconds from its start to its end.

        Raises the upstream errors, also where the block that reads it takes too long.
        """
        try:
            async with asyncio.timeout(seconds):  # In all: a drip would never trip the client's own timeout.
                request = self._request("POST", target, headers, body, self._timeouts.first_byte)
                answer = _HttpxAnswer(await self._send(request))
                # The timeout is per read: patient until the first byte, which may take minutes, then less so.
                request.extensions["timeout"]["read"] = self._timeouts.between_bytes
                try:
                    yield answer
                finally:
                    await answer.close()
        except TimeoutError as error:
            raise UpstreamTimedOut(f"The provider did not answer within {seconds:g} seconds.") from error

    async def ask(self, target: bytes, headers: Headers, seconds: float, body: bytes = b"") -> WholeAnswer:
        """A question of our own about the provider, within so many seconds: GET, or POST with a body."""
        try:
            async with asyncio.timeout(seconds):
                return await self._whole(self._request("POST" if body else "GET", target, headers, body, seconds))
        except TimeoutError as error:
            raise UpstreamTimedOut(f"The provider did not answer within {seconds:g} seconds.") from error

    async def close(self) -> None:
        await self._pool.close()
        await self._client.aclose()

    def _request(self, method: str, target: bytes, headers: Headers, content: bytes, read: float) -> httpx.Request:
        """Built directly: the shared client would merge in headers of its own, and other callers' cookies."""
        connect = self._timeouts.connect
        timeout = {"connect": connect, "pool": connect, "read": read, "write": self._timeouts.between_bytes}
        # The raw target: httpx2 would turn /v1/../admin into /admin and quote the rest anew.
        extensions = {"target": self._at_provider(target), "timeout": timeout}
        headers = self._with_key(with_hop(headers, self._instance), target)
        return httpx.Request(method, self._base, headers=headers, content=content, extensions=extensions)

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

    async def _whole(self, request: httpx.Request) -> WholeAnswer:
        answer = _HttpxAnswer(await self._send(request))
        body = bytearray()
        try:
            if not await read_into(body, answer.chunks(), LARGEST_OWN_ANSWER):
                raise UpstreamDisconnected(f"The answer is larger than {LARGEST_OWN_ANSWER} bytes.")
        finally:
            await answer.close()
        return WholeAnswer(answer.status, answer.headers, bytes(body))

    async def _send(self, request: httpx.Request, replayable: bool = True) -> httpx.Response:
        """Sends once. One replay where a pooled connection turned out closed, with 0 bytes of an answer received."""
        pooled, began = True, monotonic()

        async def watch(event: str, _: Any) -> None:
            nonlocal pooled
            pooled = pooled and not event.startswith("connection.connect_tcp")

        request.extensions["trace"] = watch
        try:
            return await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise UpstreamUnreachable(host_and_port(self._base)) from error
        except httpx.TimeoutException as error:
            raise UpstreamTimedOut("The provider accepted the request and then sent nothing for too long.") from error
        except httpx.TransportError as error:
            if pooled and replayable and monotonic() - began < STALE_SECONDS:
                return await self._send(request, replayable=False)
            raise UpstreamDisconnected("The provider closed the connection before it answered.") from error
