"""The pool: the connections to one provider, of which those that are idle are used again. A host may have several
addresses, some of which lead nowhere."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from functools import cache
from itertools import chain, zip_longest
from typing import Any

import httpx2 as httpx

from app.errors import UpstreamDisconnected, UpstreamUnreachable
from app.http.connection import AT_ONCE, Connection, Exchange, Timeouts
from app.http.http1 import WrittenHead

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


class Pool:
    """Connections to the provider at one address, each for one exchange at a time."""

    def __init__(self, base: httpx.URL, timeouts: Timeouts) -> None:
        self._address = base.raw_host.decode("ascii"), port_of(base)
        self._shown_address = host_and_port(base)
        self._is_secure = base.scheme == "https"
        self._timeouts = timeouts
        self._room = memoryview(bytearray(AT_ONCE))
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._is_closed = False

    async def exchange(
        self, written: WrittenHead, content: bytes | AsyncIterator[bytes], *, to_head: bool, is_safe: bool = False
    ) -> Exchange:
        """Sends a request; the answer's headers are there. Raises the upstream errors.

        One replay where an idle connection turned out closed, with 0 bytes of an answer received. A request that
        `is_safe` changes nothing at the provider: it is replayed whenever its connection is closed so.
        """
        replayable = isinstance(content, bytes)
        if not replayable:
            for _ in range(2):  # After a turn of the loop it has noticed which idle connections were closed.
                await asyncio.sleep(0)
        connection = self._idle.pop() if self._idle else await self._connected()
        began, is_old = connection.loop.time(), connection.used
        exchange = Exchange(connection, self._timeouts, to_head=to_head)
        try:
            await exchange.send(written, content)
        except UpstreamDisconnected:
            is_stale = is_old and connection.loop.time() - began < STALE_SECONDS
            if not (replayable and exchange.is_silent and (is_stale or is_safe)):
                raise
            exchange = Exchange(await self._connected(), self._timeouts, to_head=to_head)
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
                    context, name = (_trust_for_http(), self._address[0]) if self._is_secure else (None, None)
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
    return httpx.create_ssl_context(trust_env=False)


def host_and_port(base: httpx.URL) -> str:
    """`api.example:443`, `[::1]:8080`."""
    host = f"[{base.host}]" if ":" in base.host else base.host
    return f"{host}:{port_of(base)}"


def port_of(base: httpx.URL) -> int:
    return base.port or (443 if base.scheme == "https" else 80)


def _trust_for_http() -> ssl.SSLContext:
    context = trust()
    context.set_alpn_protocols(["http/1.1"])
    return context


async def dial(host: str, port: int) -> socket.socket:
    """Connect a socket to the first address that answers. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if len(found) == 1:
        return await _connected(found[0])
    return await _first_of(_alternating(found))


def _alternating(addresses: Iterable[Address]) -> list[Address]:
    """One family after the other, beginning with the one that the system prefers."""
    families: dict[int, list[Address]] = {}
    for address in addresses:
        families.setdefault(address[0], []).append(address)
    return [address for address in chain(*zip_longest(*families.values())) if address is not None]


async def _first_of(addresses: Iterable[Address]) -> socket.socket:
    waiting, running = list(addresses), set[asyncio.Task[socket.socket]]()
    failure = OSError("The host has no address.")
    try:
        while waiting or running:
            patience = None
            if waiting:
                running.add(asyncio.create_task(_connected(waiting.pop(0))))
                patience = HEAD_START if waiting else None
            done, _ = await asyncio.wait(running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for attempt in done:
                running.discard(attempt)
                if not isinstance(error := attempt.exception(), OSError):
                    return attempt.result()
                failure = error
        raise failure
    finally:
        for attempt in running:
            attempt.cancel()
            attempt.add_done_callback(_hang_up)


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


def _hang_up(attempt: asyncio.Task[socket.socket]) -> None:
    """Close the connections that came too late."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()
