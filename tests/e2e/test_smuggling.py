"""What one request may not do to the next on its connection, nor to the headers that were checked."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Self

import pytest

from app.runtime.server import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, connected, flooded, read_answer, request_bytes, send
from tests.e2e.scripted import closed_port
from tests.sampling import drawn, plays_all

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
        STENO_LIMITS__RECEIVE_SECONDS="3",
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
    with connected(steno.url) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: steno.test\r\n" + line)
        assert flooded(connection, flood) < 10_000_000
    assert send(steno.url, request_bytes(BODY)).status == 200


def test_a_large_body_counts_as_no_header(steno: Serving) -> None:
    body = chat([{"role": "user", "content": "word " * 100_000}])
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(body) + request_bytes(BODY)[:40])
        time.sleep(0.1)
        connection.sendall(request_bytes(BODY)[40:])
        assert read_answer(connection).status in (200, 400)  # The provider may find it too large.
        assert read_answer(connection).status == 200


# Whatever is tried, alone and behind proxies


@dataclass(frozen=True, slots=True)
class Case:
    """Bytes on one connection, in packets."""

    packets: tuple[bytes, ...]
    requests: int = 1
    """How many they are, at most."""
    leaves: bool = False
    """The client closes at once."""


HIDDEN = b"GET /v1/smuggled HTTP/1.1\r\nhost: steno.test\r\nauthorization: Bearer sk-test\r\n\r\n"
NEXT = HIDDEN.replace(b"smuggled", b"next")
"""For cases that some take for whole requests: then it is the next one in truth."""
CHUNKED = b"transfer-encoding: chunked"
LAST = b"0\r\n\r\n"


def head(*lines: bytes, start: bytes = b"POST /v1/files HTTP/1.1", end: bytes = b"\r\n") -> bytes:
    return end.join((start, b"host: steno.test", b"authorization: Bearer sk-test", *lines)) + end * 2


def sized(*lines: bytes, body: bytes = HIDDEN, start: bytes = b"POST /v1/files HTTP/1.1") -> bytes:
    """A request with the right length beside these lines."""
    return head(*lines, b"content-length: %d" % len(body), start=start) + body


def measured(length: bytes, body: bytes = HIDDEN) -> bytes:
    """A request whose length is written like this."""
    return head(b"content-length:" + length.replace(b"N", b"%d" % len(body))) + body


def in_chunks(*pieces: bytes, lines: tuple[bytes, ...] = ()) -> bytes:
    return head(CHUNKED, *lines) + b"".join(pieces)


def chunk(data: bytes = HIDDEN, size: bytes = b"", after: bytes = b"\r\n") -> bytes:
    return (size or b"%x" % len(data)) + b"\r\n" + data + after


def cases() -> Iterator[tuple[str, Case]]:
    # A length and chunks
    ends_early = LAST + HIDDEN
    yield "length and chunks", Case((sized(CHUNKED, body=ends_early),))
    yield "chunks and length", Case((head(b"content-length: %d" % len(ends_early), CHUNKED) + ends_early,))
    yield "short length and chunks", Case((head(b"content-length: 4", CHUNKED) + chunk() + LAST,))
    yield "no length and chunks", Case((head(b"content-length: 0", CHUNKED) + chunk() + LAST,))
    yield "length in a trailer", Case((in_chunks(chunk(b"a"), b"0\r\ncontent-length: 5\r\n\r\n"),))
    # Transfer-Encoding in disguise, beside the right length
    disguises: dict[str, bytes] = {
        "space before the colon": b"transfer-encoding : chunked",
        "tab before the colon": b"transfer-encoding\t: chunked",
        "unknown": b"transfer-encoding: xchunked",
        "tab": b"transfer-encoding:\tchunked",
        "chunked, identity": b"transfer-encoding: chunked, identity",
        "identity, chunked": b"transfer-encoding: identity, chunked",
        "gzip, chunked": b"transfer-encoding: gzip, chunked",
        "chunked twice": b"transfer-encoding: chunked, chunked",
        "two lines": CHUNKED + b"\r\n" + CHUNKED,
        "identity after it": CHUNKED + b"\r\ntransfer-encoding: identity",
        "quoted": b'transfer-encoding: "chunked"',
        "with a parameter": b"transfer-encoding: chunked;q=1",
        "folded name": b"x-a: b\r\n transfer-encoding: chunked",
        "folded value": b"transfer-encoding:\r\n chunked",
        "after a bare line feed": b"x-a: b\ntransfer-encoding: chunked",
        "after a bare carriage return": b"x-a: b\rtransfer-encoding: chunked",
        "underscore": b"transfer_encoding: chunked",
        "vertical tab": b"transfer-encoding: \x0bchunked",
        "null after it": b"transfer-encoding: chunked\0",
        "null before it": b"\0transfer-encoding: chunked",
        "capitals": b"TrAnSfEr-EnCoDiNg: ChUnKeD",
        "long s": "transfer-encoding: chunked\u017f".encode(),
        "empty": b"transfer-encoding:",
        "comma": b"transfer-encoding: ,chunked",
        "TE": b"te: chunked",
        "content-encoding": b"content-encoding: chunked",
    }
    for name, line in disguises.items():
        yield f"length and transfer-encoding: {name}", Case((sized(line, body=ends_early),))
    for name in ("unknown", "quoted", "vertical tab", "chunked, identity", "empty", "folded value", "with a parameter"):
        yield f"only transfer-encoding: {name}", Case((head(disguises[name]) + chunk() + LAST,))
    # Lengths
    for name, length in {
        "plus": b" +N",
        "minus": b" -N",
        "hexadecimal": b" 0xN",
        "octal": b" 0N",
        "exponent": b" Ne0",
        "fraction": b" N.0",
        "comma": b" N,",
        "two in a line": b" N, N",
        "two different in a line": b" 0, N",
        "space inside": b" 1 N",
        "tab": b"\tN",
        "space after": b" N  ",
        "null": b" N\0",
        "semicolon": b" N;",
        "larger than 64 bits": b" 18446744073709551616N",
        "64 bits and the right one": b" 1844674407370955170N",
        "twice": b" N\r\ncontent-length: N",
        "two lines": b" 0\r\ncontent-length: N",
        "two lines, the other order": b" N\r\ncontent-length: 0",
        "empty": b"",
        "empty and another": b"\r\ncontent-length: N",
        "folded": b"\r\n N",
    }.items():
        yield f"length: {name}", Case((measured(length),))
    yield "length: space before the colon", Case((head(b"content-length : %d" % len(HIDDEN)) + HIDDEN,))
    yield "length: underscore beside a length", Case((sized(b"content_length: 0"),))
    # Chunks
    odd_sizes = {
        "overflow": b"10000000000000005",
        "all bits": b"FFFFFFFFFFFFFFFF",
        "minus": b"-5",
        "plus": b"+5",
        "prefix": b"0x5",
        "space before": b" 5",
        "space after": b"5 ",
        "letter": b"g",
        "none": b"\r\n",
        "null": b"5\0",
        "semicolon first": b";5",
        "point": b"5.0",
    }
    for name, size in odd_sizes.items():
        yield f"chunk size: {name}", Case((in_chunks(chunk(b"hello", size), LAST),))
    yield "chunk: extension", Case((in_chunks(chunk(HIDDEN, b'%x;a=b;c="d"' % len(HIDDEN)), LAST),))
    yield "chunk: extension with a line feed", Case((in_chunks(b"5;a\n" + HIDDEN + b"\r\nhello\r\n", LAST),))
    yield "chunk: extension with a quoted line end", Case((in_chunks(b'5;a="\r\n' + HIDDEN + b'"\r\nhello\r\n', LAST),))
    yield "chunk: extension with a null", Case((in_chunks(b"5;\0\r\nhello\r\n", LAST),))
    yield "chunk: bare line feeds", Case((in_chunks(b"5\nhello\n0\n\n", NEXT),), requests=2)
    yield "chunk: bare carriage returns", Case((in_chunks(b"5\rhello\r0\r\r", NEXT),), requests=2)
    yield "chunk: no line end after the data", Case((in_chunks(chunk(b"hello", after=b""), LAST, NEXT),), requests=2)
    yield "chunk: more data than its size", Case((in_chunks(chunk(b"hello" + HIDDEN, b"5"), LAST),))
    yield "chunk: less data than its size", Case((in_chunks(chunk(HIDDEN, b"%x" % (len(HIDDEN) + 2)), LAST),))
    yield "chunk: two carriage returns", Case((in_chunks(b"5\r\r\nhello\r\n", LAST, NEXT),), requests=2)
    yield "chunk: a trailer without an end", Case((in_chunks(chunk(b"hello"), b"0\r\nx: y", HIDDEN),))
    yield "chunk: a request for a trailer", Case((in_chunks(chunk(b"hello"), b"0\r\n", HIDDEN),))
    for name, trailer in {"host": b"host: other", "chunks": CHUNKED, "key": b"authorization: Bearer x"}.items():
        yield f"trailer: {name}", Case((in_chunks(chunk(), b"0\r\n" + trailer + b"\r\n\r\n"),))
    # Headers
    for name, line in {
        "folded": b"x-a: b\r\n c",
        "carriage return": b"x-a: b\rc: d",
        "carriage return before the end": b"x-a: b\r",
        "line feed": b"x-a: b\n",
        "null in the name": b"x\0a: b",
        "null in the value": b"x-a: b\0c",
        "control byte in the name": b"x\x01a: b",
        "control byte in the value": b"x-a: b\x01c",
        "delete": b"x-a: b\x7fc",
        "space in the name": b"x a: b",
        "space before the colon": b"x-a : b",
        "no colon": b"x-a",
        "no name": b": b",
        "a second request line": b"GET /v1/smuggled HTTP/1.1",
        "eight bits": b"x-a: \xe9\xff",
        "eight bits in the name": b"x-\xe9: b",
        "parenthesis in the name": b"x(a): b",
    }.items():
        # Where a line ends with its line feed, an empty one follows, and the rest is another request.
        yield f"header: {name}", Case((sized(line),), requests=2 if name == "line feed" else 1)
    yield "headers end with bare line feeds", Case((head(end=b"\n"),))
    yield "headers begin with a space", Case((head(start=b"POST /v1/files HTTP/1.1\r\n x: y"),))
    yield "empty lines first", Case((b"\r\n\r\n" + sized(),))
    # Request lines
    for name, start in {
        "absolute": b"POST http://other.test/v1/files HTTP/1.1",
        "absolute with a key": b"POST http://a:b@other.test/v1/files HTTP/1.1",
        "authority": b"POST other.test:80 HTTP/1.1",
        "asterisk": b"OPTIONS * HTTP/1.1",
        "fragment": b"POST /v1/files#x HTTP/1.1",
        "space": b"POST /v1/files x HTTP/1.1",
        "version twice": b"POST /v1/files HTTP/1.1 HTTP/1.1",
        "two spaces": b"POST  /v1/files HTTP/1.1",
        "tab": b"POST\t/v1/files HTTP/1.1",
        "tab inside": b"POST /v1/files\tx HTTP/1.1",
        "null": b"POST /v1/files\0 HTTP/1.1",
        "carriage return": b"POST /v1/files\rx HTTP/1.1",
        "eight bits": b"POST /v1/files\xff HTTP/1.1",
        "line end, encoded": b"POST /v1/files%0d%0aGET%20/v1/x%20HTTP/1.1 HTTP/1.1",
        "lower case": b"post /v1/files HTTP/1.1",
        "unknown method": b"SMUGGLE /v1/files HTTP/1.1",
        "no method": b"/v1/files HTTP/1.1",
        "CONNECT": b"CONNECT other.test:443 HTTP/1.1",
        "no version": b"POST /v1/files",
        "HTTP/0.9": b"POST /v1/files HTTP/0.9",
        "HTTP/1.0": b"POST /v1/files HTTP/1.0",
        "HTTP/1.2": b"POST /v1/files HTTP/1.2",
        "HTTP/2.0": b"POST /v1/files HTTP/2.0",
        "HTTP/01.1": b"POST /v1/files HTTP/01.1",
        "lower case version": b"POST /v1/files http/1.1",
        "more after the version": b"POST /v1/files HTTP/1.1x",
    }.items():
        yield f"request line: {name}", Case((sized(start=start),))
    yield "HTTP/1.0 in chunks", Case((head(CHUNKED, start=b"POST /v1/files HTTP/1.0") + chunk() + LAST,))
    yield "HTTP/0.9 without headers", Case((b"GET /v1/files\r\n",))
    yield "HTTP/2 preface", Case((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + HIDDEN,))
    yield "TLS", Case((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50 + HIDDEN,))
    # Methods that usually have no body
    for method in (b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"PUT", b"PATCH"):
        yield f"{method.decode()} with a length", Case((sized(start=method + b" /v1/files HTTP/1.1"),))
        start = method + b" /v1/files HTTP/1.1"
        yield f"{method.decode()} in chunks", Case((head(CHUNKED, start=start) + chunk() + LAST,))
    # Expectations
    expecting = sized(b"expect: 100-continue")
    yield "expects to go on", Case((expecting,))
    yield "expects to go on and waits", Case((expecting[: -len(HIDDEN)], HIDDEN))
    yield "expects something else", Case((sized(b"expect: 200-ok"),))
    yield "expects in chunks", Case((in_chunks(chunk(), LAST, lines=(b"expect: 100-continue",)),))
    # Offers
    for offer in OFFERS:
        name = b", ".join(offer).decode()
        yield f"offer: {name}", Case((head(*offer, b"content-length: %d" % len(HIDDEN)), HIDDEN))
        yield f"offer in chunks: {name}", Case((head(*offer, CHUNKED), chunk() + LAST))
    # Packets, and clients that leave
    yield "two in one packet", Case((sized() + sized(),), requests=2)
    yield "two, cut anywhere", Case(((sized() + sized())[:77], (sized() + sized())[77:]), requests=2)
    yield "the second is garbage", Case((sized() + b"GARBAGE\r\n\r\n" + HIDDEN,), requests=2)
    yield "leaves within the body", Case((sized()[:-10],), leaves=True)
    yield "leaves within a chunk", Case((in_chunks(chunk()[:-10]),), leaves=True)
    yield "leaves after the request", Case((sized(),), leaves=True)


CASES = dict(cases())
BEHIND_A_FRONT = 0.2
"""Of the cases; Steno alone is sent all of them."""
FRONTS = ("alone", "nginx", "nginx for websockets", "haproxy")
NGINX = """
daemon off; worker_processes 1; pid nginx.pid; error_log error.log; master_process off;
events {{ worker_connections 512; }}
http {{
  access_log off; client_body_timeout 2s; client_header_timeout 2s;
  client_body_temp_path body; proxy_temp_path proxy;
  fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  upstream steno {{ server {address}; keepalive 8; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://steno; proxy_http_version 1.1; {headers} }}
  }}
}}
"""
PLAIN_HEADERS = 'proxy_set_header Connection "";'
WEBSOCKET_HEADERS = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;"
HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 20s
  timeout http-request 2s
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  http-reuse always
  server steno {address}
"""


