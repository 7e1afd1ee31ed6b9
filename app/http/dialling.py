"""Dialling: a TCP connection to a host that may have several addresses, some of which lead nowhere."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

HEAD_START = 0.25
"""Seconds that an address is tried alone, as RFC 8305 has it."""

Address = tuple[Any, ...]
"""An address as `getaddrinfo` returns it: family, type, protocol, name and socket address."""


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
