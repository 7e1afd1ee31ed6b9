"""Workers: how long a place stays empty, and what each of several processes may hold."""

from __future__ import annotations

from typing import Any

import pytest

from app.commands.workers import Worker
from app.settings import load

NOTHING: Any = None


def ended_after(*lives: float) -> list[float]:
    """How long each next process waits, where they lived so many seconds."""
    worker, now, pauses = Worker(0, NOTHING, NOTHING, began=0.0), 0.0, []
    for life in lives:
        worker.began, now = now, now + life
        pauses.append(worker.has_ended(now))
        assert worker.due == now + pauses[-1]
        now = worker.due
    return pauses


def test_a_worker_that_ends_is_replaced_at_once_and_one_that_ends_again_and_again_ever_later() -> None:
    assert ended_after(0.1) == [0.0]
    assert ended_after(*[0.1] * 9) == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_worker_that_lived_for_a_while_ends_by_accident() -> None:
    assert ended_after(0.1, 0.1, 0.1, 60.0, 0.1, 0.1) == [0.0, 1.0, 2.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("workers", "connections", "in_flight", "cache"),
    [(1, 1_000, 400_000_000, 128_000_000), (3, 333, 133_333_333, 42_666_666), (64, 15, 100_000_000, 2_000_000)],
)
def test_what_bounds_memory_is_divided_and_leaves_room_for_one_body(
    workers: int, connections: int, in_flight: int, cache: int
) -> None:
    limits = load().limits
    own = limits.of_each(workers)
    assert (own.connections, own.in_flight_bytes, own.cache_bytes) == (connections, in_flight, cache)
    assert own.compactions_per_tenant == limits.compactions_per_tenant
