"""Connections: how long they stay without a request, and how an answer leaves them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message

from app.http.asgi import JOINED, ClientAnswer, Cycle, until_disconnect
from app.http.protocol import TICK_SECONDS, Idle, StrictProtocol


class Loop:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[..., None], *given: Any) -> object:
        self.timers.append((self.now + seconds, lambda: call(*given)))
        return self

    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while self.timers and min(self.timers, key=lambda timer: timer[0])[0] <= until:
            due = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(due)
            self.now = due[0]
            due[1]()
        self.now = until


class Transport:
    def __init__(self) -> None:
        self.closed = False
        self.written: list[bytes] = []

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, pieces: Sequence[bytes]) -> None:
        assert all(pieces)  # From Python 3.12 on asyncio's would try to send an empty one for ever.
        self.written.append(b"".join(pieces))


class Connection:
    def __init__(self, loop: Loop) -> None:
        self.loop, self.transport = loop, Transport()


def connections(loop: Loop, number: int) -> list[Any]:
    return [Connection(loop) for _ in range(number)]


def test_each_connection_is_closed_when_its_own_time_is_over() -> None:
    loop, idle = Loop(), Idle()
    soon, later, busy, prolonged = connections(loop, 4)
    for connection, seconds in ((soon, 1.0), (later, 5.0), (busy, 1.0), (prolonged, 1.0)):
        idle.join(connection, seconds)
    idle.leave(busy)
    idle.prolong(prolonged, 5.0)
    loop.pass_time(0.9)
    assert not soon.transport.closed
    loop.pass_time(0.1 + TICK_SECONDS)
    assert [each.transport.closed for each in (soon, later, busy, prolonged)] == [True, False, False, False]
    loop.pass_time(4 + TICK_SECONDS)
    assert [each.transport.closed for each in (later, busy, prolonged)] == [True, False, True]
    assert not idle


def answering(method: str = "POST", *, keep_alive: bool = True) -> Any:
    """A cycle, and the transport that it writes to."""
    transport: Any = Transport()
    flow = SimpleNamespace(write_paused=False)
    return Cycle({"method": method}, transport, flow, lambda: None, keep_alive)  # type: ignore[arg-type]


async def answer(cycle: Any, headers: Sequence[tuple[bytes, bytes]], *pieces: bytes) -> list[bytes]:
    """What it writes for an answer in these pieces, the last of which ends it."""
    await cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
    for number, piece in enumerate(pieces, 1):
        await cycle.send({"type": "http.response.body", "body": piece, "more_body": number < len(pieces)})
    written: list[bytes] = cycle.transport.written
    return written


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("size", [0, 4, JOINED + 1])
async def test_a_head_that_is_held_leaves_with_the_first_piece(size: int) -> None:
    cycle, length = answering(), [(b"content-length", b"%d" % size)]
    cycle.hold_head()
    assert await answer(cycle, length, b"x" * size) == [OK + b"content-length: %d\r\n\r\n" % size + b"x" * size]
    if size:
        assert len(await answer(answering(), length, b"x" * size)) == 2


async def test_an_answer_to_a_client_that_left_is_not_written() -> None:
    cycle = answering()
    cycle.disconnected = True
    assert await answer(cycle, [(b"content-length", b"4")], b"body") == []


async def test_an_answer_to_head_has_no_body() -> None:
    cycle = answering("HEAD")
    cycle.hold_head()
    assert await answer(cycle, [(b"content-length", b"4")], b"body") == [OK + b"content-length: 4\r\n\r\n"]


@pytest.mark.parametrize(
    ("headers", "keep_alive", "said"),
    [
        ([(b"connection", b"x, Close")], True, b"connection: x, Close\r\n"),
        ([], False, b"connection: close\r\n"),
        ([(b"connection", b"close")], False, b"connection: close\r\n"),
    ],
)
async def test_a_connection_ends_with_the_answer_that_says_so(
    headers: list[tuple[bytes, bytes]], keep_alive: bool, said: bytes
) -> None:
    cycle = answering(keep_alive=keep_alive)
    [head] = await answer(cycle, [*headers, (b"content-length", b"0")], b"")
    assert head.count(b"connection") == 1
    assert said in head
    assert cycle.transport.closed


@pytest.mark.parametrize("body", [b"short", b"longer than it says"])
async def test_a_body_has_the_length_that_its_headers_say(body: bytes) -> None:
    with pytest.raises(RuntimeError):
        await answer(answering(), [(b"content-length", b"7")], body)


def test_who_asks_after_the_client_left_is_told_at_once() -> None:
    told: list[str] = []
    gone = answering()
    gone.disconnected = True
    gone.when_left(lambda: told.append("left"))
    assert told == ["left"]
    cycle = answering()
    cycle.when_left(lambda: told.append("left later"))
    assert told == ["left"]
    cycle.left()
    assert told == ["left", "left later"]
    cycle.when_left(None)
    cycle.left()
    assert len(told) == 2


def test_a_request_that_has_begun_has_the_time_for_its_headers_and_not_what_is_left_of_the_rest() -> None:
    loop, idle = Loop(), Idle()
    protocol: Any = StrictProtocol.__new__(StrictProtocol)
    protocol.idle, protocol.loop, protocol.transport = idle, loop, Transport()
    protocol.receive_seconds, protocol._rests, protocol._flow = 60.0, True, SimpleNamespace(held=True)
    protocol.cycle = None
    idle.join(protocol, 5.0)
    loop.pass_time(4.0)
    protocol.data_received(b"GET ")
    loop.pass_time(10.0)
    assert not protocol.transport.closed
    loop.pass_time(60.0)
    assert protocol.transport.closed


# Clients that leave


async def hang(_: ClientAnswer) -> None:
    await asyncio.Event().wait()


def pending_cancels() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Told:
    """A server's side of a request that tells when its client leaves."""

    def __init__(self) -> None:
        self.leave: Callable[[], None] | None = None
        self.task = asyncio.current_task()

    def hold_head(self) -> None: ...

    def when_left(self, leave: Callable[[], None] | None) -> None:
        self.leave = leave


