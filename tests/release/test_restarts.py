"""A PostgreSQL of the test's own that is ended, without a checkpoint, while a summary is made."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from lab.simulator import Simulator
from tests.chaos.cluster import Postgres
from tests.e2e.commands import until
from tests.e2e.running import StartSteno
from tests.e2e.test_outages import BOUND_SECONDS, ask, soft, told

RESTARTS = 20


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server of this test's own: the others' must not be ended."""
    # Not pytest's folder: as root the server opens every parent of its data to others.
    with tempfile.TemporaryDirectory(prefix="steno-restart-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder))
        asyncio.run(server.prepare())
        yield server
        with suppress(Exception):  # It deletes what the folder's own end deletes, too.
            server.stop()


@pytest.mark.timeout(30 * RESTARTS)
def test_a_database_that_restarts_while_a_summary_is_made_costs_no_second_one(
    steno: StartSteno, simulator: Simulator, postgres: Postgres
) -> None:
    """Ended at once, without a checkpoint: the lease's row is still there, and the commit is repeated until it is
    acknowledged."""
    served = steno(storage={"url": postgres.url, "timeout_seconds": BOUND_SECONDS})
    simulator.summary_default = type(simulator.summary_default)(delay=0.7)

    def restart(number: int) -> None:
        until(lambda: served.services.store.reason is None)
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask, served.url, soft(number), stream=bool(number % 2))
            assert simulator.wait_for(lambda _: len(simulator.summaries) == number)
            asyncio.run(postgres.crash(1.2))  # The summary comes meanwhile, and cannot be stored yet.
            assert asking.result().status == 200
        until(lambda: _stored(postgres.url) == (number, 0))

    for number in range(1, RESTARTS + 1):
        restart(number)
    assert len(simulator.summaries) == RESTARTS
    until(lambda: served.services.store.reason is None)
    for number in range(1, RESTARTS + 1):
        assert told(ask(served.url, soft(number))) == (["summarized", "user_words"], None)
    assert len(simulator.summaries) == RESTARTS


def _stored(url: str) -> tuple[int, int]:
    """How many chunks and leases."""

    async def look() -> tuple[int, int]:
        connection = await asyncpg.connect(url, timeout=10)
        try:
            chunks = await connection.fetchval("select count(*) from summary_chunks")
            leases = await connection.fetchval("select count(*) from leases")
        finally:
            await connection.close()
        return int(chunks), int(leases)

    return asyncio.run(look())
