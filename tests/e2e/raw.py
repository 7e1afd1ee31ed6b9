"""A client made of raw sockets, and curl: for what an SDK hides."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from io import BufferedReader
from typing import Any, Literal, cast
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"
HEADERS = (b"content-type: application/json", b"authorization: Bearer sk-test")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case, repeats kept."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


def request_bytes(
    body: bytes | None = None, *headers: bytes, method: str = "POST", target: str = CHAT, usual: bool = True
) -> bytes:
    """A request; `headers` are lines. `usual`: with the content type and a key."""
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"host: steno.test"]
    lines += HEADERS if usual else ()
    lines += headers
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


@contextmanager
def connected(url: str, timeout: float = 60.0) -> Iterator[socket.socket]:
    """A connection; closed at the end, at the latest."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout) as connection:
        yield connection


def send(url: str, request: bytes, timeout: float = 60.0) -> Answer:
    """One request on a connection of its own, and its whole answer. Raises what `http.client` does for a cut one."""
    with connected(url, timeout) as connection:
        connection.sendall(request)
        return read_answer(connection, request.partition(b" ")[0].decode())


class _ToTheByte:
    """A connection of which `HTTPResponse` takes its own answer alone: its usual buffer takes the next one with it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def makefile(self, mode: Literal["rb"]) -> BufferedReader:
        return self._connection.makefile(mode, buffering=1)


def read_answer(connection: socket.socket, method: str = "POST") -> Answer:
    with HTTPResponse(cast("socket.socket", _ToTheByte(connection)), method=method) as response:
        response.begin()
        headers = tuple((name.lower(), value) for name, value in response.headers.items())
        return Answer(response.status, headers, response.read())


def post(url: str, body: bytes | dict[str, Any], *headers: bytes, target: str = CHAT, timeout: float = 60.0) -> Answer:
    """One chat request; a dictionary is written as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return send(url, request_bytes(raw, *headers, target=target), timeout)


def get(url: str, target: str, *headers: bytes, method: str = "GET") -> Answer:
    return send(url, request_bytes(None, *headers, method=method, target=target))


def flooded(connection: socket.socket, piece: bytes, most: int = 20_000_000) -> int:
    """Sends it again and again until the server closes, or has had so many bytes. How many went."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except OSError:
        pass  # It was closed.
    return sent


def rest_of(connection: socket.socket) -> bytes:
    """Everything that still comes."""
    received = b""
    while data := _received(connection):
        received += data
    return received


def body_pieces(connection: socket.socket) -> Iterator[bytes]:
    """The body of the answer as it comes, without the framing of HTTP."""
    with HTTPResponse(connection, method="POST") as response:
        response.begin()
        while data := response.read1():
            yield data


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """What comes up to the piece that completes the mark."""
    received = b""
    while mark not in received:
        data = _received(connection)
        assert data, f"{mark!r} never came: {received!r}"
        received += data
    return received


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes without sending more, within the connection's timeout."""
    return not _received(connection)


def _received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


def curl(url: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Exit code 18: the answer broke off."""
    command = ["curl", "--silent", "--no-buffer", "--max-time", "20", *options, url]
    return subprocess.run(command, check=False, capture_output=True)  # noqa: S603