@contextmanager
def front(name: str, steno_url: str, folder: Path) -> Iterator[str]:
    """What stands before Steno: its address."""
    if name == "alone":
        yield steno_url
        return
    folder.mkdir()
    command = name.partition(" ")[0]
    address, port = steno_url.removeprefix("http://"), closed_port()
    headers = WEBSOCKET_HEADERS if "websockets" in name else PLAIN_HEADERS
    text = (NGINX if command == "nginx" else HAPROXY).format(address=address, port=port, headers=headers)
    file = folder / "config"
    file.write_text(text)
    options = ["-p", str(folder), "-c", str(file)] if command == "nginx" else ["-db", "-f", str(file)]
    with subprocess.Popen([command, *options], stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            commands.until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, f"{command} ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    answers: list[int]
    """Statuses."""
    text: bytes
    probed: bool
    """A request after it, on the same connection, was answered."""


PROBE = b"GET /livez HTTP/1.1\r\nhost: steno.test\r\n\r\n"


def play(url: str, case: Case) -> Outcome:
    received = b""
    with connected(url, 8.0) as connection, suppress(OSError):
        for number, packet in enumerate(case.packets):
            time.sleep(0.05 if number else 0)
            connection.sendall(packet)
        if case.leaves:
            return Outcome([], b"", probed=False)
        connection.sendall(PROBE)
        is_head = case.packets[0].startswith(b"HEAD")
        while len(statuses(received, is_head)) <= case.requests and (data := connection.recv(1 << 16)):
            received += data
        connection.settimeout(0.05)
        while data := connection.recv(1 << 16):  # More than there may be.
            received += data
    found = statuses(received, is_head)
    probed = received.endswith(b'{"status":"ok"}')
    return Outcome(found[: len(found) - probed], received, probed)


def statuses(data: bytes, is_head: bool) -> list[int]:
    """Of the whole answers in what came. `is_head`: the first one has no body."""
    found: list[int] = []
    while data.startswith(b"HTTP/1."):
        start, _, rest = data.partition(b"\r\n\r\n")
        status, lowered = int(start.split()[1]), start.lower()
        if status >= 200:
            found.append(status)
        if status < 200 or status == 204 or (is_head and len(found) == 1):
            data = rest
        elif length := re.search(rb"\r\ncontent-length: *([0-9]+)", lowered):
            data = rest[int(length[1]) :]
        elif b"\r\ntransfer-encoding: chunked" in lowered:
            data = rest.partition(b"0\r\n\r\n")[2]
        else:
            break
    return found


class Victim:
    """Somebody else, on the same front: each answer has to be the one to the request before it."""

    def __init__(self, url: str, name: str) -> None:
        self.wrong: list[str] = []
        self.asked = 0
        self._url, self._name = url, name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.is_set() or self.asked < 20:
            place = f"victim-{self._name.replace(' ', '-')}-{self.asked}"
            try:
                answered = send(self._url, request_bytes(BODY, b"x-conversation-id: " + place.encode()))
                told = (answered.status, answered.header("x-context-conversation-id"))
            except (OSError, HTTPException) as error:
                told = (0, repr(error))
            if told != (200, place):
                self.wrong.append(f"{place}: {told}")
            self.asked += 1
            time.sleep(0.02)


@pytest.mark.parametrize("name", FRONTS)
def test_every_request_has_one_answer_of_its_own(
    steno: Serving, simulator: Simulator, request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    """All cases side by side where Steno is alone; behind a front a fifth of them, unless all tests are played."""
    if name != "alone" and shutil.which(name.partition(" ")[0]) is None:
        pytest.skip(f"{name} is not installed")
    config = request.config
    whole = name == "alone" or plays_all(config)
    played = {case: CASES[case] for case in CASES if whole or drawn(config, f"{name} {case}") < BEHIND_A_FRONT}
    with front(name, steno.url, tmp_path / "front") as url, Victim(url, name) as victim, ThreadPoolExecutor(48) as pool:
        outcomes = dict(zip(played, pool.map(lambda case: play(url, case), played.values()), strict=True))
    assert {case: wrong for case in played if (wrong := wrong_with(outcomes[case], played[case]))} == {}
    targets = [record.target for record in simulator.log]
    assert len(targets) > len(played) / 4  # What can be read is passed on.
    assert [target for target in targets if "smuggled" in target] == []
    assert victim.wrong == []


def wrong_with(outcome: Outcome, case: Case) -> str:
    """Empty where nothing is."""
    if len(outcome.answers) > case.requests or {500, 502, 503, 504} & set(outcome.answers):
        return f"answered {outcome.answers}: {outcome.text!r}"
    if b"victim" in outcome.text:
        return f"told of another: {outcome.text!r}"
    # HTTP/0.9 has no statuses, and nginx speaks it.
    return "" if case.leaves or outcome.text else "never answered"
