"""What the provider receives: the client's own bytes and headers, or as little less as possible."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from app.settings import LimitSettings
from tests.e2e import commands
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, connected, is_closed, post, read_answer, request_bytes
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider

# Headers


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([b"x-many-%d: 1" % number for number in range(101)], "x-many-97"),  # Three stand before them.
        ([b"x-large: " + b"a" * 33_000], "x-large"),
    ],
    ids=["too many", "too large"],
)
def test_too_many_or_too_large_headers_are_refused(
    scripted: ScriptedProvider, before_scripted: StartSteno, headers: list[bytes], named: str
) -> None:
    refused = post(before_scripted().url, chat(), *headers)
    assert refused.status == 431
    error = refused.json["error"]
    assert (error["code"], error["param"]) == ("headers_too_large", named)
    assert repr(named) in error["message"]
    assert not scripted.requests


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", b"POST / HTTP/1.1\r\nhost: x\r\n"])
def test_header_that_does_not_arrive_in_time_closes_the_connection(
    before_scripted: StartSteno, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitSettings, "receive_seconds", 0.3)
    steno = before_scripted()
    with connected(steno.url) as connection:
        began = time.monotonic()
        connection.sendall(sent)
        assert is_closed(connection)
        assert 0.2 < time.monotonic() - began < 30


# Bodies


@pytest.mark.parametrize("target", ["/v1/chat/completions", "/context/plan", "/context/conversations/c-1/pins"])
def test_too_many_bytes_in_flight_are_refused_for_now(before_scripted: StartSteno, target: str) -> None:
    """What is still arriving counts too, on the routes of our own as well."""
    steno = before_scripted(limits={"body_bytes": 5_000})
    method = "PUT" if target.endswith("pins") else "POST"
    arriving = request_bytes(chat(padding="x" * 4_800), target=target, method=method)[:-100]
    # The server may be slow to take in what arrives.
    answers = (_answer_beside(steno.url, arriving, seconds) for seconds in (0.3, 1, 3, 10))
    refused = next(answer for answer in answers if answer.status != 200)
    assert refused.status == 503
    assert refused.header("retry-after") == "1"
    assert refused.header("x-should-retry") is None
    assert refused.json["error"]["code"] == "overloaded"
    commands.until(lambda: post(steno.url, chat()).status == 200)


def _answer_beside(url: str, arriving: bytes, seconds: float) -> Answer:
    """The answer to a small request, while four others have been arriving for so long."""
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(connected(url)).sendall(arriving)
        time.sleep(seconds)
        return post(url, chat(padding="x" * 2_500))


def test_images_are_never_fetched(scripted: ScriptedProvider, before_scripted: StartSteno) -> None:
    """K2: also not to be summarised."""
    with ScriptedProvider() as images:
        picture = {"type": "image_url", "image_url": {"url": f"{images.url}/cat.png"}}
        first = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}
        post(before_scripted().url, chat([first, *turns(15)[1:]]))
        assert len(scripted.requests) > 1
        assert images.connections == 0


def test_client_that_asks_before_it_sends_is_told_to_go_on(before_scripted: StartSteno) -> None:
    with connected(before_scripted().url) as connection:
        head, _, body = request_bytes(chat(), b"expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert read_answer(connection).status == 200
