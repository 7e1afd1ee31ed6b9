"""Sockets for the addresses that Steno listens on."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from app.settings import Settings
from app.settings.server import ServerSettings

SPREADS = sys.platform == "linux"
"""True if the kernel distributes connections over all sockets that listen at one address. Each worker then gets its own
socket. With a shared socket, one process would accept most connections of a burst."""

ASK_SECONDS = 0.5
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened to here


class Taken(NamedTuple):
    callers: list[socket.socket]
    operator: list[socket.socket]
    """Sockets of `server.admin`; empty if callers and the operator use the same address."""


def url_of(listener: socket.socket, *, nearby: bool = False) -> str:
    """Return the URL of a listening server. `nearby`: use an address that this machine can reach."""
    host, port = listener.getsockname()[:2]
    host = near(host) if nearby else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def near(host: str) -> str:
    """Return the address at which this machine reaches a server at `host`, such as 127.0.0.1 for 0.0.0.0."""
    return _ANY_ADDRESS.get(host, host)


def host_and_port(named: str) -> tuple[str, int]:
    host, _, port = named.rpartition(":")
    return host.strip("[]"), int(port)


def take_all(server: ServerSettings) -> Taken:
    """Bind the sockets of all addresses. Raises `OSError`; its `filename` is `server.admin` if that address failed."""
    callers = take(server.host, server.port)
    if server.admin is None:
        return Taken(callers, [])
    try:
        return Taken(callers, take(*host_and_port(server.admin)))
    except OSError as error:
        close(callers)
        error.filename = server.admin
        raise


def take(host: str, port: int) -> list[socket.socket]:
    """Reserve the port: bind a socket at each address of the host, without listening. Raises `OSError`."""
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


def share(taken: Iterable[socket.socket]) -> None:
    """Allow `beside` to bind to the same addresses. Before binding, the option could share another program's port."""
    for each in taken:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def beside(taken: Iterable[socket.socket]) -> list[socket.socket]:
    """Bind further sockets at the same addresses, for one worker process."""
    made = [(socket.socket(each.family, each.type, each.proto), each.getsockname()) for each in taken]
    share(each for each, _ in made)
    return [_bound(*each) for each in made]


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


def is_steno(host: str, port: int) -> bool:
    try:
        with closing(HTTPConnection(near(host), port, timeout=ASK_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            return (connection.getresponse().getheader("server") or "").startswith("steno")
    except (OSError, HTTPException):
        return False


def cannot_listen(settings: Settings, error: OSError) -> str:
    why = (error.strerror or str(error)).rpartition(": ")[2].lower()
    if settings.server.admin is not None and error.filename == settings.server.admin:
        return f"Steno cannot listen on {error.filename}: {why}. Choose another address for server.admin."
    host, port = settings.server.host, settings.server.port
    at = f"Steno cannot listen on {host}:{port}: {why}"
    if error.errno != errno.EADDRINUSE:
        return f"{at}. Choose another address with --host and --port."
    by = " by another Steno" if is_steno(host, port) else ""
    other = f"`steno serve --port {port + 1}`, or `make run PORT={port + 1}`"
    return f"{at}{by}. Stop what listens there, or choose another port: {other}."
