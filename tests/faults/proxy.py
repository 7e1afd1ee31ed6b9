"""A TCP proxy whose faults are switched on by name: in front of the database, a provider, a summariser.

It runs in a thread of its own, so tests with and without an event loop use it alike. What a fault hits is an
*exchange*: what the caller sends on a connection, and all that comes back before it sends again. That is one HTTP
request, or one round trip to PostgreSQL.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import parse_qs, urlsplit, urlunsplit

from tests.faults.in_thread import CONTROL_SECONDS, InThread

Name = Literal["refuse", "reset", "black hole", "delay", "drip", "cut"]
Way = Literal["up", "down"]
NAMES: tuple[Name, ...] = get_args(Name)

_RESET = struct.pack("ii", 1, 0)  # With a linger time of 0 the kernel sends RST instead of FIN.


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and where in an exchange.

    refuse      connections break, new ones are refused, until the proxy heals
    reset       the connection is reset (RST) on both sides
    black hole  the connection stays and nothing passes any more, in either direction, until the proxy heals
    delay       what follows comes later, once
    drip        what follows comes in small pieces
    cut         the connection is closed (FIN) on both sides
    """

    name: Name
    way: Way | None = None
    """Whose bytes count for `after`: the caller's (up), or the answer's (down); None: both."""
    after: int = 0
    """So many bytes of the exchange pass first."""
    seen: tuple[bytes, ...] = ()
    """What the caller has to have sent on the connection, in this order: the last of it begins the fault."""
    seconds: float = 0.1
    """How long a delay is, or a pause between two drips."""
    size: int = 100
    """Bytes of a drip."""

    @property
    def is_for_everything(self) -> bool:
        """Whether it waits for no certain place: then it hits what is under way, too."""
        return self.way is None and not self.after and not self.seen


