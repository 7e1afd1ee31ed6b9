"""Heads that are recognised by their bytes: nobody can find out whether one was."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from app.http.asgi import CONNECTION, KNOWN, ClientAnswer
from app.http.protocol import KnownHead, protocol_within
from app.settings import LimitSettings

Piece = tuple[bytes, bool]
"""What is received at once, and whether the answers that are due go out before the next."""

USUAL = b"POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\nauthorization: Bearer sk\r\n\r\n"
EARLY = USUAL.replace(b"/whole", b"/early")
PIECES = USUAL.replace(b"/whole", b"/pieces?a=b")
BODIES = *[b"hello", b"h", b"POST /"] * 3, b"", b"hello, world", USUAL % 5 + b"hello", b"x" * 150_000
EXPECTING = USUAL.replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
HEADS = (
    USUAL,
    USUAL.replace(b"content-length", b"Content-Length"),
    USUAL.replace(b"%d", b"%d \t"),
    USUAL.replace(b": %d", b":%d"),
    USUAL.replace(b"%d", b"0%d"),
    USUAL.replace(b"%d", b"+%d"),
    USUAL.replace(b"%d", b"%d, %%d"),
    USUAL.replace(b"\r\n\r\n", b"\r\ncontent-length: 5\r\n\r\n"),
    USUAL.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n"),
    EXPECTING,
    USUAL.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
    USUAL.replace(b"\r\n\r\n", b"\r\nconnection: keep-alive\r\n\r\n"),
    USUAL.replace(b"\r\n\r\n", b"\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"),
    USUAL.replace(b"\r\n\r\n", b"\r\nx: \r\n content-length: 7\r\n\r\n"),
    USUAL.replace(b"sk", b"other"),
    USUAL.replace(b"1.1", b"1.0"),
    USUAL.replace(b"\r\n", b"\n"),
    USUAL.replace(b"POST", b"\r\n\r\nPOST"),
    EARLY,
    PIECES,
    b"POST /whole HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /whole HTTP/1.1\r\nhost: a\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"\x00\x01",
)


class Wire:
    """A transport that remembers what is written, and holds back what is received while nothing is to be read."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = self.paused = False
        self.waiting: list[bytes] = []
        self.protocol: Any = None

    def receives(self, data: bytes) -> None:
        self.waiting.append(data)
        while self.waiting and not (self.paused or self.closed):
            self.protocol.data_received(self.waiting.pop(0))

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.written += b"".join(pieces)


