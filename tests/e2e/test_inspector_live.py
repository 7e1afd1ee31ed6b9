"""The stream that an open page of a conversation listens to: what it says, when it ends, and how many there may be."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from app.inspector import live
from tests.e2e.histories import chat, turns
from tests.e2e.raw import post
from tests.e2e.running import StartSteno, Steno

EVENTS = "/ui/conversations/one/events"


@pytest.fixture
def talking(steno: StartSteno) -> Steno:
    """With a conversation of a caller without a key."""
    started = steno()
    send(started, 2)
    return started


def send(to: Steno, number: int) -> None:
    body = chat(turns(number), conversation_id="one")
    httpx2.post(
        f"{to.base_url}/chat/completions", content=body, headers={"content-type": "application/json"}, timeout=30
    ).raise_for_status()


def states(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def until_nobody_listens(to: Steno) -> None:
    deadline = time.monotonic() + 10
    while to.services.compactor.running._watching:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_says_at_once_how_things_are_and_again_when_a_request_has_come(talking: Steno) -> None:
    with httpx2.stream("GET", talking.url + EVENTS, timeout=20) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = states(answer)
        first = next(told)
        assert first["compacting"] is False
        send(talking, 3)
        assert next(told)["updated"] > first["updated"]
    until_nobody_listens(talking)


def test_a_request_for_the_head_alone_holds_no_place(talking: Steno) -> None:
    with httpx2.Client(timeout=20) as client:  # Its connection stays open.
        assert client.head(talking.url + EVENTS).headers["content-type"].startswith("text/event-stream")
        assert not talking.services.compactor.running._watching


def test_a_server_that_stops_does_not_wait_for_those_who_listen(talking: Steno) -> None:
    ended = threading.Event()

    def listen() -> None:
        with httpx2.stream("GET", talking.url + EVENTS, timeout=20) as answer:
            for _ in states(answer):
                talking.services.tasks.stop()  # As `steno serve` does at a signal.
        ended.set()

    listening = threading.Thread(target=listen)
    listening.start()
    assert ended.wait(10)
    listening.join()


def test_there_is_room_for_so_many_listeners_of_one_caller(talking: Steno, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_OF_A_TENANT", 1)
    with httpx2.stream("GET", talking.url + EVENTS, timeout=20) as answer:
        told = states(answer)  # Held: what reads it closes the connection when it goes.
        assert next(told)
        assert httpx2.get(talking.url + EVENTS).status_code == 503
    until_nobody_listens(talking)
    with httpx2.stream("GET", talking.url + EVENTS, timeout=20) as answer:
        assert next(states(answer))


def test_without_news_it_ends(talking: Steno, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.0)
    assert "event: idle" in httpx2.get(talking.url + EVENTS, timeout=20).text


def test_nobody_listens_to_anothers_conversation(talking: Steno) -> None:
    with httpx2.Client(base_url=talking.url) as other:
        assert post(talking.url, chat(turns(1)), b"authorization: Bearer sk-other").status == 200
        assert other.post("/ui/sign-in", data={"key": "sk-other"}).status_code == 303
        assert other.get(EVENTS).status_code == 404
    assert post(talking.url, chat(turns(1), conversation_id="two")).status == 200  # With a key of its own.
    assert httpx2.get(talking.url + "/ui/conversations/two/events").status_code == 404
