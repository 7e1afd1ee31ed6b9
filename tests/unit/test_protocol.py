"""Connections: how long they stay without a request, and how an answer leaves them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from app.proxy.protocol import TICK_SECONDS, HeadHeld, Idle, Served, StrictProtocol


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


def test_no_timer_runs_where_nobody_is_idle_and_one_does_for_all_others() -> None:
    loop, idle = Loop(), Idle()
    [one, *others] = connections(loop, 10)
    idle.join(one, 1.0)
    for other in others:
        idle.join(other, 1.0)
    assert len(loop.timers) == 1
    for connection in (one, *others):
        idle.leave(connection)
    loop.pass_time(TICK_SECONDS)
    assert not loop.timers
    idle.join(one, 1.0)
    loop.pass_time(1.0 + TICK_SECONDS)
    assert one.transport.closed


def test_the_oldest_is_who_has_had_no_request_for_longest() -> None:
    loop, idle = Loop(), Idle()
    first, second = connections(loop, 2)
    idle.join(first, 1.0)
    idle.join(second, 1.0)
    idle.prolong(first, 9.0)
    assert idle.oldest is first
    idle.join(first, 1.0)
    assert idle.oldest is second


def test_who_left_is_not_prolonged() -> None:
    loop, idle = Loop(), Idle()
    [gone] = connections(loop, 1)
    idle.prolong(gone, 1.0)
    assert not idle


def test_a_held_head_leaves_with_the_body_and_what_follows_at_once() -> None:
    transport: Any = Transport()
    held = HeadHeld(transport)
    held.write(b"head")
    assert transport.written == []
    held.write(b"body")
    held.write(b"more")
    assert transport.written == [b"headbody", b"more"]
    held.close()
    assert held.is_closing()


def cycle(method: str = "POST", *, disconnected: bool = False) -> Any:
    transport, event = Transport(), asyncio.Event()
    answered = {"disconnected": disconnected, "response_complete": False, "message_event": event}
    return SimpleNamespace(scope={"method": method}, transport=transport, **answered)


def test_who_asks_after_the_client_left_is_told_at_once() -> None:
    told: list[str] = []
    Served(cycle(disconnected=True)).when_left(lambda: told.append("left"))
    assert told == ["left"]
    served = Served(cycle())
    served.when_left(lambda: told.append("left later"))
    assert told == ["left"]
    served.left()
    assert told == ["left", "left later"]
    served.when_left(None)
    served.left()
    assert len(told) == 2


def test_no_head_is_held_where_no_body_follows() -> None:
    asked_for_the_head, asked_for_all = Served(cycle("HEAD")), Served(cycle())
    for served in (asked_for_the_head, asked_for_all):
        served.hold_head()
    assert type(asked_for_the_head.cycle.transport).__name__ == Transport.__name__
    assert type(asked_for_all.cycle.transport).__name__ == HeadHeld.__name__


def test_a_request_that_has_begun_has_the_time_for_its_headers_and_not_what_is_left_of_the_rest() -> None:
    loop, idle = Loop(), Idle()
    protocol: Any = StrictProtocol.__new__(StrictProtocol)
    protocol.idle, protocol.loop, protocol.transport = idle, loop, Transport()
    protocol.header_seconds, protocol._rests, protocol._flow = 60.0, True, SimpleNamespace(held=True)
    idle.join(protocol, 5.0)
    loop.pass_time(4.0)
    protocol.data_received(b"GET ")
    loop.pass_time(10.0)
    assert not protocol.transport.closed
    loop.pass_time(60.0)
    assert protocol.transport.closed


def test_a_held_head_leaves_also_where_the_body_is_empty() -> None:
    transport: Any = Transport()
    held = HeadHeld(transport)
    held.write(b"head")
    held.write(b"")
    assert transport.written == [b"head"]
