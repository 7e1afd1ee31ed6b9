"""Clients that leave: the work done for them ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from app.errors import BodyTooLarge
from app.http.asgi import ClientAnswer, Signature, read_body, until_disconnect
from app.http.headers import Headers


async def hang(_: ClientAnswer) -> None:
    await asyncio.Event().wait()


def pending_cancels() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


class Told:
    """A server's side of a request that tells when its client leaves."""

    is_stalled = False
    answered: tuple[int, Headers, bytes] | None = None

    def __init__(self) -> None:
        self.leave: Callable[[], None] | None = None
        self.went_on: list[tuple[bytes, bool]] = []
        self.task = asyncio.current_task()

    def whole_body(self) -> bytes | None:
        return b"all of it"

    def hold_head(self) -> None: ...

    def go_on(self, piece: bytes, *, ends: bool) -> None:
        self.went_on.append((piece, ends))

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.answered = status, headers, body

    def when_left(self, leave: Callable[[], None] | None) -> None:
        self.leave = leave


async def unheard() -> Message:
    raise AssertionError("Nobody need listen.")


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


async def test_a_body_that_is_here_is_taken_at_once_and_within_the_same_limits() -> None:
    connection: Any = Told()
    counted: list[int] = []
    assert await read_body(unheard, [], 9, 5, counted.append, connection) == b"all of it"
    assert counted == [9]
    with pytest.raises(BodyTooLarge):
        await read_body(unheard, [], 8, 5, counted.append, connection)


def test_an_answer_is_signed_once_with_what_it_lacks() -> None:
    statuses: list[int] = []
    signature = Signature("req_1", [(b"vary", b"origin")], statuses.append)
    given = [(b"x-context-request-id", b"another's"), (b"server", b"theirs")]
    signed = signature.under(201, given)
    assert signed[:3] == [(b"server", b"theirs"), (b"vary", b"origin"), (b"x-context-request-id", b"req_1")]
    assert [name for name, _ in signed[3:]] == [b"date", b"x-request-id"]
    assert statuses == [201]


NEEDS: tuple[Headers, ...] = (
    [],
    [(b"date", b"yesterday"), (b"server", b"theirs")],
    [(b"x-context-request-id", b"another's"), (b"x-request-id", b"theirs"), (b"a", b"1"), (b"a", b"2")],
)


@pytest.mark.parametrize("headers", NEEDS)
@pytest.mark.parametrize("shared", [[], [(b"vary", b"origin")]])
async def test_a_whole_answer_has_the_same_headers_at_once_as_in_messages(headers: Headers, shared: Headers) -> None:
    messages: list[Message] = []

    async def sent(message: Message) -> None:
        messages.append(message)

    statuses: list[int] = []
    connection: Any = Told()
    signature = Signature("req_1", shared, statuses.append)
    at_once, in_messages = ClientAnswer(sent, signature, connection), ClientAnswer(sent, signature)
    await at_once.whole(201, headers, b"{}")
    assert messages == []
    await in_messages.whole(201, headers, b"{}")
    [start, end] = messages
    assert connection.answered == (start["status"], start["headers"], end["body"])
    assert statuses == [201, 201]
    assert (at_once.started, at_once.ended) == (in_messages.started, in_messages.ended) == (True, True)


async def test_an_answer_goes_in_messages_where_it_has_to_wait() -> None:
    messages: list[Message] = []

    async def sent(message: Message) -> None:
        messages.append(message)

    connection: Any = Told()
    connection.is_stalled = True
    await ClientAnswer(sent, Signature("req_1", [], unwatched), connection).whole(200, [], b"{}")
    assert connection.answered is None
    assert messages[0]["headers"][0] == (b"content-length", b"2")
    assert messages[1]["body"] == b"{}"


def unwatched(_: int) -> None: ...


async def test_pieces_go_on_at_once_where_the_client_takes_them_and_wait_where_it_does_not() -> None:
    messages: list[Message] = []

    async def sent(message: Message) -> None:
        messages.append(message)

    connection: Any = Told()
    answer = ClientAnswer(sent, None, connection)
    await answer.start(200, [])
    await answer.body(b"")
    await answer.body(b"one")
    connection.is_stalled = True
    await answer.body(b"two")
    connection.is_stalled = False
    await answer.end(b"three")
    assert connection.went_on == [(b"one", False), (b"three", True)]
    assert [message.get("body") for message in messages] == [None, b"two"]
    assert answer.ended
