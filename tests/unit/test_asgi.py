"""Clients that leave: the work done for them ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from app.http.asgi import ClientAnswer, until_disconnect


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
