"""Many requests of one conversation over several processes: one summary, and everybody goes on once it is there.

How soon is measured by `make waiters`; here is only a generous bound.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from app.runtime.server import RunningServer
from lab.simulator import Simulator
from tests.e2e.crowds import replicas, send_crowd

REQUESTS = 200
PROCESSES = 4


@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url"])
def test_a_crowd_over_four_processes_pays_for_one_summary(
    simulator: Simulator, provider: RunningServer, tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """Nobody makes a second one, and nobody queues: all go on together."""
    url = request.getfixturevalue(database)
    # A generous bound for the database: how busy the machine is is not what this is about.
    with replicas(PROCESSES, url, provider.url, tmp_path, STENO_STORAGE__TIMEOUT_SECONDS="10") as servings:
        seen = send_crowd(simulator, servings, REQUESTS, summary_seconds=4.0)
    assert seen.statuses == {"summarized": REQUESTS}
    assert seen.summaries == 1
    assert len({record.body for record in simulator.chats}) == 1
    assert seen.arrivals[-1] < 10
