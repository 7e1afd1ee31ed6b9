"""Clients that leave, stall or dawdle, and what becomes of the work that was begun for them."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.e2e.commands import until
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import connected, is_closed, post, read_answer, request_bytes
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer, chunked, stream_head

FRAME = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'
LONG = long_history()


LEAVING: dict[str, tuple[bytes, tuple[Any, ...]]] = {
    "plain, before the status": (request_bytes(chat()), ("hang",)),
    "plain, in the body": (request_bytes(chat()), (answer(b"x" * 100)[:-50], "hang")),
    "stream, before the status": (request_bytes(chat(stream=True)), ("hang",)),
    "stream, in silence": (request_bytes(chat(stream=True)), (stream_head() + chunked(FRAME % b"a"), "hang")),
    "unreadable body": (request_bytes(b"{"), ("hang",)),
    "another path": (request_bytes(b"{}", target="/v1/completions"), (stream_head() + chunked(b"data: 1\n\n"), "hang")),
    "without a body": (request_bytes(None, method="GET", target="/v1/models"), ("hang",)),
}


@pytest.mark.parametrize(("request_", "steps"), LEAVING.values(), ids=LEAVING)
def test_client_that_leaves_ends_the_providers_call(
    scripted: ScriptedProvider, before_scripted: StartSteno, request_: bytes, steps: tuple[Any, ...]
) -> None:
    """Streaming or not."""
    scripted.then(*steps)
    with connected(before_scripted().url) as connection:
        connection.sendall(request_)
        assert scripted.wait_for(lambda requests: len(requests) == 1)
        time.sleep(0.1)
        assert scripted.requests[0].closed_at is None
        connection.close()
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)


# Slow clients


def slow_client(steno: Steno) -> socket.socket:
    """Takes nothing, and has little room to."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(60)
    connection.connect((steno.server.host, steno.server.port))
    return connection


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/completions"])
def test_client_that_takes_nothing_is_given_up(
    scripted: ScriptedProvider, before_scripted: StartSteno, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider is slowed down with it, then both connections are closed."""
    piece = chunked(FRAME % (b"a" * 100_000))
    scripted.then(stream_head(), *[piece] * 500)
    steno = before_scripted()
    with slow_client(steno) as connection:
        began = time.monotonic()
        monkeypatch.setattr(steno.server._server.config.http, "receive_seconds", 0.5)
        connection.sendall(request_bytes(chat(stream=True), target=target))
        assert scripted.wait_for(lambda requests: bool(requests) and requests[0].closed_at is not None)
        assert time.monotonic() - began > 0.4
        until(lambda: not steno.server._server.server_state.connections)


def test_slow_client_slows_the_provider_down_and_gets_everything(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    """Backpressure, not a queue in memory."""
    size, count = 100_000, 600  # More than the kernel's buffers on three sockets.
    frame = FRAME % (b"a" * size)
    last = b"data: [DONE]\n\n"
    scripted.then(stream_head(), *[chunked(frame)] * count, chunked(last) + b"0\r\n\r\n")
    steno = before_scripted()
    with slow_client(steno) as connection:
        connection.sendall(request_bytes(chat(stream=True)))
        before, taken = -1, 0
        while before < taken:
            time.sleep(0.3)
            before, taken = taken, scripted.sent
        assert taken < size * count
        assert read_answer(connection).body.count(b"a" * size) == count


# The provider's connection


def test_half_closed_client_is_gone(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """Who closes its sending side cannot be told from who left."""
    scripted.then("hang")
    with connected(before_scripted().url) as connection:
        connection.sendall(request_bytes(chat()))
        assert scripted.wait_for(lambda requests: len(requests) == 1)
        connection.shutdown(socket.SHUT_WR)
        assert is_closed(connection)
    assert scripted.wait_for(lambda requests: requests[0].closed_at is not None)


def test_client_that_leaves_is_known_to_have_left_though_another_request_of_it_waits(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server tells the latest request alone, which is not the one that is being answered."""
    steno, answered = before_scripted(), list[object]()
    post(steno.url, chat())  # Whatever is loaded once is loaded.

    async def answer_nobody(cycle: object) -> None:
        answered.append(cycle)

    monkeypatch.setattr(RequestResponseCycle, "send_500_response", answer_nobody)
    scripted.then("hang")
    with connected(steno.url) as connection:
        connection.sendall(2 * request_bytes(chat()))
        assert scripted.wait_for(lambda requests: len(requests) == 2)
        connection.close()
    assert scripted.wait_for(lambda requests: requests[1].closed_at is not None)
    time.sleep(0.2)
    assert not answered
    assert len(scripted.requests) == 2
