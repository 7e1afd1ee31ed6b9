"""Clients that leave: the work done for them ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from app.errors import BodyTooLarge
from app.proxy.asgi import ClientAnswer, Signature, read_body, until_disconnect

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

    async def working() -> None:
        await work()

    async with asyncio.timeout(5):
        await until_disconnect(receive, ClientAnswer(sent), working())


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

    def __init__(self, *, left: bool = False) -> None:
        self.leave: Callable[[], None] | None = None
        self.task: asyncio.Task[None] | None = None
        self._left = left

    def whole_body(self) -> bytes | None:
        return b"all of it"

    def hold_head(self) -> None: ...

    def when_left(self, leave: Callable[[], None] | None) -> None:
        self.leave = leave
        if leave is not None and self._left:
            leave()


async def unheard() -> Message:
    raise AssertionError("Nobody need listen.")


async def served(connection: Told, work: Callable[[ClientAnswer], Awaitable[None]]) -> None:
    async def sent(_: Message) -> None: ...

    async def working() -> None:
        await work(answer)

    answer = ClientAnswer(sent, connection=connection)
    async with asyncio.timeout(5):
        await until_disconnect(unheard, answer, working(), connection=connection)


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
    assert await read_body(unheard, [], 9, 1.0, counted.append, Told()) == b"all of it"
    assert counted == [9]
    with pytest.raises(BodyTooLarge):
        await read_body(unheard, [], 8, 1.0, counted.append, Told())


def test_an_answer_is_signed_once_with_what_it_lacks() -> None:
    statuses: list[int] = []
    signature = Signature("req_1", [(b"vary", b"origin")], statuses.append)
    given = [(b"x-context-request-id", b"another's"), (b"server", b"theirs")]
    signed = signature.under(201, given)
    assert signed[:3] == [(b"server", b"theirs"), (b"vary", b"origin"), (b"x-context-request-id", b"req_1")]
    assert [name for name, _ in signed[3:]] == [b"date", b"x-request-id"]
    assert statuses == [201]
