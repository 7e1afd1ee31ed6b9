"""A compaction that another process makes."""

from __future__ import annotations

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.background import Quotas
from app.compaction.chunks import Outcome
from app.compaction.lease import CompactionJob, LeasedCompaction

TRANSCRIPT: Any = SimpleNamespace(chain=SimpleNamespace(positions={}))
REQUEST: Any = SimpleNamespace(tenant="t", place=("t", "c"), conversation=TRANSCRIPT)
BUILDER: Any = SimpleNamespace(plan=SimpleNamespace(range=None))


@pytest.mark.parametrize(
    ("seconds", "waits", "is_deleted", "outcome"),
    [
        (9.0, True, False, Outcome.AWAITED),
        (9.0, True, True, Outcome.DELETED),
        (0.0, True, False, Outcome.TAKES_TOO_LONG),
        (9.0, False, False, Outcome.TAKES_TOO_LONG),
    ],
)
async def test_it_is_waited_for_as_long_as_there_is_time_and_the_wait_is_measured(
    seconds: float, waits: bool, is_deleted: bool, outcome: Outcome
) -> None:
    async def is_busy(*_: object) -> str:
        return "busy"

    async def is_ended(*_: object) -> bool:
        return True

    async def was_revoked(*_: object) -> bool:
        return is_deleted

    measured: list[float] = []
    announced: list[bool] = []
    nothing: Any = None
    metrics: Any = SimpleNamespace(lease_waits=SimpleNamespace(observe=measured.append))
    store: Any = SimpleNamespace(take_lease=is_busy, lease_ended=is_ended, task=was_revoked)
    leased = LeasedCompaction(
        store, nothing, nothing, nothing, nothing, nothing, metrics, nothing, nothing, Quotas(1), "me"
    )
    job = CompactionJob(BUILDER, (), lambda: announced.append(True), monotonic() + seconds, waits=waits)
    compaction = await leased.make(REQUEST, job)
    assert (compaction.outcome, bool(announced), len(measured)) == (outcome, waits, int(waits))
    assert all(0 <= waited < 60 for waited in measured)
    assert leased.quotas.begin("t", "another")
