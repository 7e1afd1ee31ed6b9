"""The faulty network itself: each fault does what its name says, where and as often as it was told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from tests.faults.proxy import Fault, FaultProxy

ANSWER = b"x" * 1_000


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """Before a server that answers each piece it gets with a thousand bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener,), daemon=True).start()
        with FaultProxy(f"http://127.0.0.1:{listener.getsockname()[1]}/v1") as proxy:
            yield proxy
        listener.shutdown(socket.SHUT_RDWR)


def _serve(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            threading.Thread(target=_answer, args=(listener.accept()[0],), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with suppress(OSError), connection:
        while connection.recv(4_096):
            connection.sendall(ANSWER)


def connect(proxy: FaultProxy) -> closing[socket.socket]:
    return closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=2))


def exchange(connection: socket.socket, request: bytes = b"hello") -> bytes:
    """What comes back: all of the answer, or what came before the connection was closed."""
    connection.sendall(request)
    received = b""
    while len(received) < len(ANSWER) and (data := connection.recv(4_096)):
        received += data
    return received


def test_without_a_fault_everything_passes(proxy: FaultProxy) -> None:
    assert urlsplit(proxy.url) == urlsplit(f"http://127.0.0.1:{proxy.port}/v1")
    with connect(proxy) as connection:
        assert [exchange(connection) for _ in range(3)] == [ANSWER] * 3
        assert proxy.open == 1
    assert proxy.wait_for(lambda proxy: not proxy.open)


def test_refusing_breaks_what_is_connected(proxy: FaultProxy) -> None:
    """And the port stays ours while nobody listens there."""
    with connect(proxy) as connection:
        exchange(connection)
        proxy.inject("refuse")
        assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
    proxy.heal()
    with connect(proxy) as connection:
        assert exchange(connection) == ANSWER


def test_reset_is_no_clean_end(proxy: FaultProxy) -> None:
    proxy.inject("reset")
    with connect(proxy) as connection, pytest.raises(ConnectionResetError):
        exchange(connection)


def test_black_hole_is_silent_and_gives_back_what_it_held(proxy: FaultProxy) -> None:
    """Also on a connection that was in use, and a caller who leaves it is noticed."""
    with connect(proxy) as old, connect(proxy) as new:
        exchange(old)
        proxy.inject("black hole")
        for connection in (old, new):
            connection.sendall(b"hello")
            connection.settimeout(0.2)
            with pytest.raises(TimeoutError):
                connection.recv(1)
        with connect(proxy):
            assert proxy.wait_for(lambda proxy: proxy.open == 3)
        assert proxy.wait_for(lambda proxy: proxy.open == 2)
        proxy.heal()
        old.settimeout(2)
        assert old.recv(4_096) == ANSWER


def test_delay_comes_once_in_an_exchange(proxy: FaultProxy) -> None:
    proxy.inject(Fault("delay", seconds=0.3))
    with connect(proxy) as connection:
        for _ in range(2):
            began = time.monotonic()
            assert exchange(connection) == ANSWER
            assert time.monotonic() - began >= 0.3
    assert proxy.injected == {"delay": 2}


def test_drip_is_slow_and_whole(proxy: FaultProxy) -> None:
    proxy.inject(Fault("drip", way="down", seconds=0.05, size=100))
    with connect(proxy) as connection:
        began = time.monotonic()
        assert exchange(connection) == ANSWER
        assert time.monotonic() - began > 0.4


@pytest.mark.parametrize("after", [0, 1, 700])
def test_answer_is_cut_at_that_byte(proxy: FaultProxy, after: int) -> None:
    proxy.inject(Fault("cut", way="down", after=after))
    with connect(proxy) as connection:
        assert exchange(connection) == ANSWER[:after]


def test_request_is_cut_at_that_byte(proxy: FaultProxy) -> None:
    """Of the second exchange, because the first is too short."""
    proxy.inject(Fault("cut", way="up", after=5))
    with connect(proxy) as connection:
        assert exchange(connection, b"hello") == ANSWER
        assert len(exchange(connection, b"hello, world")) <= len(ANSWER)
        assert connection.recv(4_096) == b""


def test_once_and_every_third(proxy: FaultProxy) -> None:
    """Counted over all connections."""

    def outcomes(number: int) -> list[int]:
        received = []
        for _ in range(number):
            with connect(proxy) as connection:
                received.append(len(exchange(connection)))
        return received

    proxy.inject(Fault("cut", way="down"), times=1)
    assert outcomes(3) == [0, 1_000, 1_000]
    proxy.inject(Fault("cut", way="down"), every=3)
    assert outcomes(6) == [1_000, 1_000, 0, 1_000, 1_000, 0]
    assert proxy.injected == {"cut": 3}


def test_fault_waits_for_what_the_caller_says(proxy: FaultProxy) -> None:
    """In that order, on one connection."""
    proxy.inject(Fault("cut", way="down", seen=(b"INSERT", b"COMMIT")))
    with connect(proxy) as connection, connect(proxy) as other:
        assert exchange(connection, b"COMMIT") == ANSWER
        assert exchange(connection, b"INSERT") == ANSWER
        assert exchange(other, b"COMMIT") == ANSWER
        assert exchange(connection, b"SELECT") == ANSWER
        assert exchange(connection, b"COMMIT") == b""
