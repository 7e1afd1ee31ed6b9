"""A pooler in transaction mode, as PgBouncer is one: each transaction gets whichever connection has been free longest.

Only what tells the two apart: a caller's session is nobody's. What it prepares, locks or listens to outside a
transaction is gone, or is another caller's, by the next one. It runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit, urlunsplit

from tests.faults.in_thread import InThread

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_TLS_REQUEST = 80877103
_READY, _IDLE, _TERMINATE = b"Z", b"I", b"X"


class TransactionPooler(InThread):
    """Stands before a PostgreSQL database, which sees so many connections, however many callers there are."""

    def __init__(self, url: str, connections: int = 2) -> None:
        super().__init__("pooler")
        self._target = urlsplit(url)
        self._most = connections
        self._server: asyncio.Server
        self._free: asyncio.Queue[Streams] = asyncio.Queue()
        self._servers: list[Streams] = []
        self._callers: set[asyncio.Task[None]] = set()
        self._greeting = b""
        """What the database says to a caller that was let in."""
        self._connecting = asyncio.Lock()
        self.transactions = 0

    @property
    def url(self) -> str:
        user = self._target.netloc.rpartition("@")[0].rstrip(":") or "postgres"
        port = self._server.sockets[0].getsockname()[1]
        return urlunsplit((self._target.scheme, f"{user}@127.0.0.1:{port}", self._target.path, "", ""))

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        for task in self._callers:
            task.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)
        for _, writer in self._servers:
            writer.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._callers.add(task)
        task.add_done_callback(self._callers.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One caller, from its first word to its last."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                startup = await _startup(reader, writer)
                await self._connect(startup)
                writer.write(self._greeting)
                while await self._transaction(reader, writer):
                    self.transactions += 1
        finally:
            writer.close()

    async def _transaction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """From the caller's next word until the database has nothing open for it; False if there was no next word."""
        kind, message = await _message(reader)
        if kind == _TERMINATE:
            return False
        server_reader, server_writer = await self._free.get()
        server_writer.write(message)
        asking = asyncio.ensure_future(_copy(reader, server_writer))
        try:
            async for answered, said in _messages(server_reader):
                writer.write(said)
                # A caller that is answered says nothing before it has heard so: nothing of it is under way.
                if answered == _READY and said[-1:] == _IDLE:
                    break
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._free.put_nowait((server_reader, server_writer))
        return True

    async def _connect(self, startup: bytes) -> None:
        """The first caller opens the connections, and all are let in as it was."""
        async with self._connecting:
            while len(self._servers) < self._most:
                streams = await self._dial()
                streams[1].write(startup)
                greeting = b""
                async for kind, message in _messages(streams[0]):
                    greeting += message
                    if kind == _READY:
                        break
                self._greeting = greeting
                self._servers.append(streams)
                self._free.put_nowait(streams)

    async def _dial(self) -> Streams:
        folder = parse_qs(self._target.query).get("host")
        if folder:
            return await asyncio.open_unix_connection(f"{folder[0]}/.s.PGSQL.{self._target.port or 5432}")
        return await asyncio.open_connection(self._target.hostname, self._target.port or 5432)


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What a caller begins with, once it knows that there is no TLS here."""
    while True:
        length, code = struct.unpack("!II", await reader.readexactly(8))
        if code != _TLS_REQUEST:
            return struct.pack("!II", length, code) + await reader.readexactly(length - 8)
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Its kind, and all of it."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(struct.unpack("!I", head[1:])[0] - 4)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bytes]]:
    while True:
        yield await _message(reader)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Whole messages: it is stopped only between two of a caller that waits for its answer."""
    while True:
        writer.write((await _message(reader))[1])
