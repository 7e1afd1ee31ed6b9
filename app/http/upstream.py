"""HTTP client of a provider: `Upstream` builds requests and sends them over a `Pool` of reusable connections.

If a host has several addresses, Steno connects to the first that answers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from asyncio.staggered import staggered_race
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx

from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable
from app.http.connection import AT_ONCE, Connection, Timeouts, UpstreamExchange
from app.http.credentials import without_keys
from app.http.headers import for_other_providers, with_hop
from app.http.http1 import RequestHead

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_SECONDS = 5.0
"""Timeout of a connection attempt to a provider."""
LARGEST_OWN_ANSWER = 4 << 20
"""Maximum bytes of an answer to `Upstream.ask`."""
LONGEST_REFUSAL = 64 << 10
"""Maximum bytes that are read of a provider's refusal. Genuine refusals are shorter."""
MOST_IDLE = 100
"""Maximum number of idle connections. The number of connections in use has no limit."""
SURPLUS_SECONDS = 1.0
"""Seconds until an idle connection above `MOST_IDLE` is closed. Under load, Steno reuses it sooner."""
STALE_SECONDS = 1.0
"""If a reused connection closes this soon after a request began, Steno assumes that the request was not executed."""
HEAD_START = 0.25
"""Seconds until the next address is tried in parallel (RFC 8305)."""

Address = tuple[Any, ...]
"""An address as `getaddrinfo` returns it: family, type, protocol, name and socket address."""


_VERSION = re.compile(rb"/v1(?:alpha|beta\d*)?(?:/openai)?$")


class Upstream:
    """Client of a provider over HTTP/1.1. It ignores proxy settings of the environment, follows no redirects, and does
    not use HTTP/2, where a closed connection would end many streams.

    `key` returns the headers with the operator's key for a target. With `key`, Steno sends only a fixed list of the
    client's headers. `instance`: name of this Steno, sent as a hop. `withheld`: header that is never sent.
    `keeps_version` returns whether the version in a target replaces the version in the base URL.
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
        keeps_version: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._withheld = withheld
        self._base = httpx.URL(base_url)
        self._path = urlsplit(base_url).path.rstrip("/").encode()
        self._keeps_version = keeps_version
        self._instance = instance
        self._key = key
        self._timeouts = Timeouts(connect, first_byte, between_bytes)
        self._pool = Pool(self._base, self._timeouts)

    def head(self, method: bytes, target: bytes, headers: Headers) -> RequestHead:
        """Build the head of a request. `target`: the client's raw path and query; the base URL's path replaces `/v1`.
        Raises `UpstreamDisconnected` for bytes that are not valid in a head."""
        sent, at = self._with_key(with_hop(headers, self._instance), target), self._at_provider(target)
        return RequestHead(method, at, self._base.netloc, sent)

    def relay(self, head: RequestHead, content: bytes | AsyncGenerator[bytes, None]) -> Awaitable[UpstreamExchange]:
        """Send a request, and return its exchange once the answer's headers have arrived."""
        return self._pool.exchange(head, content)

    @asynccontextmanager
    async def call(
        self, target: bytes, body: bytes, headers: Headers, seconds: float, method: bytes = b"POST"
    ) -> AsyncIterator[UpstreamExchange]:
        """Make a call of Steno's own, and yield its exchange. `seconds`: timeout for the whole block.

        Raises `Upstream...` errors. A block that takes too long to read the answer raises `UpstreamTimedOut`.
        """
        try:
            async with asyncio.timeout(seconds):  # A slow stream of single bytes would not reach the other timeouts.
                answer = await self.relay(self.head(method, target, headers), body)
                try:
                    yield answer
                finally:
                    await answer.close()
        except TimeoutError as error:
            raise UpstreamTimedOut(f"The provider did not answer within {seconds:g} seconds.") from error

    async def ask(self, target: bytes, headers: Headers, seconds: float, body: bytes = b"") -> tuple[int, bytes]:
        """Send a GET, or a POST if there is a body. Return status and body. Raises `Upstream...` errors."""
        async with self.call(target, body, headers, seconds, b"POST" if body else b"GET") as answer:
            whole, is_whole = await answer.read_ahead(LARGEST_OWN_ANSWER)
            if not is_whole:
                raise UpstreamDisconnected(f"The answer is larger than {LARGEST_OWN_ANSWER} bytes.")
            return answer.status, whole

    async def close(self) -> None:
        await self._pool.close()

    def _with_key(self, headers: list[tuple[bytes, bytes]], target: bytes) -> list[tuple[bytes, bytes]]:
        lowered = ((name.lower(), value) for name, value in headers)
        kept = [(name, value) for name, value in lowered if name != self._withheld]
        return kept if self._key is None else [*for_other_providers(kept), *self._key(target)]

    def _at_provider(self, target: bytes) -> bytes:
        """Return path and query at the provider. If the target keeps its version, the base URL's path loses its
        version, and the target follows. Otherwise the base URL's path replaces a leading `/v1`; other paths stay."""
        path, question_mark, query = target.partition(b"?")
        if self._keeps_version(target):
            path = _VERSION.sub(b"", self._path) + path
        elif path == b"/v1" or path.startswith(b"/v1/"):
            path = self._path + path[len(b"/v1") :] or b"/"
        if question_mark and self._key is not None:
            query = without_keys(query)
        return path + question_mark + query


