"""Connections: how many there may be, and what one client may do with its own."""

from __future__ import annotations

import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from app.cli import serve as serving
from app.http.protocol import MOST_WAITING
from app.proxy import endpoint
from app.settings import LimitSettings
from tests.e2e.commands import until
from tests.e2e.histories import chat, turns
from tests.e2e.raw import (
    connected,
    flooded,
    get,
    is_closed,
    post,
    read_answer,
    read_until,
    request_bytes,
    rest_of,
    send,
)
from tests.e2e.running import StartSteno
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, stream_head

BODY = chat(turns(1))
PLAIN = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi."},"finish_reason":"stop"}]}'
GARBAGE = b"GARBAGE\r\n\r\n"


@contextmanager
def waiting(url: str, scripted: ScriptedProvider, count: int) -> Iterator[list[socket.socket]]:
    """So many connections, each with a request that the provider does not answer."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(url)) for _ in range(count)]
        for connection in connections:
            scripted.then("hang")
            connection.sendall(request_bytes(BODY))
        assert scripted.wait_for(lambda requests: len(requests) >= count)
        yield connections


def test_one_connection_too_many_is_told_so(before_scripted: StartSteno, scripted: ScriptedProvider) -> None:
    steno = before_scripted(limits={"connections": 3})
    with waiting(steno.url, scripted, 3):
        refused = post(steno.url, BODY)
        assert refused.status == 503
        assert refused.header("retry-after") == "1"
        error = refused.json["error"]
        assert (error["type"], error["code"]) == ("server_error", "overloaded")
        assert error["message"].startswith("3 connections are open")
        assert "limits.connections" in error["message"]
        assert len(scripted.requests) == 3
    until(lambda: post(steno.url, BODY).status == 200)


def test_a_connection_without_a_request_makes_room(before_scripted: StartSteno) -> None:
    """Many slow clients keep nobody out, as long as their requests do not come."""
    steno = before_scripted(limits={"connections": 3})
    with connected(steno.url) as oldest, connected(steno.url) as slow, connected(steno.url) as used:
        slow.sendall(request_bytes(BODY)[:30])
        used.sendall(request_bytes(BODY))
        assert read_answer(used).status == 200
        for _ in range(5):
            assert get(steno.url, "/livez").status == 200
        assert is_closed(oldest)
        for connection, rest in ((slow, request_bytes(BODY)[30:]), (used, request_bytes(BODY))):
            connection.sendall(rest)
            assert read_answer(connection).status == 200


def test_an_idle_connection_is_closed(before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http.protocol.IDLE_SECONDS", 0.5)
    with connected(before_scripted().url) as connection:
        connection.sendall(request_bytes(BODY))
        assert read_answer(connection).status == 200
        assert is_closed(connection)


def test_requests_that_pile_up_on_a_connection_are_bounded(
    before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    steno, refused = before_scripted(), threading.Event()
    connections: Any = steno.server._server.server_state.connections
    scripted.then(refused, answer(PLAIN))
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(BODY) + request_bytes(None, method="GET", target="/livez") * 3_000)
        until(lambda: any(each._refusal for each in list(connections)))
        refused.set()
        told = rest_of(connection)
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", told)
    assert statuses == [b"200"] * (MOST_WAITING + 1) + [b"400"]
    assert b"More than %d requests" % MOST_WAITING in told


def test_a_request_that_cannot_be_read_is_refused_after_the_answers_before_it(
    before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    """Not in the middle of one."""
    steno = before_scripted()
    frames = [chunked(b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % n) for n in range(5)]
    for beginning in (b"", request_bytes(b"", method="GET", target="/livez")):
        scripted.then(stream_head(), frames[0], 0.3, *frames[1:], chunked(b"data: [DONE]\n\n"), LAST_CHUNK)
        with connected(steno.url) as connection:
            connection.sendall(request_bytes(chat(turns(1), stream=True)))
            begun = read_until(connection, b'"content":"0"').partition(b"\r\n\r\n")[2]
            connection.sendall(beginning + GARBAGE)
            rest = begun + rest_of(connection)
        stream, _, after = rest.partition(b"0\r\n\r\n")
        assert b"[DONE]" in stream
        assert b"HTTP/1.1" not in stream
        assert after.count(b"HTTP/1.1 ") == (2 if beginning else 1)
        assert after.count(b"HTTP/1.1 400 ") == 1


def test_a_body_that_cannot_be_read_gets_one_answer(before_scripted: StartSteno, scripted: ScriptedProvider) -> None:
    steno = before_scripted()
    head = request_bytes(None, b"transfer-encoding: chunked")
    upload = request_bytes(None, b"transfer-encoding: chunked", target="/v1/files")
    late = request_bytes(None, method="GET", target="/livez")
    for request in (head, upload, late + head, late + upload):
        with connected(steno.url) as connection:
            connection.sendall(request + b"5\r\nhello\r\nno size\r\n")
            told = rest_of(connection)
        assert told.count(b"HTTP/1.1 400 ") == 1
        assert told.count(b"HTTP/1.1 ") == 1 + request.startswith(late)
    assert not scripted.requests
    with connected(steno.url) as connection:  # Refused before its body came, and answered once.
        connection.sendall(request_bytes(None, b"content-length: 999999999"))
        assert read_answer(connection).status == 413
        connection.sendall(b"x" * 10)
    with connected(steno.url) as connection:
        connection.sendall(request_bytes(None, b"transfer-encoding: chunked", target="/other"))
        assert read_answer(connection).status == 404
        connection.sendall(b"no size\r\n")
        assert is_closed(connection)


@pytest.mark.parametrize(
    ("begin", "flood"),
    [
        (b"POST /v1/chat/completions?", b"a" * 65_536),
        (b"", b"\r\n" * 32_768),
        (request_bytes(None, b"transfer-encoding: chunked") + b"1;", b"e" * 65_536),
        (request_bytes(None, b"transfer-encoding: chunked"), b"0" * 65_536),
        (request_bytes(None, b"transfer-encoding: chunked") + b"1\r\nx\r\n0\r\nx-trailer: ", b"t" * 65_536),
        (request_bytes(None, b"transfer-encoding: chunked") + b"1\r\nx\r\n0\r\n", b"x: a\r\n" * 10_000),
    ],
    ids=["request line", "blank lines", "chunk extension", "chunk size", "trailer", "trailers"],
)
@pytest.mark.parametrize("target", [b"/v1/chat/completions", b"/v1/files"])
def test_what_does_not_end_is_refused_before_it_is_all_here(
    before_scripted: StartSteno, scripted: ScriptedProvider, begin: bytes, flood: bytes, target: bytes
) -> None:
    steno = before_scripted()
    with connected(steno.url) as connection:
        connection.sendall(begin.replace(b"/v1/chat/completions", target, 1))
        assert flooded(connection, flood) < 10_000_000
    assert not scripted.requests
    assert post(steno.url, BODY).status == 200


def test_an_upload_has_a_size(
    before_scripted: StartSteno, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "UPLOAD_BYTES", 100_000)
    steno = before_scripted()
    announced = send(steno.url, request_bytes(b"a" * 100_001, target="/v1/files"))
    chunks = b"".join(b"%x\r\n%b\r\n" % (50_000, b"a" * 50_000) for _ in range(3)) + b"0\r\n\r\n"
    streamed = send(steno.url, request_bytes(None, b"transfer-encoding: chunked", target="/v1/files") + chunks)
    for refused in (announced, streamed):
        assert refused.status == 413
        assert refused.json["error"]["code"] == "request_too_large"
        assert "100000 bytes" in refused.json["error"]["message"]
    assert not scripted.requests
    assert send(steno.url, request_bytes(b"a" * 100_000, target="/v1/files")).status == 200


def test_an_upload_that_stops_is_given_up_and_a_slow_one_is_not(
    before_scripted: StartSteno, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    steno, request = before_scripted(), request_bytes(b"a" * 50, target="/v1/files")
    monkeypatch.setattr(LimitSettings, "receive_seconds", 0.2)
    with connected(steno.url) as connection:
        connection.sendall(request[:-5])
        stopped = read_answer(connection)
    assert stopped.status == 408
    assert "0.2 seconds" in stopped.json["error"]["message"]
    monkeypatch.setattr(LimitSettings, "receive_seconds", 2.0)
    with connected(steno.url) as connection:
        connection.sendall(request[:-45])
        for byte in request[-45:]:
            time.sleep(0.05)
            connection.sendall(bytes([byte]))
        assert read_answer(connection).status == 200
    assert [received.body for received in scripted.requests] == [b"a" * 50]


def test_an_answer_too_large_to_be_held_passes_as_it_came(
    before_scripted: StartSteno, scripted: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("recovery", "reply"):
        monkeypatch.setattr(f"app.proxy.{module}.LARGEST_WHOLE", 100_000)
    steno = before_scripted()
    large = PLAIN[:-1] + b',"pad":"' + b"a" * 1_000_000 + b'"}'
    scripted.then(answer(large)).then(
        stream_head().replace(b"text/event-stream", b"application/json"), chunked(large), LAST_CHUNK
    )
    for _ in range(2):
        answered = post(steno.url, BODY)
        assert answered.status == 200
        assert answered.body == large
        assert answered.header("x-context-status") == "full"
    scripted.then(answer(large)[:-500_000], "close")
    with pytest.raises(Exception, match="IncompleteRead"):
        post(steno.url, BODY)
    scripted.then(answer(PLAIN))
    assert post(steno.url, BODY).json["context_status"] == "full"


@pytest.mark.parametrize(
    ("soft", "hard", "after", "told"),
    [
        (1_024, 500_000, 2_200, []),
        (1_024, resource.RLIM_INFINITY, 2_200, []),
        (4_000, 500_000, 4_000, []),
        (256, 2_000, 2_000, [{"connections": 1_000, "allowed": 2_000, "wanted": 2_200}]),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, after: int, told: list[dict[str, int]]
) -> None:
    limit = (soft, hard)
    said: list[dict[str, object]] = []

    def set_limit(_: int, wanted: tuple[int, int]) -> None:
        nonlocal limit
        limit = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: limit)
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    monkeypatch.setattr(serving.log, "warning", lambda _, **fields: said.append(fields), raising=False)
    serving._allow_files(1_000)
    assert limit == (after, hard)
    assert [{name: number for name, number in line.items() if name != "remedy"} for line in said] == told
