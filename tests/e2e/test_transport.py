"""The transport over real connections, on both kinds of loops: reuse, replay, pressure, patience, leaving, TLS."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from app.errors import StenoError, UpstreamDisconnected, UpstreamTimedOut, UpstreamUnreachable
from app.http import connection as connections
from app.http import upstream as upstreams
from app.http.connection import UpstreamExchange
from app.http.headers import new_instance
from app.http.upstream import Upstream
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, answer, chunked, closed_port, open_stream_head, stream_head

Story = Callable[[Upstream], Awaitable[None]]
Tell = Callable[..., None]
LARGE = 4 << 20


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def tell(request: pytest.FixtureRequest) -> Tell:
    """Runs a story about a provider; at the end nothing of it is left in the loop."""

    def run(url: str, story: Story, first_byte: float = 30, between_bytes: float = 30, connect: float = 30) -> None:
        async def told() -> None:
            upstream = Upstream(f"{url}/v1", connect, first_byte, between_bytes, new_instance())
            try:
                await story(upstream)
            finally:
                await upstream.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not upstream._pool._all

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(told())
        gc.collect()  # A connection that was left open is a warning, and those are errors.

    return run


async def post(upstream: Upstream, content: bytes | AsyncGenerator[bytes, None] = b"{}") -> UpstreamExchange:
    return await upstream.relay(upstream.head(b"POST", b"/v1/x", [(b"accept", b"*/*")]), content)


async def body_of(answering: UpstreamExchange) -> bytes:
    return b"".join([chunk async for chunk in answering])


async def soon(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("It never came to that.")


async def arriving(*pieces: bytes | float) -> AsyncGenerator[bytes, None]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
        else:
            await asyncio.sleep(piece)


def test_one_connection_serves_one_request_after_the_other(scripted: ScriptedProvider, tell: Tell) -> None:
    async def story(upstream: Upstream) -> None:
        for _ in range(5):
            assert await body_of(await post(upstream)) == b"{}"

    tell(scripted.url, story)
    assert (scripted.connections, len(scripted.requests)) == (1, 5)


@pytest.mark.parametrize(
    "spoilt",
    [
        answer(b"{}", b"connection: close"),
        answer(b"{}") + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nevil!",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["close", "a second answer", "HTTP/1.0"],
)
def test_a_connection_that_is_spoilt_is_not_used_again(scripted: ScriptedProvider, tell: Tell, spoilt: bytes) -> None:
    scripted.then(spoilt)

    async def story(upstream: Upstream) -> None:
        for _ in range(2):
            assert await body_of(await post(upstream)) == b"{}"

    tell(scripted.url, story)
    assert scripted.connections == 2


def test_what_comes_while_nobody_asks_is_nobodys_answer(scripted: ScriptedProvider, tell: Tell) -> None:
    scripted.then(answer(), 0.1, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nevil!")

    async def story(upstream: Upstream) -> None:
        assert await body_of(await post(upstream)) == b"{}"
        await soon(lambda: not upstream._pool._idle)
        assert await body_of(await post(upstream)) == b"{}"

    tell(scripted.url, story)
    assert scripted.connections == 2


@pytest.mark.parametrize(("steps", "seconds"), [((answer(), 0.05, "close"), 60.0), ((answer(),), 0.05)])
def test_an_idle_connection_that_the_provider_closes_or_that_expires_is_forgotten(
    scripted: ScriptedProvider, tell: Tell, monkeypatch: pytest.MonkeyPatch, steps: Any, seconds: float
) -> None:
    scripted.then(*steps)
    monkeypatch.setattr(connections, "IDLE_SECONDS", seconds)

    async def story(upstream: Upstream) -> None:
        await body_of(await post(upstream))
        await soon(lambda: not upstream._pool._all)

    tell(scripted.url, story)


def test_each_request_has_a_connection_and_only_so_many_stay_idle(
    scripted: ScriptedProvider, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(upstream: Upstream) -> None:
        async def side_by_side(count: int) -> None:
            exchanges = await asyncio.gather(*(post(upstream) for _ in range(count)))
            await asyncio.gather(*(body_of(each) for each in exchanges))

        await side_by_side(40)
        assert len(upstream._pool._idle) == 40
        monkeypatch.setattr(upstreams, "MOST_IDLE", 2)
        monkeypatch.setattr(upstreams, "SURPLUS_SECONDS", 0.01)
        await side_by_side(40)
        await soon(lambda: len(upstream._pool._idle) == 2)

    tell(scripted.url, story)
    assert scripted.connections == 40


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_request_is_repeated_once_where_an_idle_connection_turns_out_closed(
    scripted: ScriptedProvider, tell: Tell, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    monkeypatch.setattr(upstreams, "STALE_SECONDS", 60.0)
    scripted.then(answer()).then(end).then(answer(b"again"))

    async def story(upstream: Upstream) -> None:
        await body_of(await post(upstream))
        assert await body_of(await post(upstream)) == b"again"

    tell(scripted.url, story)
    assert (scripted.connections, len(scripted.requests)) == (2, 3)


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
@pytest.mark.parametrize("used", [True, False], ids=["an idle connection", "a new connection"])
@pytest.mark.parametrize("steps", [("close",), (0.1, "reset")], ids=["at once", "after a while"])
def test_a_request_that_changes_nothing_is_repeated_once_wherever_its_connection_is_closed(
    scripted: ScriptedProvider, tell: Tell, monkeypatch: pytest.MonkeyPatch, method: bytes, used: bool, steps: Any
) -> None:
    monkeypatch.setattr(upstreams, "STALE_SECONDS", 0.05)

    async def get(upstream: Upstream) -> UpstreamExchange:
        return await upstream.relay(upstream.head(method, b"/v1/models", []), b"")

    async def story(upstream: Upstream) -> None:
        if used:
            scripted.then(answer())
            await body_of(await post(upstream))
        scripted.then(*steps).then(answer(b"", status=b"204 No Content"))
        assert (await get(upstream)).status == 204
        scripted.then("close").then("close").then(answer())
        with pytest.raises(UpstreamDisconnected, match="before it answered"):
            await get(upstream)

    tell(scripted.url, story)
    assert len(scripted.requests) == used + 4


@pytest.mark.parametrize(
    ("steps", "content", "fresh", "stale"),
    [
        (("close",), lambda: b"{}", True, 60.0),
        (("close",), lambda: arriving(b"{}"), False, 60.0),
        ((b"H", "close"), lambda: b"{}", False, 60.0),
        ((0.1, "close"), lambda: b"{}", False, 0.05),
    ],
    ids=["a new connection", "a body that is gone", "a byte came", "after a while"],
)
def test_otherwise_no_request_is_repeated(
    scripted: ScriptedProvider,
    tell: Tell,
    monkeypatch: pytest.MonkeyPatch,
    steps: Any,
    content: Callable[[], Any],
    fresh: bool,
    stale: float,
) -> None:
    monkeypatch.setattr(upstreams, "STALE_SECONDS", stale)
    if not fresh:
        scripted.then(answer())
    scripted.then(*steps)

    async def story(upstream: Upstream) -> None:
        if not fresh:
            await body_of(await post(upstream))
        with pytest.raises(UpstreamDisconnected, match="before it answered"):
            await post(upstream, content())

    tell(scripted.url, story)
    assert len(scripted.requests) == (1 if fresh else 2)


@pytest.mark.parametrize(
    ("steps", "body", "error"),
    [
        ((stream_head(), chunked(b"a"), "close"), b"a", UpstreamDisconnected),
        ((stream_head(), chunked(b"a"), "reset"), None, UpstreamDisconnected),
        ((stream_head(), chunked(b"a"), b"zz\r\n"), b"a", UpstreamDisconnected),
        ((stream_head() + chunked(b"a"), "hang"), b"a", UpstreamTimedOut),
        ((open_stream_head(), b"a", "close"), b"a", None),
        ((stream_head(), chunked(b"a"), LAST_CHUNK), b"a", None),
    ],
    ids=["cut", "reset", "garbage", "silence", "until close", "whole"],
)
def test_what_arrived_is_handed_over_before_the_news_that_no_more_comes(
    scripted: ScriptedProvider, tell: Tell, steps: Any, body: bytes | None, error: type[StenoError] | None
) -> None:
    scripted.then(*steps)

    async def story(upstream: Upstream) -> None:
        answering, came, raised = await post(upstream), b"", None
        try:
            async for chunk in answering:
                came += chunk
        except StenoError as caught:
            raised = type(caught)
        await answering.close()
        assert (came if body is not None else None, raised) == (body, error)

    tell(scripted.url, story, between_bytes=0.2 if "hang" in steps else 30)


def test_silence_before_the_answer_takes_as_long_as_is_allowed(scripted: ScriptedProvider, tell: Tell) -> None:
    scripted.then(0.3, answer()).then("hang")

    async def answered(upstream: Upstream) -> None:
        assert await body_of(await post(upstream)) == b"{}"

    async def given_up(upstream: Upstream) -> None:
        with pytest.raises(UpstreamTimedOut, match="accepted the request"):
            await post(upstream)

    tell(scripted.url, answered, between_bytes=0.1)
    tell(scripted.url, given_up, first_byte=0.1)


def test_no_more_is_taken_than_is_read(scripted: ScriptedProvider, tell: Tell) -> None:
    body = bytes(64 << 20)
    scripted.then(answer(body))

    async def story(upstream: Upstream) -> None:
        answering = await post(upstream)
        await asyncio.sleep(0.3)
        taken = scripted.sent
        assert taken < 16 << 20  # What the kernel holds for both sides.
        assert sum([len(chunk) async for chunk in answering]) == len(body)

    tell(scripted.url, story)


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_goes_up_as_it_arrives(scripted: ScriptedProvider, tell: Tell, declared: bool) -> None:
    pieces = [bytes([number]) * (200 << 10) for number in range(20)]

    async def story(upstream: Upstream) -> None:
        headers = [(b"content-length", b"%d" % (20 * (200 << 10)))] if declared else []
        answering = await upstream.relay(upstream.head(b"PUT", b"/v1/x", headers), arriving(*pieces, 0.0, b""))
        assert await body_of(answering) == b"{}"
        await body_of(await post(upstream, bytes(LARGE)))

    tell(scripted.url, story)
    assert [request.body for request in scripted.requests] == [b"".join(pieces), bytes(LARGE)]


def test_a_body_that_arrives_slowly_may_take_longer_than_a_connection_may_be_idle(
    scripted: ScriptedProvider, tell: Tell
) -> None:
    async def story(upstream: Upstream) -> None:
        await body_of(await post(upstream))
        [connection] = upstream._pool._idle
        assert connection.deadline < connections.NEVER

        async def slowly() -> AsyncGenerator[bytes, None]:
            yield b"slow"
            assert connection.deadline == connections.NEVER
            yield b"ly"

        assert await body_of(await post(upstream, slowly())) == b"{}"

    tell(scripted.url, story)
    assert [request.body for request in scripted.requests] == [b"{}", b"slowly"]
    assert scripted.connections == 1


@contextmanager
def served(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A provider that does one thing with each connection."""

    def accept() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                accepted.settimeout(30)
                serve(accepted)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)


