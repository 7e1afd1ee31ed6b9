"""Clients that leave: the work done for them ends, whatever else happens at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from app.proxy.asgi import ClientAnswer, until_disconnect

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
