"""Relaying an answer, as far as it is there: what can go down together goes together, and nothing waits for more."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from app.errors import UpstreamDisconnected
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.sse import event
from app.http.connection import Connection, Timeouts, UpstreamExchange
from app.http.http1 import RequestHead
from app.http.upstream import Pool
from app.proxy.early_stream import longest_silence
from app.proxy.recovery import FIRST_PIECE_SECONDS, read_beginning
from app.proxy.reply import FRAMES_AT_ONCE, relay_stream, start_stream

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FRAMES = [
    event(b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'),
    event(b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'),
    event(b"[DONE]"),
]
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Provider:
    """The other side of a connection, on which what was written counts for nothing."""

    def __init__(self) -> None:
        self._pool = Pool(httpx2.URL("http://127.0.0.1:1/v1"), Timeouts(5, 5, 5))
        self._connection = Connection(self._pool._room, self._pool._freed, self._pool._lost)
        transport = SimpleNamespace(
            is_closing=lambda: False,
            write=lambda _: None,
            writelines=lambda _: None,
            get_write_buffer_size=lambda: 0,
            pause_reading=lambda: None,
            resume_reading=lambda: None,
            abort=lambda: None,
        )
        self._connection.connection_made(cast("asyncio.Transport", transport))
        self._pool._all.add(self._connection)
        self._pool._idle.append(self._connection)

    def sends(self, data: bytes) -> None:
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))

    async def answers(self, beginning: bytes) -> UpstreamExchange:
        head = RequestHead(b"POST", b"/v1/x", b"h", [])
        asking = asyncio.ensure_future(self._pool.exchange(head, b"{}"))
        await asyncio.sleep(0)
        self.sends(beginning)
        return await asking

    async def close(self) -> None:
        await self._pool.close()


TURNS = 50
"""Turns of others in which a stream that is there is passed on."""


class Client:
    """What it is sent, step by step."""

    def __init__(self) -> None:
        self.steps: list[str | bytes] = []

    def hold_head(self) -> None:
        self.steps.append("held")

    async def start(self, status: int, _: object) -> None:
        self.steps.append(f"head {status}")

    async def body(self, piece: bytes) -> None:
        self.steps.append(piece)

    async def end(self, piece: bytes = b"") -> None:
        self.steps += [piece, "end"]


def relayed(*arrivals: bytes) -> list[str | bytes]:
    """The steps of a stream that arrives so: each part once all before it was passed on."""

    async def story() -> list[str | bytes]:
        provider, client = Provider(), Client()
        answering = await provider.answers(arrivals[0])
        record, caller = SimpleNamespace(cut=lambda _: None), SimpleNamespace(format=CHAT_COMPLETIONS)
        exchange: Any = SimpleNamespace(client=client, record=record, caller=caller)
        await start_stream(exchange, answering, [])
        streaming = asyncio.ensure_future(relay_stream(exchange, answering, CHAT_COMPLETIONS.editor()))
        for part in arrivals[1:]:
            for _ in range(3):
                await asyncio.sleep(0)
            provider.sends(part)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert streaming.done(), "it waited for more than others' turns"
        await provider.close()
        return client.steps

    return asyncio.run(story())


def test_a_stream_that_is_there_goes_down_as_one() -> None:
    stream = b"".join(map(chunk, FRAMES)) + LAST_CHUNK
    assert relayed(HEAD + stream) == ["held", "head 200", b"".join(FRAMES), "end"]


def test_of_a_stream_that_is_there_so_many_frames_go_down_at_once() -> None:
    """Others have their turn in between."""
    frame = event(b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{}}')
    many = frame * (2 * FRAMES_AT_ONCE + 2)
    steps = relayed(HEAD, chunk(many + b"".join(FRAMES)), LAST_CHUNK)
    sizes = [step.count(frame) for step in steps if isinstance(step, bytes)]
    assert sizes[:3] == [FRAMES_AT_ONCE, FRAMES_AT_ONCE, 2]


def test_a_head_does_not_wait_for_the_rest_of_a_frame() -> None:
    half, rest = FRAMES[0][:20], FRAMES[0][20:]
    steps = relayed(HEAD + chunk(half), chunk(rest) + b"".join(map(chunk, FRAMES[1:])) + LAST_CHUNK)
    assert steps == ["head 200", b"".join(FRAMES), "end"]


def test_frames_that_a_broken_stream_ends_with_come_before_its_error() -> None:
    steps = relayed(HEAD + chunk(FRAMES[0]) + LAST_CHUNK)
    error = CHAT_COMPLETIONS.editor().error_frame(
        UpstreamDisconnected("The provider's stream ended in the middle of the answer.")
    )
    assert steps == ["held", "head 200", FRAMES[0] + error, "end"]


def test_the_part_of_an_answer_before_an_error_is_kept() -> None:
    async def story() -> None:
        provider = Provider()
        answering = await provider.answers(PLAIN + b"{")
        await provider.close()
        assert await answering.read_ahead(9, raises=False) == (b"{", False)
        with pytest.raises(UpstreamDisconnected):
            await answering.read_ahead(9)

    asyncio.run(story())


@pytest.mark.parametrize("cut", range(len(PLAIN), len(PLAIN) + 3))
def test_an_answer_is_whole_once_its_last_byte_came(cut: int) -> None:
    async def story() -> None:
        provider, answer = Provider(), PLAIN + b"{}"
        answering = await provider.answers(answer[:cut])
        if cut < len(answer):
            assert answering.first_part == answer[len(PLAIN) : cut]
            reading = asyncio.ensure_future(answering.read_ahead(2))
            await asyncio.sleep(0)
            assert not reading.done()
            provider.sends(answer[cut:])
            assert await reading == (b"{}", True)
        assert await answering.read_ahead(2) == (b"{}", True)
        assert await answering.read_ahead(1) == (b"{}", False)
        before = answering.is_over
        assert [chunk async for chunk in answering] == [b"{}"]
        assert (before, answering.is_over) == (False, True)
        await provider.close()

    asyncio.run(story())


@pytest.mark.parametrize(("frames", "seconds"), [(3, 10.0), (20, FIRST_PIECE_SECONDS)])
async def test_a_beginning_without_content_is_held_back_for_long_while_few_frames_come(
    frames: int, seconds: float
) -> None:
    asked: list[float] = []

    class Silent:
        async def beginning(self, seconds: float, beyond: int = 0) -> bytes:  # noqa: ARG002 - nothing more comes
            asked.append(seconds)
            return b'data: {"choices":[{"index":0,"delta":{"odd":"word"}}]}\n\n' * frames

    answering: Any = Silent()
    editor = await read_beginning(answering, CHAT_COMPLETIONS, 10.0)
    assert not editor.has_content
    assert asked == [10.0, pytest.approx(seconds, abs=0.5)]


@pytest.mark.parametrize(("patience", "seconds"), [(1.5, 1.0), (12.0, 4.0), (600.0, 10.0)])
def test_keep_alives_come_three_times_within_the_clients_patience(patience: float, seconds: float) -> None:
    caller: Any = SimpleNamespace(patience=lambda: patience)
    assert longest_silence(caller) == seconds
