"""WebSockets: Steno speaks none, and says so at once, so that clients that try one first go on over HTTP."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.raw import connected, get, read_answer, request_bytes
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

OFFER = (
    b"connection: Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


def handshake(target: str, *headers: bytes) -> bytes:
    return request_bytes(None, *(headers or OFFER), method="GET", target=target)


@pytest.mark.parametrize("target", ["/v1/responses", "/v1/realtime?model=m", "/c/talk/v1/responses", "/v1"])
def test_a_handshake_is_refused_without_asking_the_provider_and_the_connection_remains(
    steno: StartSteno, simulator: Simulator, target: str
) -> None:
    with connected(steno().url) as connection:
        connection.sendall(handshake(target))
        refused = read_answer(connection, "GET")
        connection.sendall(request_bytes(chat(turns(1))))
        served = read_answer(connection)
    assert (refused.status, refused.json["error"]["code"]) == (426, "websocket_not_spoken")
    assert (refused.header("upgrade"), refused.header("connection")) == ("HTTP/1.1", "upgrade")
    assert refused.header("x-should-retry") == "false"
    assert served.status == 200
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


def test_other_offers_and_requests_that_cannot_be_handshakes_are_ordinary_requests(
    before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    url = before_scripted().url
    for request in (
        handshake("/v1/models", b"connection: upgrade", b"upgrade: h2c"),
        handshake("/v1/models", b"upgrade: websocket"),  # Without the other header it offers nothing.
        request_bytes(chat(turns(1)), *OFFER),
    ):
        with connected(url) as connection:
            connection.sendall(request)
            assert read_answer(connection, request.partition(b" ")[0].decode()).status == 200
    assert len(scripted.requests) == 3


def test_an_offer_to_steno_s_own_pages_is_ignored(steno: StartSteno) -> None:
    assert get(steno().url, "/livez", *OFFER).status == 200


def test_the_request_behind_a_refused_handshake_is_no_handshake(steno: StartSteno) -> None:
    with connected(steno().url) as connection:
        connection.sendall(handshake("/v1/responses") + request_bytes(None, method="GET", target="/v1/models"))
        assert [read_answer(connection, "GET").status for _ in range(2)] == [426, 200]


def test_a_real_client_is_refused(steno: StartSteno, simulator: Simulator) -> None:
    address = steno().url.replace("http:", "ws:") + "/v1/responses"
    with pytest.raises(InvalidStatus) as refused:
        connect(address, additional_headers={"authorization": "Bearer sk-test"}, proxy=None)
    assert refused.value.response.status_code == 426
    assert not simulator.log


def test_handshakes_are_logged_once(steno: StartSteno) -> None:
    url = steno().url
    with capture_logs() as logged:
        for _ in range(7):
            assert get(url, "/v1/responses", *OFFER).status == 426
    assert [(entry["event"], entry["path"]) for entry in logged] == [("websocket refused", "/v1/responses")]