class Pool:
    """Connections to one provider, each for one exchange at a time."""

    def __init__(self, base: httpx.URL, timeouts: Timeouts) -> None:
        shown, port = host_and_port(base)
        self._address, self._shown_address = (base.raw_host.decode("ascii"), port), f"{shown}:{port}"
        self._is_secure = base.scheme == "https"
        self._timeouts = timeouts
        self._room = memoryview(bytearray(AT_ONCE))
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, head: RequestHead, content: bytes | AsyncGenerator[bytes, None]) -> UpstreamExchange:
        """Send a request, and return once the answer's headers have arrived. Raises `Upstream...` errors.

        If the connection closes before any byte of the answer, Steno repeats the request once, unless its body is
        streamed. It repeats an unsafe method only if a reused connection closed within `STALE_SECONDS`.
        """
        written, to_head = head.for_body(content), head.asks_head_alone
        replayable = isinstance(content, bytes)
        if not replayable:
            for _ in range(2):  # Lets the loop notice which idle connections the provider has closed.
                await asyncio.sleep(0)
        connection = self._idle.pop() if self._idle else await self._connected()
        began, is_old = connection.loop.time(), connection.used
        exchange = UpstreamExchange(connection, self._timeouts, to_head=to_head)
        try:
            await exchange.send(written, content)
        except UpstreamDisconnected:
            is_stale = is_old and connection.loop.time() - began < STALE_SECONDS
            if not (replayable and exchange.is_silent and (is_stale or head.is_safe)):
                raise
            exchange = UpstreamExchange(await self._connected(), self._timeouts, to_head=to_head)
            await exchange.send(written, content)
        return exchange

    async def close(self) -> None:
        """Close all connections, also those in use."""
        self._is_closed = True
        for connection in [*self._all]:
            connection.abort()
        await asyncio.sleep(0)  # Lets the loop close the connections.

    async def _connected(self) -> Connection:
        loop, seconds = asyncio.get_running_loop(), self._timeouts.connect
        connection = Connection(self._room, self._freed, self._lost)
        self._all.add(connection)
        try:
            async with asyncio.timeout(seconds):
                dialled = await dial(*self._address)
            try:
                async with asyncio.timeout(seconds):
                    context, name = (trust(), self._address[0]) if self._is_secure else (None, None)
                    await loop.create_connection(lambda: connection, sock=dialled, ssl=context, server_hostname=name)
            except BaseException:
                dialled.close()
                raise
            if self._is_closed:
                raise ConnectionAbortedError("The pool is closed.")
        except (OSError, UnicodeError) as error:  # Includes TLS errors, timeouts and invalid names.
            connection.abort()
            raise UpstreamUnreachable(self._shown_address) from error
        except BaseException:
            connection.abort()
            raise
        return connection

    def _freed(self, connection: Connection) -> None:
        self._idle.append(connection)
        if len(self._idle) > MOST_IDLE:
            connection.expire_at(connection.loop.time() + SURPLUS_SECONDS)

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


@cache
def trust() -> ssl.SSLContext:
    """Return a TLS context that ignores the environment's settings. It is cached, because creating it takes 20 ms."""
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def host_and_port(base: httpx.URL) -> tuple[str, int]:
    """Return host and port, such as ("api.example", 443) or ("[::1]", 8080)."""
    host = f"[{base.host}]" if ":" in base.host else base.host
    return host, base.port or (443 if base.scheme == "https" else 80)


async def dial(host: str, port: int) -> socket.socket:
    """Return a socket connected to the first address of the host that answers. Raises `OSError`."""
    families: dict[int, list[Address]] = {}
    for address in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM):
        families.setdefault(address[0], []).append(address)
    # Alternate the address families, beginning with the family that the system prefers.
    in_turn = [address for address in chain(*zip_longest(*families.values())) if address is not None]
    if len(in_turn) == 1:
        return await _connected(in_turn[0])
    made: socket.socket | None
    made, _, failures = await staggered_race([partial(_connected, address) for address in in_turn], HEAD_START)
    if made is None:
        raise next((error for error in failures if isinstance(error, OSError)), OSError("The host has no address."))
    return made


async def _connected(address: Address) -> socket.socket:
    family, kind, protocol, _, where = address
    connecting = socket.socket(family, kind, protocol)
    try:
        connecting.setblocking(False)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connecting, where)
    except BaseException:
        connecting.close()
        raise
    return connecting