async def served(connection: Any, work: Callable[[ClientAnswer], Awaitable[None]]) -> None:
    async def sent(_: Message) -> None: ...

    answer = ClientAnswer(sent, connection=connection)
    async with asyncio.timeout(5):
        with until_disconnect(answer):
            await work(answer)


def leave(connection: Any) -> None:
    assert connection.leave is not None
    connection.leave()


async def test_nothing_is_left_of_a_cancellation_that_the_work_made_something_else_of() -> None:
    connection: Any = Told()

    async def swallows(answer: ClientAnswer) -> None:
        leave(connection)
        try:
            await hang(answer)
        except asyncio.CancelledError:
            return

    async def fails(answer: ClientAnswer) -> None:
        leave(connection)
        try:
            await hang(answer)
        except asyncio.CancelledError:
            raise ValueError("It broke off.") from None

    await served(connection, swallows)
    with pytest.raises(ValueError, match="broke off"):
        await served(connection, fails)
    assert pending_cancels() == 0


async def test_a_server_that_stops_is_heard_although_the_client_leaves_at_the_same_moment() -> None:
    async def serve() -> None:
        connection: Any = Told()

        async def leave_and_stop(answer: ClientAnswer) -> None:
            leave(connection)
            serving.cancel()
            await hang(answer)

        await served(connection, leave_and_stop)

    serving = asyncio.ensure_future(serve())
    await asyncio.wait({serving})
    assert serving.cancelled()


async def test_work_goes_on_though_the_client_leaves_after_the_end_of_its_answer() -> None:
    connection: Any = Told()
    tidied = False

    async def work(answer: ClientAnswer) -> None:
        nonlocal tidied
        await answer.whole(200, [], b"{}")
        assert connection.leave is not None
        connection.leave()
        await asyncio.sleep(0)
        tidied = True

    await served(connection, work)
    assert tidied
