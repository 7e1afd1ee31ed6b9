"""The upstream: the provider behind Steno, as three calls, over a pool of connections.

Connections that are idle are used again. A host may have several addresses, some of which lead nowhere.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from asyncio.staggered import staggered_race
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
from msgspec import Struct

from app.errors import UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable
from app.http.connection import AT_ONCE, Connection, Timeouts, UpstreamExchange
from app.http.credentials import without_keys
from app.http.headers import for_other_providers, with_hop
from app.http.http1 import RequestHead

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_SECONDS = 5.0
"""Time to make a connection to a provider."""
LARGEST_OWN_ANSWER = 4 << 20
"""Bytes of an answer to a call of Steno's own."""
LONGEST_REFUSAL = 64 << 10
"""Bytes of a refusal that are read: more than any takes that is meant to be."""
MOST_IDLE = 100
"""Idle connections that are kept. There may be any number that are not idle."""
SURPLUS_SECONDS = 1.0
"""Time for which further ones are kept: four hundred answers may end in one turn of the loop, and as many begin."""
STALE_SECONDS = 1.0
"""A pooled connection that was closed while idle fails at once; later the provider may have worked on the request."""
HEAD_START = 0.25
"""Seconds that an address is tried alone, as RFC 8305 has it."""

Address = tuple[Any, ...]
"""An address as `getaddrinfo` returns it: family, type, protocol, name and socket address."""


class WholeAnswer(Struct, frozen=True):
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


_VERSION = re.compile(rb"/v1(?:alpha|beta\d*)?(?:/openai)?$")


class Upstream:
    """The provider over HTTP/1.1: no proxies of the environment, no redirects, and no HTTP/2, where the end of one
    stream may be that of all on the connection.

    With a `key` of ours, written as headers for a target, a caller's headers go there by a list only. Every request
    says to the provider that it came through this `instance`. The header `withheld` is sent to no provider.
    `keeps_version`: whether the version in a target's path is not the base URL's.
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
        """Head of the requests that are relayed there. `target` is the client's raw path and query; the base URL's path
        replaces `/v1`. Raises `UpstreamDisconnected` for what cannot be written."""
        sent, at = self._with_key(with_hop(headers, self._instance), target), self._at_provider(target)
        return RequestHead(method, at, self._base.netloc, sent)

    def relay(self, head: RequestHead, content: bytes | AsyncIterator[bytes]) -> Awaitable[UpstreamExchange]:
        """Send a request as it is."""
        return self._pool.exchange(head, content)

    @asynccontextmanager
    async def call(
        self, target: bytes, body: bytes, headers: Headers, seconds: float, method: bytes = b"POST"
    ) -> AsyncIterator[UpstreamExchange]:
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
        return kept if self._key is None else [*for_other_providers(kept), *self._key(target)]

    def _at_provider(self, target: bytes) -> bytes:
        """`/v1` becomes the path of the base URL; Google's paths stand behind it, but for a version at its end; Azure's
        own paths are the same there."""
        path, question_mark, query = target.partition(b"?")
        if self._keeps_version(target):
            path = _VERSION.sub(b"", self._path) + path
        elif path == b"/v1" or path.startswith(b"/v1/"):
            path = self._path + path[len(b"/v1") :] or b"/"
        if question_mark and self._key is not None:
            query = without_keys(query)
        return path + question_mark + query


class Pool:
    """Connections to the provider at one address, each for one exchange at a time."""

    def __init__(self, base: httpx.URL, timeouts: Timeouts) -> None:
        shown, port = host_and_port(base)
        self._address, self._shown_address = (base.raw_host.decode("ascii"), port), f"{shown}:{port}"
        self._is_secure = base.scheme == "https"
        self._timeouts = timeouts
        self._room = memoryview(bytearray(AT_ONCE))
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, head: RequestHead, content: bytes | AsyncIterator[bytes]) -> UpstreamExchange:
        """Sends a request; the answer's headers are there. Raises the upstream errors.

        One replay where an idle connection turned out closed, with 0 bytes of an answer received. A request that is
        safe changes nothing at the provider: it is replayed whenever its connection is closed so.
        """
        written, to_head = head.before(content), head.asks_head_alone
        replayable = isinstance(content, bytes)
        if not replayable:
            for _ in range(2):  # After a turn of the loop it has noticed which idle connections were closed.
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
        """Close all connections, idle or not."""
        self._is_closed = True
        for connection in [*self._all]:
            connection.abort()
        await asyncio.sleep(0)  # The loop closes them in its next turn.

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
        except (OSError, UnicodeError) as error:  # Also of TLS and time; a name that is none.
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
    """TLS context that trusts the system's authorities, whatever the environment says. Made once: it takes 20 ms."""
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def host_and_port(base: httpx.URL) -> tuple[str, int]:
    """`api.example`, 443; `[::1]`, 8080."""
    host = f"[{base.host}]" if ":" in base.host else base.host
    return host, base.port or (443 if base.scheme == "https" else 80)


async def dial(host: str, port: int) -> socket.socket:
    """Connect a socket to the first address that answers. Raises `OSError`."""
    families: dict[int, list[Address]] = {}
    for address in await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM):
        families.setdefault(address[0], []).append(address)
    # One family after the other, beginning with the one that the system prefers.
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