TOO_LARGE = b"HTTP/1.1 413 No\r\ncontent-length: 2\r\n\r\nno"


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "leaves"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "arriving"])
def test_a_refusal_that_comes_before_the_request_is_sent_is_the_answer(tell: Tell, stays: bool, whole: bool) -> None:
    left = threading.Event()

    def refuse(caller: socket.socket) -> None:
        caller.recv(1 << 16)
        caller.sendall(TOO_LARGE)
        if not stays:  # To close at once would reset the connection, and what was not read yet would be lost.
            caller.shutdown(socket.SHUT_WR)
        left.wait(30)

    async def story(upstream: Upstream) -> None:
        content = bytes(64 << 20) if whole else arriving(*[bytes(1 << 20)] * 64)
        answering = await post(upstream, content)
        assert (answering.status, await body_of(answering)) == (413, b"no")
        assert not upstream._pool._idle
        left.set()

    with served(refuse) as url:
        tell(url, story)


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "arriving"])
def test_a_provider_that_takes_no_more_of_a_request_is_given_up(tell: Tell, whole: bool) -> None:
    left = threading.Event()

    async def story(upstream: Upstream) -> None:
        content = bytes(64 << 20) if whole else arriving(*[bytes(1 << 20)] * 64)
        with pytest.raises(UpstreamTimedOut):
            await post(upstream, content)
        left.set()

    def take_nothing(_: socket.socket) -> None:
        left.wait(30)

    with served(take_nothing) as url:
        tell(url, story, between_bytes=0.3)


