"""Ports: the addresses that Steno listens on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

SPREADS = sys.platform == "linux"
"""True if the kernel spreads connections over all sockets that listen at one address (`lab/benchmarks/workers.py`).
Where several processes share one socket, whoever is awake takes most of a crowd."""

ASK_SECONDS = 0.5
LONGEST_ANSWER = 10_000
LISTENS = "0A"
"""The state of a listening socket in Linux' tables."""
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened to here


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def near(host: str) -> str:
    """Return the address by which this machine reaches a server that listens there, be it at all of its addresses."""
    return _ANY_ADDRESS.get(host, host)


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
    """Bind further sockets at the same addresses, for one of several processes to listen on alone."""
    return [_bound(_sharing(socket.socket(each.family, each.type, each.proto)), each.getsockname()) for each in taken]


def share(taken: Iterable[socket.socket]) -> None:
    """Let `beside` bind there, too. Called once all are bound: another program's port would be shared as well."""
    for each in taken:
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
            return b'"tokenizer"' in connection.getresponse().read(LONGEST_ANSWER)
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
