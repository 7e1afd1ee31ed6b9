"""A compaction that another process makes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.lease import LeasedCompaction


@pytest.mark.parametrize(("seconds", "ended"), [(1.0, True), (0.0, False)])
async def test_it_is_waited_for_as_long_as_there_is_time_and_the_wait_is_measured(seconds: float, ended: bool) -> None:
    async def is_ended(*_: object) -> bool:
        return True

    waits: list[float] = []
    metrics = SimpleNamespace(lease_waits=SimpleNamespace(observe=waits.append))
    store: Any = SimpleNamespace(leases=SimpleNamespace(ended=is_ended))
    request: Any = SimpleNamespace(place=("t", "c"), conversation=SimpleNamespace(chain=SimpleNamespace(positions={})))
    job: Any = SimpleNamespace(plan=SimpleNamespace(range=None), announce=lambda: None, seconds_left=seconds)
    runner: Any = SimpleNamespace(metrics=metrics)
    assert await LeasedCompaction(store, runner, "me").wait(request, job) is ended
    [waited] = waits
    assert 0 <= waited < 60