def test_an_answer_that_is_given_up_closes_its_connection(scripted: ScriptedProvider, tell: Tell) -> None:
    scripted.then(stream_head(), chunked(b"a"), "hang").then(answer())

    async def story(upstream: Upstream) -> None:
        answering = await post(upstream)
        assert await anext(answering) == b"a"
        await answering.close()
        await soon(lambda: scripted.requests[0].closed_at is not None)
        with pytest.raises(UpstreamDisconnected):
            await body_of(answering)
        whole = await post(upstream)
        await soon(lambda: bool(upstream._pool._idle))
        await whole.close()
        assert upstream._pool._idle  # It was complete: nothing was given up.

    tell(scripted.url, story)


def test_a_caller_that_is_cancelled_at_any_turn_of_the_loop_leaves_nothing(
    scripted: ScriptedProvider, tell: Tell
) -> None:
    async def story(upstream: Upstream) -> None:
        async def whole(content: Any) -> None:
            answering = await post(upstream, content)
            try:
                await body_of(answering)
            finally:
                await answering.close()

        for turns in range(30):
            for content in (b"{}", arriving(b"a" * 300_000, 0.0, b"b")):
                asking = asyncio.create_task(whole(content))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait({asking})
                await asyncio.sleep(0.002)
                assert upstream._pool._all == {*upstream._pool._idle}
        assert await body_of(await post(upstream)) == b"{}"

    tell(scripted.url, story)