class FaultProxy(InThread):
    """The network to one server, at first without a fault. `url` is the server's URL, through the proxy."""

    def __init__(self, url: str) -> None:
        super().__init__("faults")
        self._target = urlsplit(url)
        # Bound and never listening: the port stays ours, and refuses, while the listener is closed.
        self._reserved = _bound(0)
        self.port: int = self._reserved.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._changed = threading.Condition()
        self._fault: Fault | None = None
        self._every = 1
        self._left: int | None = None
        self._exchanges = 0
        self.injected: Counter[Name] = Counter()
        """How often each fault happened. A refusal counts once, however many connections it keeps out."""

    @property
    def url(self) -> str:
        user = self._target.netloc.rpartition("@")[0]
        if self._target.scheme.startswith("postgres"):
            user = user or "postgres"
        host = f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}"
        return urlunsplit((self._target.scheme, host, self._target.path, "", ""))

    @property
    def open(self) -> int:
        """Connections that the caller has not closed."""
        with self._changed:
            return sum(not connection.left for connection in self._connections)

    def inject(self, fault: Fault | Name, *, every: int = 1, times: int | None = None) -> None:
        """From now on, in place of what was injected before: in every so-many-th exchange, and so often at most."""
        chosen = Fault(fault) if isinstance(fault, str) else fault
        self._run(self._inject(chosen, every, times))

    def heal(self) -> None:
        """Everything passes, what was held back included."""
        self._run(self._heal())

    def wait_for(self, condition: Callable[[FaultProxy], bool], seconds: float = 30.0) -> bool:
        """Blocks until it holds after something happened here; False if it never did."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self), seconds)

    # In the proxy's own thread

    async def _inject(self, fault: Fault, every: int, times: int | None) -> None:
        await self._heal()
        self._fault, self._every, self._left, self._exchanges = fault, every, times, 0
        if not fault.is_for_everything or (every, times) != (1, None):
            return
        if fault.name == "refuse":
            await self.happen(fault)
            return
        for connection in self._connections:
            connection.begin(fault)

    async def _heal(self) -> None:
        self._fault = None
        await self._listen()
        for connection in self._connections:
            connection.heal()

    async def _listen(self) -> None:
        if self._server is None:
            listener = _bound(self.port)
            self._server = await asyncio.start_server(self._accept, sock=listener, backlog=512)

    async def _refuse(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            # Python fails to attach a connection that it has just accepted to a closed server, and leaves it open.
            for listener in server.sockets:
                self._loop.remove_reader(listener)
            await asyncio.sleep(0)
            server.close()
        for connection in set(self._connections):
            connection.end()

    async def _close(self) -> None:
        await self._refuse()
        if self._connections:
            await asyncio.wait([connection.task for connection in self._connections], timeout=CONTROL_SECONDS)
        self._reserved.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._changed:
            connection = _Connection(self, reader, writer)
            self._connections.add(connection)
            connection.task.add_done_callback(lambda _: self._forget(connection))
            self._changed.notify_all()

    def _forget(self, connection: _Connection) -> None:
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()

    def draw(self, seen: bytes) -> Fault | None:
        """The fault of an exchange that begins, or that goes on with these bytes."""
        fault = self._fault
        if fault is None or self._left == 0 or bool(fault.seen) != bool(seen):
            return None
        if fault.seen and fault.seen[-1] not in seen:
            return None
        self._exchanges += 1
        if self._exchanges % self._every:
            return None
        if self._left is not None:
            self._left -= 1
        return fault

    @property
    def awaited(self) -> tuple[bytes, ...]:
        """What a caller has to send before the fault begins."""
        return self._fault.seen if self._fault else ()

    async def happen(self, fault: Fault) -> None:
        self._happened(fault)
        if fault.name == "refuse":
            await self._refuse()

    def left(self) -> None:
        """A caller closed its connection."""
        with self._changed:
            self._changed.notify_all()

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        folder = parse_qs(self._target.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{self._target.port or 5432}")
        return await asyncio.open_connection(self._target.hostname, self._target.port or 5432)

    def _happened(self, fault: Fault) -> None:
        with self._changed:
            self.injected[fault.name] += 1
            self._changed.notify_all()


class _Connection:
    """One connection of a caller, and its exchanges."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._caller = reader, writer
        self._writers = [writer]
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._answered = True
        self._passed: Counter[Way] = Counter()
        self._seen = 0
        self._fault: Fault | None = None
        self._dripping: Fault | None = None
        self.left = False
        """The caller closed it."""
        self.task = asyncio.ensure_future(self._relay())

    def begin(self, fault: Fault | None) -> None:
        """The fault of the exchange that is under way, or begins."""
        self._fault, self._dripping = fault, None
        self._passed.clear()

    def heal(self) -> None:
        self._fault = self._dripping = None
        self._seen = 0
        self._flowing.set()

    def end(self, *, reset: bool = False) -> None:
        """Close both sides: after what passed, or at once with a RST."""
        for writer in self._writers:
            if reset:
                with suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()
        self.task.cancel()

    async def _relay(self) -> None:
        pumps: list[asyncio.Future[None]] = []
        try:
            reader, writer = await self._proxy.dial()
            self._writers.append(writer)
            pumps.append(asyncio.ensure_future(self._pump("up", self._caller[0], writer)))
            pumps.append(asyncio.ensure_future(self._pump("down", reader, self._caller[1])))
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # The server is away, or a fault ended it: the same to the caller.
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for writer in self._writers:
                writer.close()

    async def _pump(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived: asyncio.Queue[bytes] = asyncio.Queue()
        # Apart, so that a caller who leaves is noticed while nothing passes.
        reading = asyncio.ensure_future(self._read(way, reader, arrived))
        try:
            while data := await arrived.get():
                await self._pass(way, data, writer)
            await self._flowing.wait()
        except ConnectionError:
            pass
        finally:
            reading.cancel()

    async def _read(self, way: Way, reader: asyncio.StreamReader, arrived: asyncio.Queue[bytes]) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                arrived.put_nowait(data)
        arrived.put_nowait(b"")
        if way == "up":
            self.left = True
            self._proxy.left()

    async def _pass(self, way: Way, data: bytes, writer: asyncio.StreamWriter) -> None:
        if way == "up":
            self._look(data)
        else:
            self._answered = True
        await self._flowing.wait()
        fault = self._fault
        if fault is not None and fault.way in (None, way):
            before = max(0, fault.after - self._passed[way])
            if len(data) > before:
                await self._write(data[:before], writer)
                data = data[before:]
                await self._strike(fault)
        self._passed[way] += len(data)
        await self._write(data, writer)

    def _look(self, data: bytes) -> None:
        """Whether an exchange begins with these bytes, and which fault is drawn for it."""
        proxy = self._proxy
        if self._answered:
            self._answered = False
            if self._fault is None or not proxy.awaited:
                self.begin(proxy.draw(b""))
        awaited = proxy.awaited
        if not awaited:
            return
        if self._seen < len(awaited) - 1:
            self._seen += awaited[self._seen] in data
        elif (fault := proxy.draw(data)) is not None:
            self._seen = 0
            self.begin(fault)

    async def _strike(self, fault: Fault) -> None:
        self._fault = None
        await self._proxy.happen(fault)
        match fault.name:
            case "reset" | "cut" | "refuse":
                self.end(reset=fault.name == "reset")
                await asyncio.Event().wait()  # Until the cancellation arrives.
            case "black hole":
                self._flowing.clear()
                await self._flowing.wait()
            case "delay":
                await asyncio.sleep(fault.seconds)
            case "drip":
                self._dripping = fault

    async def _write(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data:
            drip = self._dripping
            piece = data[: drip.size] if drip else data
            data = data[len(piece) :]
            writer.write(piece)
            await writer.drain()
            if drip and data:
                await asyncio.sleep(drip.seconds)


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return bound
