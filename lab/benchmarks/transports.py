"""Cost of carrying a request to the provider, by client: the CPU of a whole relay.

    python -m lab.benchmarks.transports [--seconds 2] [--rounds 3] [--connections 1 32 400]

A provider in a process of its own answers 4 KB with a small completion. Each client posts to it over so many
connections and reads the answer; the rounds are interleaved, and a row is the median. aiohttp and pyreqwest are
measured where they are installed. Only ratios within one run mean anything.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import multiprocessing
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import uvloop

from app.http.hops import new_instance
from app.http.upstream import Upstream

BODY = b"{" + b" " * 4_094 + b"}"
TARGET = b"/v1/chat/completions"
HEADERS = [
    (b"authorization", b"Bearer sk-test"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"OpenAI/Python 3.52.0"),
    (b"accept", b"application/json"),
    (b"x-stainless-lang", b"python"),
    (b"x-stainless-os", b"Linux"),
    (b"x-stainless-runtime", b"CPython"),
    (b"x-stainless-retry-count", b"0"),
    (b"accept-encoding", b"identity"),
]
ANSWER_BODY = b'{"choices":[{"message":{"role":"assistant","content":"' + b"a" * 400 + b'"}}]}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-request-id: req_0123456789\r\nopenai-processing-ms: 12\r\n"
    b"x-ratelimit-limit-requests: 10000\r\nx-ratelimit-remaining-requests: 9999\r\nopenai-version: 2020-10-01\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(ANSWER_BODY), ANSWER_BODY)
)

Post = Callable[[], Awaitable[bytes]]


class _Provider(asyncio.Protocol):
    """Answers once a body of the usual length has come."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._head, self._left = transport, b"", -1

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            _, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            self._head, self._left, data = b"", len(BODY), rest
        self._left -= len(data)
        if self._left <= 0:
            self._left = -1
            self._transport.write(ANSWER)


def _provide(port: Any) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Provider, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


@asynccontextmanager
async def _own(port: int) -> AsyncIterator[Post]:
    upstream = Upstream(f"http://127.0.0.1:{port}/v1", 5, 600, 120, new_instance())

    async def post() -> bytes:
        answering = await upstream.relay(upstream.head(b"POST", TARGET, HEADERS), BODY)
        return b"".join([chunk async for chunk in answering.chunks()])

    yield post
    await upstream.close()


@asynccontextmanager
async def _httpx2(port: int) -> AsyncIterator[Post]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
    url = httpx2.URL(f"http://127.0.0.1:{port}")
    timeout = {"connect": 5.0, "pool": 5.0, "read": 600.0, "write": 120.0}
    async with httpx2.AsyncClient(limits=limits, trust_env=False) as client:

        async def post() -> bytes:
            extensions = {"target": TARGET, "timeout": timeout}
            request = httpx2.Request("POST", url, headers=HEADERS, content=BODY, extensions=extensions)
            response = await client.send(request, stream=True)
            body = b"".join([chunk async for chunk in response.aiter_raw()])
            await response.aclose()
            return body

        yield post


@asynccontextmanager
async def _aiohttp(port: int) -> AsyncIterator[Post]:
    import aiohttp  # type: ignore[import-not-found]  # noqa: PLC0415 - where it is installed

    headers = [(name.decode(), value.decode()) for name, value in HEADERS]
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def post() -> bytes:
            url = f"http://127.0.0.1:{port}{TARGET.decode()}"
            async with session.post(url, data=BODY, headers=headers, allow_redirects=False) as response:
                body: bytes = await response.read()
                return body

        yield post


@asynccontextmanager
async def _pyreqwest(port: int) -> AsyncIterator[Post]:
    from pyreqwest.client import ClientBuilder  # type: ignore[import-not-found]  # noqa: PLC0415 - where it is installed

    headers = [(name.decode(), value.decode()) for name, value in HEADERS]
    async with ClientBuilder().build() as client:

        async def post() -> bytes:
            url = f"http://127.0.0.1:{port}{TARGET.decode()}"
            response = await client.post(url).headers(headers).body_bytes(BODY).build().send()
            return bytes(await response.bytes())

        yield post


CLIENTS = {"own": _own, "aiohttp": _aiohttp, "pyreqwest": _pyreqwest, "httpx2": _httpx2}


async def _microseconds(
    client: Callable[[int], Any], port: int, connections: int, seconds: float
) -> tuple[float, float]:
    """CPU of this process and requests a second."""
    async with client(port) as post:
        number, until = 0, time.monotonic() + seconds

        async def repeat() -> None:
            nonlocal number
            while time.monotonic() < until:
                if await post() != ANSWER_BODY:
                    raise RuntimeError("The answer is another one.")
                number += 1

        await post()
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.gather(*(repeat() for _ in range(connections)))
        return (time.process_time() - cpu) / number * 1e6, number / (time.monotonic() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 400])
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    provider = multiprocessing.get_context("spawn").Process(target=_provide, args=(there,), daemon=True)
    provider.start()
    port = here.recv()
    installed = {name: client for name, client in CLIENTS.items() if name == "own" or importlib.util.find_spec(name)}
    try:
        for connections in given.connections:
            rows: dict[str, list[tuple[float, float]]] = {name: [] for name in installed}
            for _ in range(given.rounds):
                for name, client in installed.items():
                    rows[name].append(uvloop.run(_microseconds(client, port, connections, given.seconds)))
            for name, row in rows.items():
                cpu, rate = (statistics.median(figures) for figures in zip(*row, strict=True))
                print(f"{connections:4} connections  {name:10} {cpu:7.0f} µs CPU a relay {rate:8.0f} requests/s")
    finally:
        provider.terminate()


if __name__ == "__main__":
    main()
