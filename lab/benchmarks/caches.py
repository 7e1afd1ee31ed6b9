"""Worth of each cache on a request's way: CPU that Steno takes for a request without it, divided by that with it.

    python -m lab.benchmarks.caches [--rounds 20] [--seconds 0.25] [--only heads terms]

Two Stenos with their own SQLite file stand before one provider, one of them without the cache. They get the same
requests in turns, the one or the other first: a round is a pair. A row has the median ratio of the pairs with its
quartiles, and the ratio of the cheapest rounds, which others on the machine disturbed least. Each body is posted over
and over: a turn of a conversation that was seen. Only the ratios mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import uvloop

from lab.benchmarks.talks import message

BODIES = {"600 B": 1, "20 KB": 36, "400 KB": 720}
"""Messages of a body."""
CONNECTIONS = {"600 B": 32, "20 KB": 32, "400 KB": 4}
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)
_ANSWER_BODY = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a" * 400}, "finish_reason": "stop"}],
    }
).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_ANSWER_BODY),
    _ANSWER_BODY,
)


class _Messages(asyncio.Protocol):
    """Reads requests or answers, each with a length."""

    def __init__(self, whole: Callable[[Any], None]) -> None:
        self._whole = whole
        self._head, self._left = b"", -1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            length = _LENGTH.search(head)
            if head.startswith(b"HTTP") and b" 200 " not in head[:20]:
                raise RuntimeError(f"Steno answered {head[:60]!r} {rest[:300]!r}")
            self._head, self._left, data = b"", int(length[1]) if length else 0, rest
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._whole(self)


def _provide(port: Any) -> None:
    async def run() -> None:
        def answer(to: _Messages) -> None:
            to.transport.write(ANSWER)

        server = await asyncio.get_running_loop().create_server(lambda: _Messages(answer), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


def _nothing(*_: object) -> None:
    """Stand in for a look-up that finds nothing, and for what would keep something."""


def _off(*targets: str, by: Any = _nothing) -> Callable[[], None]:
    """Replace what a cache finds or keeps, in the process that is to do without it."""

    def switch() -> None:
        for target in targets:
            patch(target, by).start()

    return switch


def _without_prepared() -> None:
    from sqlalchemy import JSON, Text, bindparam  # noqa: PLC0415

    from app.store.clock import now_ms  # noqa: PLC0415
    from app.store.database import insert_into  # noqa: PLC0415
    from app.store.prepared import Prepared, PreparedInsert  # noqa: PLC0415

    async def run(self: Any, connection: Any, **given: str) -> list[Any]:
        result = await connection.execute(self._build(connection), given)
        return [tuple(row) for row in result] if result.returns_rows else []

    async def write(self: Any, connection: Any, rows: Any) -> list[Any]:
        names = [f"of_{column.name}" for column in self._columns]
        values: dict[str, Any] = {name: now_ms() for name in self._clocks}
        for name, column in zip(names, self._columns, strict=True):
            values[column.name] = bindparam(name, type_=Text() if isinstance(column.type, JSON) else column.type)
        statement = self._finish(connection, insert_into(connection, self._table).values(values))
        await connection.execute(statement, [dict(zip(names, row, strict=True)) for row in rows])
        return []

    Prepared.run = run  # type: ignore[method-assign]
    PreparedInsert.write = write  # type: ignore[method-assign]


WITHOUT: Mapping[str, Callable[[], None]] = {
    "heads": _off("app.edge.heads.KnownHead.of"),
    "admission": _off("app.edge.asgi.SameHead.app", by=property(_nothing, _nothing)),
    "terms": _off("app.proxy.intake.known_terms"),
    "envelopes": _off("app.wire.envelopes.Envelopes.find", "app.wire.envelopes.Envelopes.keep"),
    "beginnings": _off("app.wire.beginnings.Beginnings.find", "app.wire.beginnings.Beginnings.keep"),
    "coalescing": _off("app.edge.coalescing.Turn.takes"),
    "prepared": _without_prepared,
}
MATTERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(WITHOUT, ("600 B",)),
    "envelopes": ("600 B", "20 KB"),
    "beginnings": ("400 KB",),
}
"""Bodies that each has to do with."""


def _serve(pipe: Any, without: str, provider: int, folder: str) -> None:
    """Serve, and send the CPU so far whenever something is received."""
    from app.edge.protocol import protocol_within  # noqa: PLC0415
    from app.main import create_app  # noqa: PLC0415
    from app.runtime.server import serve  # noqa: PLC0415
    from app.settings import load  # noqa: PLC0415

    if without:
        WITHOUT[without]()
    settings = load(
        storage={"url": f"sqlite:///{folder}/steno.db"},
        upstream={"base_url": f"http://127.0.0.1:{provider}/v1", "discover_windows": False},
        models=[{"match": "*", "context_window": 4_000_000}],
        secret="a secret for the benchmark",  # noqa: S106 - nobody else gets there
    )
    limits = settings.limits
    http = protocol_within(limits.receive_seconds, limits.connections)
    with serve(create_app(settings), http=http, lifespan="on") as server:
        pipe.send(server.port)
        while pipe.recv():
            pipe.send(time.process_time())


class _Steno:
    def __init__(self, without: str, provider: int, folder: Path) -> None:
        folder.mkdir()
        self._pipe, theirs = multiprocessing.Pipe()
        made = multiprocessing.get_context("spawn").Process
        self._process = made(target=_serve, args=(theirs, without, provider, str(folder)), daemon=True)
        self._process.start()
        self.port = self._pipe.recv()

    def cpu(self) -> float:
        self._pipe.send(True)
        used: float = self._pipe.recv()
        return used

    def stop(self) -> None:
        self._pipe.send(False)
        self._process.join(20)


async def _post(port: int, body: bytes, connections: int, seconds: float) -> int:
    """Post over so many connections for so long. Returns the number of answers."""
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-test\r\n"
        b"content-type: application/json\r\nuser-agent: OpenAI/Python 3.52.0\r\naccept: application/json\r\n"
        b"x-stainless-lang: python\r\nx-stainless-os: Linux\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    until, number, loop = time.monotonic() + seconds, 0, asyncio.get_running_loop()
    ended = [loop.create_future() for _ in range(connections)]

    async def begin(end: asyncio.Future[None]) -> None:
        def answered(to: _Messages) -> None:
            nonlocal number
            number += 1
            if time.monotonic() < until:
                to.transport.write(request)
            else:
                to.transport.close()
                end.set_result(None)

        transport, _ = await loop.create_connection(lambda: _Messages(answered), "127.0.0.1", port)
        transport.write(request)

    await asyncio.gather(*(begin(end) for end in ended))
    await asyncio.gather(*ended)
    return number


def _cost(steno: _Steno, body: bytes, connections: int, seconds: float) -> float:
    """Microseconds of CPU for each request, with what is stored of it."""
    before = steno.cpu()
    number = uvloop.run(_post(steno.port, body, connections, seconds))
    time.sleep(0.3)  # What was recorded is stored.
    return (steno.cpu() - before) / number * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--only", nargs="+", default=[*WITHOUT], choices=[*WITHOUT])
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    provider = multiprocessing.get_context("spawn").Process(target=_provide, args=(there,), daemon=True)
    provider.start()
    port = here.recv()
    print(
        f"{'without':>11} {'body':>7} {'µs with':>8} {'µs without':>10} {'ratio':>6} {'quartiles':>13} {'cheapest':>8}"
    )
    for without in given.only:
        with tempfile.TemporaryDirectory() as folder:
            both = {name: _Steno(name, port, Path(folder) / (name or "with")) for name in ("", without)}
            for size in MATTERS[without]:
                random = Random(size)
                history = b",".join(message(random) for _ in range(BODIES[size]))
                body = b'{"model":"gpt-4o","messages":[%b],"temperature":0.7}' % history
                rows: dict[str, list[float]] = {name: [] for name in both}
                for steno in both.values():
                    _cost(steno, body, CONNECTIONS[size], given.seconds)
                for number in range(given.rounds):
                    for name in sorted(both, reverse=number % 2 == 1):
                        rows[name].append(_cost(both[name], body, CONNECTIONS[size], given.seconds))
                _show(without, size, rows[""], rows[without])
            for steno in both.values():
                steno.stop()
    provider.terminate()


def _show(without: str, size: str, with_it: list[float], without_it: list[float]) -> None:
    pairs = [a / b for a, b in zip(without_it, with_it, strict=True)]
    low, ratio, high = statistics.quantiles(pairs, n=4)
    cheapest = min(without_it) / min(with_it)
    taken = f"{statistics.median(with_it):>8.0f} {statistics.median(without_it):>10.0f}"
    print(f"{without:>11} {size:>7} {taken} {ratio:>6.3f} {low:>6.3f} {high:>6.3f} {cheapest:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