class Seeing:
    """An application that says what it was asked, and remembers it."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        told = {key: value for key, value in scope.items() if key not in (CONNECTION, KNOWN)}
        told |= {"headers": list(scope["headers"]), "state": dict(scope["state"])}
        scope["headers"].append((b"mine", b"alone"))
        scope["state"]["mine"] = "alone"
        self.seen.append(told)
        body, more = b"", scope["path"] != "/early"
        if scope["path"] == "/whole" and (whole := scope[CONNECTION].whole_body()) is not None:
            body, more = whole, False
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if message["type"] != "http.request":  # A body may come in any number of messages.
                self.seen.append(message["type"])
        self.seen.append(body)
        if scope["path"] == "/pieces":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
        else:
            await ClientAnswer(send, connection=scope[CONNECTION]).whole(200, [], body)


def slow(protocol: type[Any]) -> type[Any]:
    """Never recognises a head."""

    class Slow(protocol):  # type: ignore[misc]
        def _feed_head(self, data: bytes) -> bytes:
            return data

    return Slow


def told(protocol: type[Any], pieces: Sequence[Piece]) -> tuple[list[object], bytes, bool, int]:
    """What the application sees, what is answered, whether the connection ends, and how many heads were recognised."""

    async def played() -> tuple[list[object], bytes, bool, int]:
        app, wire, recognised = Seeing(), Wire(), 0

        class Counting(protocol):  # type: ignore[misc]
            def _begin_again(self, *given: Any) -> None:
                nonlocal recognised
                recognised += 1
                super()._begin_again(*given)

        config = uvicorn.Config(app, log_config=None, proxy_headers=False)
        state = ServerState()
        connection = wire.protocol = Counting(config, state, {"ours": "everybody's"}, asyncio.get_running_loop())
        connection.connection_made(wire)
        for data, answers in pieces:
            wire.receives(data)
            if answers:
                await asyncio.sleep(0.0)
                for _ in range(20):
                    await asyncio.sleep(0)
                    wire.receives(b"") if wire.waiting and not wire.paused else None
        for _ in range(100):
            await asyncio.sleep(0)
            wire.receives(b"") if wire.waiting and not wire.paused else None
        so_far = list(app.seen), wire.written, wire.closed, recognised
        connection.connection_lost(None)
        await asyncio.gather(*state.tasks, return_exceptions=True)
        return so_far

    return asyncio.run(played())


PROTOCOL: type[Any] = protocol_within(LimitSettings().receive_seconds, LimitSettings().connections)


def same_both_ways(pieces: Sequence[Piece]) -> int:
    *seen, recognised = told(PROTOCOL, pieces)
    *plainly, never = told(slow(PROTOCOL), pieces)
    assert seen == plainly
    assert never == 0
    return recognised


@st.composite
def requests(draw: st.DrawFn) -> list[Piece]:
    """Requests that follow each other, most with the same head, some with another length than they say, in pieces."""
    pieces: list[Piece] = []
    usual = draw(st.sampled_from([USUAL, USUAL.replace(b"%d", b"%d \t"), EARLY, PIECES]))
    for _ in range(draw(st.integers(2, 6))):
        body = draw(st.sampled_from(BODIES))
        head = usual if draw(st.integers(0, 5)) else draw(st.sampled_from(HEADS))
        head = head % (len(body) + draw(st.sampled_from([0] * 18 + [-1, 1]))) if b"%d" in head else head
        data, cut = head + body, draw(st.sampled_from(["not", "not", "not", "head", "anywhere"]))
        at = [len(head)] if cut == "head" else []
        if cut == "anywhere":
            at = sorted(draw(st.lists(st.integers(0, min(len(data), 200)), max_size=4)))
        for start, end in zip([0, *at], [*at, len(data)], strict=True):
            pieces.append((data[start:end], draw(st.sampled_from([True, True, True, False]))))
    return [piece for piece in pieces if piece[0]]


@settings(deadline=None, max_examples=150)
@given(requests())
@example([(USUAL % 5 + b"hello", True)] * 3)
@example([(USUAL % 5 + b"hello", True), (USUAL % 5, True), (b"he", True), (b"llo" + USUAL % 5 + b"hello", True)])
@example([(USUAL % 5 + b"hello", True), (USUAL % 5 + b"hello" + USUAL % 1 + b"x", True)])
@example([(USUAL % 5 + b"hello", True), (b"\r\n" + USUAL % 5 + b"hello", True), (USUAL % 5 + b"hello", True)])
@example([(EARLY % 5 + b"he", True), (b"llo", True), (USUAL % 5 + b"hello", True)])
@example([(EARLY % 5 + b"hello", True), (EARLY % 5 + b"hello", True), ((USUAL % 5)[:9], True)])
@example([(EARLY % len(EARLY), True), (EARLY % 10, True), (b"x" * 20, True)])
@example([(EXPECTING % 5, True), (b"hello", True), (EXPECTING % 5, True), (b"hello", True)])
@example([(USUAL % 5 + b"hello", True), (USUAL % 5 + b"hello", True), (b"\x00", True)])
def test_a_request_whose_head_is_recognised_is_the_one_that_a_parser_reads(pieces: list[Piece]) -> None:
    event(f"recognised: {same_both_ways(pieces)}")


def test_a_head_is_recognised_however_its_body_comes() -> None:
    first, head = (USUAL % 12 + b"hello, world", True), USUAL % 34
    assert same_both_ways([first, (head + b"x" * 34, True)]) == 1
    assert same_both_ways([first, (head, True), (b"x" * 30, True), (b"x" * 4, True)]) == 1
    assert same_both_ways([(USUAL % 12, True), (b"hello, world", True), (head + b"x" * 34, True)]) == 1


@pytest.mark.parametrize("digits", [b"05", b"+5", b"-5", b" 5", b"5 ", b"0x", b"1_", "²".encode()])
def test_another_length_of_as_many_bytes_is_left_to_the_parser(digits: bytes) -> None:
    known = KnownHead.of(USUAL % 12, {"headers": [(b"host", b"a"), (b"content-length", b"12")], "state": {}})
    assert known is not None
    assert known.length_in(USUAL % 34 + b"x") == b"34"
    assert known.length_in((USUAL % 34).replace(b"34", digits)) is None
    assert known.length_in(USUAL % 345) is None
    assert known.length_in((USUAL % 34)[:-1]) is None
