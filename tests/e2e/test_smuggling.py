"""What one request may not do to the next on its connection, nor to the headers that were checked."""

from __future__ import annotations

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
import yaml

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, connected, flooded, read_answer, request_bytes, send
from tests.e2e.scripted import closed_port

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
        module="tests.e2e.broken",
        STENO_SECRET=SECRET,
        DATABASE_URL="memory",
        STENO_LOG__LEVEL="info",
        STENO_UPSTREAM__DISCOVER_WINDOWS="false",
        RECEIVE_SECONDS="3",
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
        assert answered.status == (200 if "chat" in target else 404)
    asked = [record for record in simulator.log if record.target == target]
    assert [record.body for record in asked] == [BODY, BODY]
    assert not any(name.lower() in (b"upgrade", b"http2-settings") for record in asked for name, _ in record.headers)


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
CALLER = b"\r\nhost: steno.test\r\nauthorization: Bearer sk-test\r\n"
MARKS = {
    "<post>": b"POST /v1/files HTTP/1.1" + CALLER,
    "<caller>": CALLER,
    "<chunked>": b"transfer-encoding: chunked",
    "<hidden>": HIDDEN,
    "<next>": HIDDEN.replace(b"smuggled", b"next"),
}


def cases() -> Iterator[tuple[str, Case]]:
    found = yaml.safe_load(Path(__file__).with_name("smuggling.yaml").read_text("ascii"))
    for name, said in found.items():
        case = said if isinstance(said, dict) else {"packets": [said] if isinstance(said, str) else said}
        yield name, Case(**{**case, "packets": tuple(packet(text) for text in case["packets"])})


def packet(text: str) -> bytes:
    return re.sub("<[a-z]+>", lambda mark: MARKS[mark[0]].decode(), text).encode("latin-1")


CASES = dict(cases())
FRONTS = ("alone", "nginx", "haproxy")
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
    location / {{
      proxy_pass http://steno; proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
    }}
  }}
}}
"""
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
    address, port = steno_url.removeprefix("http://"), closed_port()
    file = folder / "config"
    file.write_text((NGINX if name == "nginx" else HAPROXY).format(address=address, port=port))
    options = ["-p", str(folder), "-c", str(file)] if name == "nginx" else ["-db", "-f", str(file)]
    with subprocess.Popen([name, *options], stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            commands.until(lambda: process.poll() is not None or _listens(port))
            assert process.poll() is None, f"{name} ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


PROBE = b"GET /livez HTTP/1.1\r\nhost: steno.test\r\n\r\n"


def play(url: str, case: Case) -> tuple[list[int], bytes]:
    """Statuses of the answers but for a last probe's, and everything that came."""
    received = b""
    with connected(url, 8.0) as connection, suppress(OSError):
        for number, packet in enumerate(case.packets):
            time.sleep(0.05 if number else 0)
            connection.sendall(packet)
        if case.leaves:
            return [], b""
        connection.sendall(PROBE)
        is_head = case.packets[0].startswith(b"HEAD")
        while len(statuses(received, is_head)) <= case.requests and (data := connection.recv(1 << 16)):
            received += data
        connection.settimeout(0.05)
        while data := connection.recv(1 << 16):  # More than there may be.
            received += data
    found = statuses(received, is_head)
    return found[: len(found) - received.endswith(b'{"status":"ok"}')], received


def statuses(data: bytes, is_head: bool) -> list[int]:
    """Of the whole answers in what came. `is_head`: the first one has no body."""
    found: list[int] = []
    while data.startswith(b"HTTP/1."):
        start, _, rest = data.partition(b"\r\n\r\n")
        status, lowered = int(start.split()[1]), start.lower()
        if status < 200 or status == 204 or (is_head and not found):
            data = rest
        elif length := re.search(rb"\r\ncontent-length: *([0-9]+)", lowered):
            if len(rest) < int(length[1]):
                break
            data = rest[int(length[1]) :]
        elif b"\r\ntransfer-encoding: chunked" in lowered:
            _, end, data = rest.partition(b"0\r\n\r\n")
            if not end:
                break
        else:
            data = b""
        if status >= 200:
            found.append(status)
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
    steno: Serving, simulator: Simulator, tmp_path: Path, name: str
) -> None:
    if name != "alone" and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    with front(name, steno.url, tmp_path / "front") as url, Victim(url, name) as victim, ThreadPoolExecutor(48) as pool:
        outcomes = dict(zip(CASES, pool.map(lambda case: play(url, case), CASES.values()), strict=True))
    assert {name: wrong for name, case in CASES.items() if (wrong := wrong_with(outcomes[name], case))} == {}
    targets = [record.target for record in simulator.log]
    assert len(targets) > len(CASES) / 4  # What can be read is passed on.
    assert [target for target in targets if "smuggled" in target] == []
    assert victim.wrong == []


def wrong_with(outcome: tuple[list[int], bytes], case: Case) -> str:
    """Empty where nothing is."""
    answers, text = outcome
    if len(answers) > case.requests or {500, 502, 503, 504} & set(answers):
        return f"answered {answers}: {text!r}"
    if b"victim" in text:
        return f"told of another: {text!r}"
    # HTTP/0.9 has no statuses, and nginx speaks it.
    return "" if case.leaves or text else "never answered"
