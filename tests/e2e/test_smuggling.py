"""What one request may not do to the next on its connection, nor to the headers that were checked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from app.simulator import Simulator
from app.simulator.server import RunningServer
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, connected, read_answer, request_bytes, send

SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nhost: steno.test\r\n\r\n"
BODY = chat(turns(1))
OFFERS = [
    (b"connection: Upgrade", b"upgrade: websocket"),
    (b"connection: upgrade", b"upgrade: foo"),
    (b"connection: keep-alive, Upgrade", b"upgrade: h2c"),
    (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAAP__"),
    (b"upgrade: foo", b"connection: UPGRADE"),
    (b"connection: upgrade", b"upgrade:"),
]


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator()


@pytest.fixture(scope="module")
def provider(simulator: Simulator) -> Iterator[RunningServer]:
    with simulator.serve() as server:
        yield server


@pytest.fixture(scope="module")
def steno(provider: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """The real process: these are matters of its own protocol."""
    folder = tmp_path_factory.mktemp("steno")
    serving = commands.serve(
        ["--upstream", f"{provider.url}/v1"],
        folder,
        STENO_SECRET=SECRET,
        DATABASE_URL="memory",
        STENO_LOG__LEVEL="info",
        STENO_UPSTREAM__DISCOVER_WINDOWS="false",
    )
    yield serving
    serving.kill()


@pytest.fixture(autouse=True)
def fresh_log(simulator: Simulator) -> None:
    simulator.clear_log()


def in_two_packets(steno: Serving, head: bytes, body: bytes) -> Answer:
    with connected(steno.url) as connection:
        connection.sendall(head)
        time.sleep(0.1)
        connection.sendall(body)
        return read_answer(connection)


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: b" ".join(offer).decode())
@pytest.mark.parametrize("target", ["/v1/chat/completions", "/v1/embeddings"])
def test_body_of_a_request_that_offers_another_protocol_is_its_body(
    steno: Serving, simulator: Simulator, offer: tuple[bytes, ...], target: str
) -> None:
    request = request_bytes(BODY, *offer, target=target)
    head, body = request[: -len(BODY)], request[-len(BODY) :]
    for answered in (send(steno.url, request), in_two_packets(steno, head, body)):
        assert answered.status == (200 if "chat" in target else 400)
    asked = [record for record in simulator.log if record.target == target]
    assert [record.body for record in asked] == [BODY, BODY]
    assert not any(name.lower() in (b"upgrade", b"http2-settings") for record in asked for name, _ in record.headers)


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: b" ".join(offer).decode())
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_request_hidden_in_the_body_is_never_run(
    steno: Serving, simulator: Simulator, offer: tuple[bytes, ...], chunked: bool
) -> None:
    if chunked:
        head = request_bytes(None, *offer, b"transfer-encoding: chunked", target="/v1/files")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    else:
        head = request_bytes(SMUGGLED, *offer, target="/v1/files")[: -len(SMUGGLED)]
        body = SMUGGLED
    in_two_packets(steno, head, body)
    send(steno.url, head + body)
    assert [record.target for record in simulator.log] == ["/v1/files", "/v1/files"]
    assert all(record.body == SMUGGLED for record in simulator.log)


def test_requests_after_an_offer_on_the_same_connection_are_answered_in_turn(steno: Serving) -> None:
    offering = request_bytes(BODY, b"connection: upgrade", b"upgrade: h2c")
    with connected(steno.url) as connection:
        connection.sendall(offering + request_bytes(BODY) + offering)
        assert [read_answer(connection).status for _ in range(3)] == [200, 200, 200]


def test_an_offer_byte_by_byte_is_an_ordinary_request(steno: Serving, simulator: Simulator) -> None:
    with connected(steno.url) as connection:
        for byte in request_bytes(BODY, b"connection: upgrade", b"upgrade: websocket"):
            connection.sendall(bytes([byte]))
        assert read_answer(connection).status == 200
    assert simulator.chats[0].body == BODY


def test_connect_is_refused(steno: Serving) -> None:
    answered = send(steno.url, b"CONNECT provider.test:443 HTTP/1.1\r\nhost: provider.test:443\r\n\r\n")
    assert answered.status == 400
    assert json.loads(answered.body)["error"]["type"] == "invalid_request_error"


def test_trailers_are_no_headers(steno: Serving, simulator: Simulator) -> None:
    """One of them could replace the key, and with it the tenant."""
    head = request_bytes(None, b"transfer-encoding: chunked", b"trailer: authorization")
    trailers = b"authorization: Bearer sk-victim\r\nx-context-compaction: off\r\n"
    body = b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(BODY), BODY, trailers)
    for answered in (send(steno.url, head + body), in_two_packets(steno, head, body)):
        assert answered.status == 200
    for record in simulator.chats:
        assert [value for name, value in record.headers if name.lower() == b"authorization"] == [b"Bearer sk-test"]


@pytest.mark.parametrize("line", [b"x-large: ", b""], ids=["one header", "many headers"])
def test_headers_without_an_end_are_refused_before_they_are_all_here(steno: Serving, line: bytes) -> None:
    flood = b"a" * 65_536 if line else b"".join(b"x-%d: a\r\n" % number for number in range(6_000))
    sent = 0
    with connected(steno.url) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: steno.test\r\n" + line)
        try:
            while sent < 20_000_000:
                connection.sendall(flood)
                sent += len(flood)
        except OSError:
            pass  # It was closed.
        else:
            pytest.fail("20 MB of headers were taken")
    assert sent < 10_000_000
    assert send(steno.url, request_bytes(BODY)).status == 200


def test_a_large_body_counts_as_no_header(steno: Serving) -> None:
    body = chat([{"role": "user", "content": "word " * 100_000}])
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(body) + request_bytes(BODY)[:40])
        time.sleep(0.1)
        connection.sendall(request_bytes(BODY)[40:])
        assert read_answer(connection).status in (200, 400)  # The provider may find it too large.
        assert read_answer(connection).status == 200
