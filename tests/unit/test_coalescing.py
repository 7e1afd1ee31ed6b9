"""Write coalescing: what is written in one turn leaves at its end, and nothing is lost, doubled or swapped by that."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from app.edge.coalescing import MOST_HELD, CoalescingTransport


class Socket:
    """A transport that notes what leaves."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_open = True
        self.ended = False

    def write(self, data: bytes) -> None:
        assert self.is_open
        self.sent.append(bytes(data))

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        self.write(b"".join(pieces))

    def get_write_buffer_size(self) -> int:
        return 3

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    abort = close

    def write_eof(self) -> None:
        self.ended = True

    def get_extra_info(self, name: str) -> str:
        return name


def connected(number: int = 2, arrivals: int = 2) -> tuple[list[Socket], list[CoalescingTransport]]:
    """Connections of which so many received something."""
    sockets = [Socket() for _ in range(number)]
    transports = [CoalescingTransport(socket) for socket in sockets]
    transports[0].turn.arrivals += arrivals
    return sockets, transports


async def turn_ends() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_who_writes_alone_writes_at_once() -> None:
    [socket, _], [transport, _] = connected(arrivals=1)
    transport.write(b"head")
    transport.write(b"body")
    assert socket.sent == [b"head", b"body"]


async def test_what_several_write_in_a_turn_leaves_at_its_end() -> None:
    [one, other], [to_one, to_other] = connected()
    to_one.write(b"a")
    to_other.writelines([b"b", b"c"])
    to_one.write(b"d")
    assert one.sent == other.sent == []
    await turn_ends()
    assert (one.sent, other.sent) == ([b"ad"], [b"bc"])
    to_one.write(b"later")
    assert one.sent == [b"ad", b"later"]


async def test_turns_follow_each_other() -> None:
    [one, other], [to_one, to_other] = connected()
    for number in (b"1", b"2", b"3"):
        to_one.turn.arrivals = 2
        to_one.write(number)
        to_other.write(number)
        await turn_ends()
    assert one.sent == other.sent == [b"1", b"2", b"3"]


async def test_a_connection_that_is_closed_sends_first_what_was_written() -> None:
    [one, other], [to_one, to_other] = connected()
    to_one.write(b"the end")
    to_one.close()
    to_other.write(b"half")
    to_other.write_eof()
    assert (one.sent, one.is_open) == ([b"the end"], False)
    assert (other.sent, other.ended) == ([b"half"], True)
    await turn_ends()
    assert (one.sent, other.sent) == ([b"the end"], [b"half"])


async def test_a_connection_that_is_given_up_sends_nothing_more() -> None:
    [one, other], [to_one, to_other] = connected()
    to_one.write(b"unwanted")
    to_one.abort()
    to_other.write(b"too late")
    other.is_open = False  # Its other side is gone.
    await turn_ends()
    assert one.sent == other.sent == []


async def test_a_connection_that_the_other_side_closed_meanwhile_keeps_nobody_elses_bytes_back() -> None:
    [gone, other], [to_gone, to_other] = connected()
    to_gone.write(b"a")
    to_other.write(b"b")
    gone.is_open = False
    await turn_ends()
    assert (gone.sent, other.sent) == ([], [b"b"])


async def test_what_is_large_leaves_at_once_and_in_its_order() -> None:
    large = bytes(MOST_HELD)
    [one, other], [to_one, to_other] = connected()
    to_one.write(b"a")
    to_one.write(large)
    to_other.writelines([large, b"b"])
    assert (one.sent, other.sent) == ([b"a", large], [large + b"b"])


async def test_bytes_that_wait_are_counted_as_such() -> None:
    _, [transport, _] = connected()
    transport.write(b"four")
    assert transport.get_write_buffer_size() == 7
    await turn_ends()
    assert transport.get_write_buffer_size() == 3


async def test_the_rest_is_the_transports_own() -> None:
    _, [transport, _] = connected()
    assert transport.get_extra_info("peername") == "peername"
    assert not transport.is_closing()


WRITTEN = st.tuples(st.integers(0, 2), st.binary(min_size=1, max_size=3) | st.just(bytes(MOST_HELD)))
STEPS = st.lists(WRITTEN | st.just("arrives") | st.just("turn"), max_size=30)


@given(STEPS)
def test_each_connection_is_sent_what_was_written_to_it(steps: list[tuple[int, bytes] | str]) -> None:
    async def run() -> None:
        sockets, transports = connected(3, arrivals=0)
        written = [b"", b"", b""]
        for step in steps:
            if step == "arrives":
                transports[0].turn.arrivals += 1
            elif isinstance(step, str):
                await turn_ends()
            else:
                place, data = step
                transports[place].write(data)
                written[place] += data
        await turn_ends()
        assert [b"".join(socket.sent) for socket in sockets] == written

    asyncio.run(run())
