"""Clients that leave: the work done for them ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from app.errors import BodyTooLarge
from app.http.asgi import ClientAnswer, Signature, read_body, until_disconnect
from app.http.headers import Headers

DISCONNECT: Message = {"type": "http.disconnect"}


async def leave() -> Message:
    await asyncio.sleep(0)
    return DISCONNECT


async def stay() -> Message:
    await asyncio.Event().wait()
    return DISCONNECT


async def fail() -> Message:
    await asyncio.sleep(0)
    raise RuntimeError("The connection cannot be read.")


async def hang() -> None:
    await asyncio.Event().wait()


async def do(receive: Callable[[], Awaitable[Message]], work: Callable[[], Awaitable[None]] = hang) -> None:
    async def sent(_: Message) -> None: ...

    async with asyncio.timeout(5):
        with until_disconnect(receive, ClientAnswer(sent)):
            await work()


def pending_cancels() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


@pytest.mark.parametrize("receive", [leave, fail])
async def test_the_work_ends_with_a_client_that_leaves_or_cannot_be_listened_to(
    receive: Callable[[], Awaitable[Message]],
) -> None:
    await do(receive)
    assert pending_cancels() == 0


async def test_nothing_is_left_of_a_cancellation_that_the_work_made_something_else_of() -> None:
    async def swallows() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            return

    async def fails() -> None:
        try:
            await hang()
        except asyncio.CancelledError:
            raise ValueError("It broke off.") from None

    await do(leave, swallows)
    with pytest.raises(ValueError, match="broke off"):
        await do(leave, fails)
    assert pending_cancels() == 0


async def test_a_server_that_stops_is_heard_although_the_client_leaves_at_the_same_moment() -> None:
    async def leave_and_stop() -> Message:
        serving.cancel()
        return DISCONNECT

    serving = asyncio.ensure_future(do(leave_and_stop))
    await asyncio.wait({serving})
    assert serving.cancelled()


async def test_nobody_listens_to_the_client_once_the_work_is_done() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    await do(stay, work)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Told:
    """A server's side of a request that tells when its client leaves."""

    is_stalled = False
    answered: tuple[int, bytes, bytes] | None = None

    def __init__(self, *, left: bool = False) -> None:
        self.leave: Callable[[], None] | None = None
        self.went_on: list[tuple[bytes, bool]] = []
        self.task: asyncio.Task[None] | None = None
        self._left = left

    def whole_body(self) -> bytes | None:
        return b"all of it"

    def hold_head(self) -> None: ...

    def go_on(self, piece: bytes, *, ends: bool) -> None:
        self.went_on.append((piece, ends))

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        self.answered = status, lines, body

    def when_left(self, leave: Callable[[], None] | None) -> None:
        self.leave = leave
        if leave is not None and self._left:
            leave()


async def unheard() -> Message:
    raise AssertionError("Nobody need listen.")


async def served(connection: Told, work: Callable[[ClientAnswer], Awaitable[None]]) -> None:
    async def sent(_: Message) -> None: ...

    answer = ClientAnswer(sent, connection=connection)
    async with asyncio.timeout(5):
        with until_disconnect(unheard, answer, connection):
            await work(answer)


async def test_a_server_that_tells_is_not_listened_to() -> None:
    connection, tasks = Told(), asyncio.all_tasks()

    async def work(_: ClientAnswer) -> None:
        assert asyncio.all_tasks() == tasks
        assert connection.leave is not None
        connection.leave()
        await hang()

    await served(connection, work)
    assert connection.leave is None
    assert pending_cancels() == 0


async def test_nothing_is_done_for_a_client_that_left_before() -> None:
    async def work(_: ClientAnswer) -> None:
        await hang()
        raise AssertionError("Nobody wants it.")

    await served(Told(left=True), work)


async def test_work_goes_on_though_the_client_leaves_after_the_end_of_its_answer() -> None:
    connection, tidied = Told(), False

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
    counted: list[int] = []
    assert await read_body(unheard, [], 9, 5, counted.append, Told()) == b"all of it"
    assert counted == [9]
    with pytest.raises(BodyTooLarge):
        await read_body(unheard, [], 8, 5, counted.append, Told())


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
    connection, signature = Told(), Signature("req_1", shared, statuses.append)
    at_once, in_messages = ClientAnswer(sent, signature, connection), ClientAnswer(sent, signature)
    await at_once.whole(201, headers, b"{}")
    assert messages == []
    await in_messages.whole(201, headers, b"{}")
    [start, end] = messages
    lines = b"".join(b"%b: %b\r\n" % header for header in start["headers"])
    assert connection.answered == (start["status"], lines, end["body"])
    assert statuses == [201, 201]
    assert (at_once.started, at_once.ended) == (in_messages.started, in_messages.ended) == (True, True)


@pytest.mark.parametrize(
    ("stalled", "headers"),
    [(True, []), (False, [(b"connection", b"close")]), (False, [(b"content-length", b"2")])],
)
async def test_an_answer_goes_in_messages_where_it_has_to_wait_or_says_itself_where_it_ends(
    stalled: bool, headers: Headers
) -> None:
    messages: list[Message] = []

    async def sent(message: Message) -> None:
        messages.append(message)

    connection = Told()
    connection.is_stalled = stalled
    await ClientAnswer(sent, Signature("req_1", [], unwatched), connection).whole(200, headers, b"{}")
    assert connection.answered is None
    assert messages[0]["headers"][: len(headers) + 1] == [*headers, (b"content-length", b"2")]
    pieces = connection.went_on or [(message["body"], not message["more_body"]) for message in messages[1:]]
    assert pieces == [(b"{}", True)]


def unwatched(_: int) -> None: ...


@pytest.mark.parametrize(
    "header", [(b"a b", b"c"), (b"a:", b"c"), (b"a\r\nb", b"c"), (b"a", b"b\r\nc: d"), (b"a", b"b\0"), (b"a", b"\x7f")]
)
async def test_a_header_that_would_be_read_as_another_one_is_not_sent_at_once_either(
    header: tuple[bytes, bytes],
) -> None:
    connection = Told()
    with pytest.raises(RuntimeError):
        await ClientAnswer(send_nothing, Signature("req_1", [], unwatched), connection).whole(200, [header], b"")
    with pytest.raises(RuntimeError):
        await ClientAnswer(send_nothing, Signature("req_1", [header], unwatched), connection).whole(200, [], b"")
    assert connection.answered is None


async def send_nothing(_: Message) -> None: ...


async def test_pieces_go_on_at_once_where_the_client_takes_them_and_wait_where_it_does_not() -> None:
    messages: list[Message] = []

    async def sent(message: Message) -> None:
        messages.append(message)

    connection = Told()
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