def test_a_source_that_fails_breaks_the_request_off(scripted: ScriptedProvider, tell: Tell) -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"a"
        raise LookupError

    async def story(upstream: Upstream) -> None:
        with pytest.raises(LookupError):
            await upstream.relay(upstream.head(b"POST", b"/v1/x", [(b"content-length", b"5")]), failing())
        await soon(lambda: scripted.unfinished == 1)

    tell(scripted.url, story)


def test_a_host_that_is_not_there_is_unreachable(tell: Tell) -> None:
    async def story(upstream: Upstream) -> None:
        with pytest.raises(UpstreamUnreachable, match="No connection to the provider at"):
            await post(upstream)

    tell(f"http://127.0.0.1:{closed_port()}", story)
    tell(f"http://localhost:{closed_port()}", story)
    tell("http://nowhere.invalid", story)
    tell(f"http://{'a' * 64}.example", story)


def test_a_host_that_does_not_answer_is_unreachable_in_time(tell: Tell) -> None:
    """Nor does it where TLS is not spoken."""

    async def story(upstream: Upstream) -> None:
        with pytest.raises(UpstreamUnreachable):
            await post(upstream)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        tell(f"https://127.0.0.1:{silent.getsockname()[1]}", story, connect=0.2)


async def test_an_address_that_leads_nowhere_costs_a_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are tried meanwhile, one family after the other; those that come nowhere are given up."""
    tried: list[str] = []

    async def connected(address: Any) -> socket.socket:
        tried.append(name := address[1])
        if "refused" in name:
            raise ConnectionRefusedError
        if "there" not in name:
            await asyncio.sleep(60)
        return socket.socket()

    async def found(host: str, _port: int, **_: Any) -> list[Any]:
        return [(family, name) for name in host.split(", ") for family in name[:1]]

    monkeypatch.setattr(upstreams, "_connected", connected)
    monkeypatch.setattr(upstreams, "HEAD_START", 0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    (await upstreams.dial("6 refused, 6 black hole, 6 there, 4 black hole, 4 too late", 1)).close()
    assert tried == ["6 refused", "4 black hole", "6 black hole", "4 too late", "6 there"]
    with pytest.raises(ConnectionRefusedError):
        await upstreams.dial("6 refused, 6 refused", 1)
    dialled = asyncio.create_task(upstreams.dial("6 black hole, 6 black hole", 1))
    await asyncio.sleep(0.1)
    dialled.cancel()
    await asyncio.wait({dialled})
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for `localhost` and 127.0.0.1, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    made = tmp_path_factory.mktemp("tls")
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=steno -keyout k -out c"
    )
    subprocess.run([*command.split(), "-addext", names], cwd=made, check=True, capture_output=True)  # noqa: S603
    return made


@contextmanager
def over_tls(authority: Path, seen: list[Any]) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority / "c", authority / "k")
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.sni_callback = lambda _, name, __: seen.append(name)

    def serve(caller: socket.socket) -> None:
        try:
            with context.wrap_socket(caller, server_side=True) as secure:
                seen.append(secure.selected_alpn_protocol())
                length = LARGE + 2
                while length > 0:
                    received = secure.recv(1 << 16)
                    length -= len(received.rpartition(b"\r\n\r\n")[2])
                secure.sendall(answer(bytes(LARGE)))
                secure.recv(1)
        except OSError as error:
            seen.append(type(error))

    with served(serve) as url:
        yield int(url.rpartition(":")[2])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_tls_names_the_host_and_speaks_http_1(
    tell: Tell, authority: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    context = ssl.create_default_context(cafile=str(authority / "c"))
    monkeypatch.setattr("httpx2.create_ssl_context", lambda **_: context)
    upstreams.trust.cache_clear()
    seen: list[Any] = []

    async def story(upstream: Upstream) -> None:
        assert await body_of(await post(upstream, bytes(LARGE + 2))) == bytes(LARGE)

    with over_tls(authority, seen) as port:
        tell(f"https://{host}:{port}", story)
    upstreams.trust.cache_clear()
    assert seen[:2] == ["localhost" if host == "localhost" else None, "http/1.1"]


def test_neither_another_authority_than_the_systems_nor_a_certificate_for_another_host_is_trusted(
    tell: Tell, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the environment says."""
    upstreams.trust.cache_clear()
    monkeypatch.setenv("SSL_CERT_FILE", str(authority / "c"))
    context = ssl.create_default_context(cafile=str(authority / "c"))
    seen: list[Any] = []

    async def story(upstream: Upstream) -> None:
        with pytest.raises(UpstreamUnreachable):
            await post(upstream)

    with over_tls(authority, seen) as port:
        tell(f"https://localhost:{port}", story)
    assert issubclass(seen[-1], ssl.SSLError)
    with over_tls(authority, seen) as port:
        monkeypatch.setattr(upstreams, "trust", lambda: context)
        tell(f"https://127.0.0.2:{port}", story)
