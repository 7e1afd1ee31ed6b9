"""Admissions: what came of a request's head holds for the same head alone, over the same connection."""

from __future__ import annotations

import json
import socket

import pytest

from tests.e2e.histories import chat
from tests.e2e.raw import CHAT, Answer, connected, read_answer
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer

BODY = chat()
PLAIN = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi."},"finish_reason":"stop"}]}'
HOST, KEY, JSON = b"host: localhost", b"authorization: Bearer sk-one", b"content-type: application/json"
USUAL = (b"POST %b HTTP/1.1" % CHAT.encode(), HOST, KEY, JSON)

OTHERS = {
    "another key": (USUAL[0], HOST, b"authorization: Bearer sk-two", JSON),
    "a second key": (*USUAL, b"x-api-key: sk-three"),
    "no key": (USUAL[0], HOST, JSON),
    "no key, and no JSON": (USUAL[0], HOST, b"content-type: text/plain"),
    "a name that somebody else can own": (USUAL[0], b"host: rebound.example", KEY, JSON),
    "no host": (USUAL[0], KEY, JSON),
    "two hosts": (*USUAL, HOST),
    "a host in the target": (b"POST http://rebound.example%b HTTP/1.1" % CHAT.encode(), *USUAL[1:]),
    "a page of another site": (*USUAL, b"origin: https://elsewhere.example"),
    "a header in disguise": (*USUAL, b"x_api_key: sk-four"),
    "too many headers": (*USUAL, *(b"x-%d: y" % number for number in range(200))),
    "switched off": (*USUAL, b"x-context-compaction: off"),
    "a value that cannot be": (*USUAL, b"x-context-compaction: perhaps"),
    "another path": (b"POST /v1/embeddings HTTP/1.1", *USUAL[1:]),
    "a conversation's name": (b"POST /c/mine/v1/chat/completions HTTP/1.1", *USUAL[1:]),
    "an upstream that is none": (b"POST /u/none/v1/chat/completions HTTP/1.1", *USUAL[1:]),
    "a query": (USUAL[0].replace(b" HTTP", b"?key=sk-five HTTP"), *USUAL[1:]),
    "the same in another order": (USUAL[0], KEY, JSON, HOST),
    "another header": (*USUAL, b"x-trace: 1"),
}


def ask(connection: socket.socket, lines: tuple[bytes, ...], body: bytes = BODY) -> Answer:
    head = b"\r\n".join((*lines, b"content-length: %d" % len(body)))
    connection.sendall(head + b"\r\n\r\n" + body)
    return read_answer(connection)


def told(answered: Answer) -> tuple[object, ...]:
    """What a client learns but for what differs in every answer."""
    error = json.loads(answered.body).get("error") or {}
    context = [(name, value) for name, value in answered.headers if name.startswith("x-context-") and "id" not in name]
    return (
        answered.status,
        error.get("code"),
        error.get("param"),
        context,
        answered.header("access-control-allow-origin"),
    )


def sent_up(scripted: ScriptedProvider, since: int) -> list[bytes]:
    return [request.head for request in scripted.requests[since:]]


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_another_head_is_judged_by_itself(
    other: tuple[bytes, ...], before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    """After any other over its connection as over one of its own; and so is the one before it, once more."""
    scripted.default = (answer(PLAIN),)
    steno = before_scripted()
    with connected(steno.url) as connection:
        alone, up_alone = told(ask(connection, other)), sent_up(scripted, 0)
    with connected(steno.url) as connection:
        usual = told(ask(connection, USUAL))
        assert usual[0] == 200
        before = len(scripted.requests)
        assert told(ask(connection, other)) == alone
        assert sent_up(scripted, before) == up_alone
        before = len(scripted.requests)
        assert told(ask(connection, USUAL)) == usual
        assert len(scripted.requests) == before + 1


def test_the_same_head_is_whose_it_was(before_scripted: StartSteno, scripted: ScriptedProvider) -> None:
    scripted.default = (answer(PLAIN),)
    steno: Steno = before_scripted()
    with connected(steno.url) as connection:
        first, second = ask(connection, USUAL), ask(connection, USUAL, chat(user="another"))
        name = "x-context-conversation-id"
        other = ask(connection, OTHERS["another key"])
        assert first.header(name) == second.header(name) != other.header(name)
    assert [key for request in scripted.requests for key in request.all(b"authorization")] == [
        b"Bearer sk-one",
        b"Bearer sk-one",
        b"Bearer sk-two",
    ]
    for request in scripted.requests:
        assert request.all(b"content-length") == [b"%d" % len(request.body)]
