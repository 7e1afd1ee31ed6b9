"""A provider made of raw sockets: requests are kept to the byte, answers are written byte by byte or not at all."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Literal, Self

Step = bytes | float | threading.Event | Literal["close", "reset", "hang"]
"""Send these bytes; wait so many seconds; wait until the test sets it; close; reset (TCP RST); wait until the caller
leaves."""

_RESET = struct.pack("ii", 1, 0)  # With a linger time of 0 the kernel sends RST instead of FIN.


@dataclass(slots=True)
class Received:
    """One request as it arrived. Times are of the monotonic clock."""

    connection: int
    """Connections count from 1."""
    at: float
    head: bytes
    """The request line and the headers, without the blank line."""
    body: bytes
    closed_at: float | None = None
    """When the caller closed before the answer was complete."""

    @property
    def target(self) -> bytes:
        return self.head.split(b" ", 2)[1]

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """In the case and order in which they came."""
        lines = (line.partition(b":") for line in self.head.split(b"\r\n")[1:])
        return [(name, value.strip()) for name, _, value in lines]

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name.lower()]


def answer(body: bytes = b"{}", *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """A whole answer with a length; `headers` are lines such as `b"x-a: 1"`."""
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def stream_head(*headers: bytes) -> bytes:
    """The head of a stream that is sent in chunks."""
    return _head(b"transfer-encoding: chunked", *headers)


def open_stream_head(*headers: bytes) -> bytes:
    """The head of a stream that ends where the connection does."""
    return _head(b"connection: close", *headers)


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def _head(*headers: bytes) -> bytes:
    return b"\r\n".join((b"HTTP/1.1 200 OK", b"content-type: text/event-stream", *headers)) + b"\r\n\r\n"


class _CallerLeft(Exception):
    """The other side closed the connection."""


@dataclass(slots=True)
class _Connection:
    number: int
    socket: socket.socket
    unread: bytes = b""
    unfinished: bool = False
    """The caller left in the middle of a request."""
    sent: int = 0
    """Bytes of answers that the kernel took."""

    def read_request(self) -> Received | None:
        """The next request, None once the caller is gone."""
        try:
            while b"\r\n\r\n" not in self.unread:
                self._receive()
            head, _, self.unread = self.unread.partition(b"\r\n\r\n")
            received = Received(self.number, time.monotonic(), head, b"")
            received.body = self._read_body(received)
        except _CallerLeft:
            self.unfinished = bool(self.unread)
            return None
        received.at = time.monotonic()
        return received

    def perform(self, step: Step) -> None:
        match step:
            case bytes():
                self._send(step)
            case threading.Event():
                assert step.wait(60), "the test never set it"
            case "hang":
                self._wait(None)
            case "close" | "reset":
                if step == "reset":
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                self.socket.close()
            case _:
                self._wait(float(step))

    def _read_body(self, received: Received) -> bytes:
        if received.all(b"transfer-encoding"):
            body = b""
            while size := int(self._take_line(), 16):
                body += self._take(size + 2)[:-2]
            self._take_line()
            return body
        return self._take(sum(map(int, received.all(b"content-length"))))

    def _take_line(self) -> bytes:
        while b"\r\n" not in self.unread:
            self._receive()
        line, _, self.unread = self.unread.partition(b"\r\n")
        return line

    def _take(self, size: int) -> bytes:
        while len(self.unread) < size:
            self._receive()
        taken, self.unread = self.unread[:size], self.unread[size:]
        return taken

    def _receive(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            raise _CallerLeft
        self.unread += data

    def _send(self, data: bytes) -> None:
        try:
            while data:
                size = self.socket.send(data)
                self.sent += size
                data = data[size:]
        except OSError as error:
            raise _CallerLeft from error

    def _wait(self, seconds: float | None) -> None:
        """Waits, but not longer than the caller stays. Nobody sends a second request before the first is answered."""
        try:
            if select.select([self.socket], [], [], seconds)[0] and not self.socket.recv(1, socket.MSG_PEEK):
                raise _CallerLeft
        except (OSError, ValueError) as error:
            raise _CallerLeft from error


@dataclass(slots=True)
class ScriptedProvider:
    """Answers the requests in turn with the steps of `script`, and with `default` once it is empty."""

    default: Sequence[Step] | Callable[[Received], Sequence[Step]] = (answer(),)
    script: deque[Sequence[Step]] = field(default_factory=deque)
    _requests: list[Received] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _connections: list[_Connection] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)
    _listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=128))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def requests(self) -> list[Received]:
        with self._changed:
            return list(self._requests)

    @property
    def connections(self) -> int:
        """How many were made so far."""
        return len(self._connections)

    @property
    def unfinished(self) -> int:
        """How many requests were left in the middle by their callers."""
        return sum(connection.unfinished for connection in self._connections)

    @property
    def sent(self) -> int:
        """Bytes of answers that were taken."""
        return sum(connection.sent for connection in self._connections)

    def then(self, *steps: Step) -> Self:
        """How to answer the next request that is not provided for yet."""
        self.script.append(steps)
        return self

    def wait_for(self, condition: Callable[[list[Received]], bool], timeout: float = 30.0) -> bool:
        """Blocks until the requests satisfy the condition; False if they never did. Not in an event loop's thread."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._requests), timeout)

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        # Closing alone would not wake up who waits on it.
        for open_socket in (self._listener, *(connection.socket for connection in self._connections)):
            if open_socket.fileno() != -1:
                _shut_down(open_socket)
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            connection = _Connection(len(self._connections) + 1, accepted)
            self._connections.append(connection)
            self._run(partial(self._serve, connection))

    def _serve(self, connection: _Connection) -> None:
        with connection.socket:
            while (received := connection.read_request()) is not None:
                with self._changed:
                    self._requests.append(received)
                    steps = self.script.popleft() if self.script else self.default
                    self._changed.notify_all()
                if callable(steps):
                    steps = steps(received)
                try:
                    for step in steps:
                        connection.perform(step)
                except _CallerLeft:
                    with self._changed:
                        received.closed_at = time.monotonic()
                        self._changed.notify_all()
                    return


def _shut_down(open_socket: socket.socket) -> None:
    with suppress(OSError):  # The other side was faster.
        open_socket.shutdown(socket.SHUT_RDWR)


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
