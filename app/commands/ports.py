"""Ports: the addresses that Steno listens on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable

SPREADS = sys.platform == "linux"
"""Whether the kernel spreads connections over all sockets that listen at one address (`benchmarks/workers.py`). Where
several processes share one socket, whoever is awake takes most of a crowd."""


def take(host: str, port: int) -> list[socket.socket]:
    """A socket at each address of the host, bound and not listening: nobody else gets the port. Raises `OSError`."""
    taken: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        ):
            taken.append(_bound(socket.socket(family, kind, protocol), address))
            port = port or taken[0].getsockname()[1]
    except OSError:
        close(taken)
        raise
    return taken


def beside(taken: Iterable[socket.socket]) -> list[socket.socket]:
    """For one of several processes: further sockets at the same addresses, which it alone listens on."""
    return [_bound(_sharing(socket.socket(each.family, each.type, each.proto)), each.getsockname()) for each in taken]


def share(taken: Iterable[socket.socket]) -> None:
    """Lets `beside` bind to them, too. Not before they are bound: another program's port would be shared as well."""
    for each in taken:
        _sharing(each)


def close(taken: Iterable[socket.socket]) -> None:
    for each in taken:
        each.close()


def _bound(made: socket.socket, address: tuple[object, ...]) -> socket.socket:
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if made.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _sharing(made: socket.socket) -> socket.socket:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return made
