"""Steno between three faulty networks: to its database, its provider and its summariser."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import count
from typing import Any, Literal

import asyncpg
import pytest

from app.http.upstream import Pool
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.histories import chat, turns
from tests.e2e.raw import Answer, connected, read_answer, request_bytes
from tests.e2e.running import Steno
from tests.faults.proxy import FaultProxy

Target = Literal["database", "upstream", "summariser"]

PROVIDERS: tuple[Target, ...] = ("upstream", "summariser")
TTL_SECONDS = 2.0
DATABASE_SECONDS = 0.25
WAIT_SECONDS = 4.0
"""That a request waits for a summary."""
BOUND_SECONDS = 15.0
"""What any request may take, on a busy machine."""
SETTLE_SECONDS = 20.0
CONNECT_SECONDS = 0.5
PATIENCE: Mapping[str, Any] = {
    "first_byte_seconds": 1.0,
    "between_bytes_seconds": 0.6,
    "discover_windows": True,
}
PROVIDER_SECONDS: float = CONNECT_SECONDS + PATIENCE["first_byte_seconds"] + PATIENCE["between_bytes_seconds"]

_numbers = count(1)


def fresh_history() -> list[Any]:
    """About 6,300 tokens that nobody has seen: over the trigger of the window of 8,000, and within it."""
    return turns(15, first=100 * next(_numbers))


@dataclass(slots=True)
class Scene:
    """A running Steno, and the networks around it."""

    simulator: Simulator
    proxies: Mapping[Target, FaultProxy]
    database_url: str
    """Past the proxy."""
    standing: Counter[str] = field(default_factory=Counter)
    """The tasks of an idle Steno: so many of each name."""
    steno: Steno = field(init=False)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(32))

    def start(self) -> None:
        # The same model everywhere; the summariser is another upstream, so that its faults are its own.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("app.main.CONNECT_SECONDS", CONNECT_SECONDS)
            self.steno = running.start(
                self.proxies["upstream"].url,
                {
                    "upstream": PATIENCE,
                    "upstreams": {"other": {**PATIENCE, "base_url": f"{self.proxies['summariser'].url}/v1"}},
                    "summary": {"upstream": "other", "timeout_seconds": 1.5},
                    "compaction": {"wait_seconds": WAIT_SECONDS},
                    "storage": {"url": self.proxies["database"].url, "timeout_seconds": DATABASE_SECONDS},
                },
            )
        services = self.steno.services
        services.store.guard._open_seconds = 0.3
        services.store.lease_ttl_ms = round(TTL_SECONDS * 1000)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        writing = self.steno.services.store.writes._task
        assert writing is not None
        return writing.get_loop()

    def ask(self, messages: list[Any], *, stream: bool, within: float = BOUND_SECONDS) -> Answer | None:
        """The whole answer, within so many seconds; None if the connection was closed before its end."""
        body = chat(messages, stream=stream)
        began = time.monotonic()
        try:
            with connected(self.steno.url, within) as connection:
                connection.sendall(request_bytes(body))
                return read_answer(connection)
        except (HTTPException, ConnectionError):
            return None
        finally:
            took = time.monotonic() - began
            assert took < within, f"the answer took {took:.1f} s, and {within:g} s are allowed"

    def asking(self, messages: list[Any], *, stream: bool, within: float = BOUND_SECONDS) -> Future[Answer | None]:
        return self.pool.submit(self.ask, messages, stream=stream, within=within)

    def heal(self) -> None:
        for proxy in self.proxies.values():
            proxy.heal()

    def settle(self) -> None:
        """What has to be so some time after every fault: nothing is under way, held or kept that should not be."""
        services = self.steno.services
        database: Any = services.store.database.engine.pool
        none_left("owned tasks", lambda: services.tasks._tasks)
        none_left("reasons to do without the database", lambda: services.store.reason)
        none_left("tasks", self.leaked_tasks)
        none_left("database connections in use", database.checkedout)
        none_left("provider connections in use", self.busy_connections)
        none_left("client connections", lambda: self.steno.server._server.server_state.connections)
        none_left("connections outside the pools", self.unpooled_connections)

    def tasks(self) -> Counter[str]:
        """Those of the server's loop, by the names of what they run."""
        coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks(self.loop)]
        return Counter(coroutine.__qualname__ for coroutine in coroutines)

    def leaked_tasks(self) -> Counter[str]:
        """Those that an idle Steno does not have."""
        return self.tasks() - self.standing

    def busy_connections(self) -> int:
        """Connections to providers with a request on them."""
        return sum(connection.exchange is not None for pool in self._pools() for connection in pool._all)

    def unpooled_connections(self) -> dict[Target, int]:
        """Connections that are open and that no pool knows."""
        pooled: dict[Target, int] = {"database": self.steno.services.store.database.engine.pool.checkedin()}  # type: ignore[attr-defined]
        for target, pool in zip(PROVIDERS, self._pools(), strict=True):
            pooled[target] = len(pool._all)
        surplus = {target: proxy.open - pooled[target] for target, proxy in self.proxies.items()}
        return {target: number for target, number in surplus.items() if number > 0}

    def _pools(self) -> list[Pool]:
        """The default upstream's, then the summariser's."""
        return [provider.upstream._pool for provider in self.steno.services.providers.all]

    def live_leases(self) -> list[float]:
        """The seconds that each of them still holds, by the database's clock."""

        async def look() -> list[float]:
            connection = await asyncpg.connect(self.database_url, timeout=10)
            try:
                rows = await connection.fetch(
                    "select expires_at / 1000.0 - extract(epoch from clock_timestamp()) as left_ from leases"
                )
            finally:
                await connection.close()
            return [float(row["left_"]) for row in rows if row["left_"] > 0]

        return asyncio.run(look())

    def stop(self) -> None:
        """Stops Steno, and looks whether a connection outlives it."""
        self.steno.stop()
        self.pool.shutdown()
        for target, proxy in self.proxies.items():
            assert proxy.wait_for(lambda proxy: not proxy.open), f"{proxy.open} connections to the {target} leaked"


def none_left(what: str, left: Callable[[], object]) -> None:
    """Waits until there are none; says which are left where that takes too long."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while still := left():
        assert time.monotonic() < deadline, f"{what}: {still}"
        time.sleep(0.02)


@contextmanager
def scene(
    simulator: Simulator, provider_url: str, database_url: str, standing: Counter[str] | None = None
) -> Iterator[Scene]:
    """The networks; Steno is started by the test, which may break one of them first."""
    urls: Mapping[Target, str] = {"database": database_url, "upstream": provider_url, "summariser": provider_url}
    with ExitStack() as networks:
        proxies = {target: networks.enter_context(FaultProxy(url)) for target, url in urls.items()}
        yield Scene(simulator, proxies, database_url, Counter(standing or ()))
