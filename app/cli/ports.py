"""Ports: the addresses that Steno listens on."""

from __future__ import annotations

import errno
import socket
import stat
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import NamedTuple

from app.settings.server import ServerSettings

SPREADS = sys.platform == "linux"
"""True if the kernel spreads connections over all sockets that listen at one address.
Where several processes share one socket, whoever is awake takes most of a crowd."""

ASK_SECONDS = 0.5
LISTENS = "0A"
"""The state of a listening socket in Linux' tables."""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened to here


UNIX = "unix:"
"""Beginning of an address that is a socket file's path."""
SOCKET_MODE = 0o660


class Taken(NamedTuple):
    """Sockets of a server."""

    callers: list[socket.socket]
    operator: list[socket.socket]
    """Sockets of `server.admin`; empty where callers and the operator come to the same."""


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def near(host: str) -> str:
    """Return the address by which this machine reaches a server that listens there, be it at all of its addresses."""
    return _ANY_ADDRESS.get(host, host)


def admin_url(named: str, taken: Iterable[socket.socket] = ()) -> str:
    """URL of the address in `server.admin`, with the port that its sockets have. Any name leads to a socket file."""
    if named.startswith(UNIX):
        return "http://localhost"
    host, port = host_and_port(named)
    return url_of(near(host), next((each.getsockname()[1] for each in taken), port))


def host_and_port(named: str) -> tuple[str, int]:
    """Host and port of `server.admin`."""
    host, _, port = named.rpartition(":")
    return host.strip("[]"), int(port)


def take_all(server: ServerSettings) -> Taken:
    """Bind the sockets of all addresses. Raises `OSError`, whose `filename` is `server.admin` if that is the one."""
    callers = take(server.host, server.port)
    try:
        return Taken(callers, [] if server.admin is None else take_named(server.admin))
    except OSError as error:
        close(callers)
        error.filename = server.admin
        raise


def take_named(named: str) -> list[socket.socket]:
    """Bind sockets at `host:port` or `unix:/path`, as `take` does."""
    return [_at_path(Path(named[len(UNIX) :]))] if named.startswith(UNIX) else take(*host_and_port(named))


def _at_path(path: Path) -> socket.socket:
    """Bind a socket file, in place of one that nobody listens to any more."""
    made = socket.socket(socket.AF_UNIX)
    try:
        with suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as asking:
            if stat.S_ISSOCK(path.stat().st_mode) and asking.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
        made.bind(str(path))
        path.chmod(SOCKET_MODE)
    except OSError:
        made.close()
        raise
    return made


def take(host: str, port: int) -> list[socket.socket]:
    """Bind a socket at each address of the host, without listening: nobody else gets the port. Raises `OSError`."""
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
    """Bind further sockets at the same addresses, for one of several processes to listen on alone; all share a socket
    file's."""
    return [
        each
        if each.family == socket.AF_UNIX
        else _bound(_sharing(socket.socket(each.family, each.type, each.proto)), each.getsockname())
        for each in taken
    ]


def share(taken: Iterable[socket.socket]) -> None:
    """Let `beside` bind there, too. Called once all are bound: another program's port would be shared as well."""
    for each in taken:
        if each.family != socket.AF_UNIX:
            _sharing(each)


def holder(host: str, port: int) -> str | None:
    """Describe who listens there, in a few words; None if that cannot be seen."""
    process = _listening_process(port)
    if _is_steno(host, port):
        return f"another Steno{f' (process {process[0]})' if process else ''}"
    return f"{process[1]} (process {process[0]})" if process else None


def _is_steno(host: str, port: int) -> bool:
    try:
        with closing(HTTPConnection(near(host), port, timeout=ASK_SECONDS)) as connection:
            connection.request("GET", "/readyz")
            return (connection.getresponse().getheader("server") or "").startswith("steno")
    except (OSError, HTTPException):
        return False


def _listening_process(port: int) -> tuple[int, str] | None:
    """Id and name of the process that listens, as Linux shows them of processes that one may look into."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = (line.split() for line in Path(table).read_text().splitlines()[1:])
            sockets |= {f"socket:[{row[9]}]" for row in rows if row[3] == LISTENS and row[1].endswith(f":{port:04X}")}
    for entry in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with suppress(OSError):
            if str(entry.readlink()) in sockets:
                return int(entry.parts[2]), (entry.parents[1] / "comm").read_text().strip()
    return None


def close(taken: Iterable[socket.socket]) -> None:
    for each in taken:
        each.close()


def remove_files(server: ServerSettings) -> None:
    """Remove the socket file that `take_all` made."""
    if server.admin is not None and server.admin.startswith(UNIX):
        Path(server.admin[len(UNIX) :]).unlink(missing_ok=True)


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
