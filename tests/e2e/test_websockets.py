"""WebSockets: Steno speaks none, and says so at once, so that clients that try one first go on over HTTP."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import connected, get, read_answer, request_bytes
from tests.e2e.running import StartSteno

OFFER = (
    b"connection: Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


def handshake(target: str, *headers: bytes) -> bytes:
    return request_bytes(None, *(headers or OFFER), method="GET", target=target)


def test_a_handshake_is_refused_without_asking_the_provider_and_the_connection_remains(
    steno: StartSteno, simulator: Simulator
) -> None:
    with connected(steno().url) as connection:
        connection.sendall(handshake("/v1/responses"))
        refused = read_answer(connection, "GET")
        connection.sendall(request_bytes(chat(turns(1))))
        served = read_answer(connection)
    assert (refused.status, served.status) == (426, 200)
    assert len(simulator.log) == 1


@pytest.mark.parametrize(
    "offer",
    [
        (b"connection: keep-alive, Upgrade", b"upgrade: WebSocket"),
        (b"connection: upgrade", b"upgrade: h2c, websocket"),
        (b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket"),
    ],
)
def test_a_handshake_is_known_however_it_is_written(steno: StartSteno, offer: tuple[bytes, ...]) -> None:
    with connected(steno().url) as connection:
        for byte in handshake("/v1/responses", *offer):
            connection.sendall(bytes([byte]))
        assert read_answer(connection, "GET").status == 426


def test_the_request_behind_a_refused_handshake_is_no_handshake(steno: StartSteno) -> None:
    with connected(steno().url) as connection:
        connection.sendall(handshake("/v1/responses") + request_bytes(None, method="GET", target="/v1/models"))
        assert [read_answer(connection, "GET").status for _ in range(2)] == [426, 200]


def test_handshakes_are_logged_once(steno: StartSteno) -> None:
    url = steno().url
    with capture_logs() as logged:
        for _ in range(7):
            assert get(url, "/v1/responses", *OFFER).status == 426
    assert [(entry["event"], entry["path"]) for entry in logged] == [("websocket refused", "/v1/responses")]
