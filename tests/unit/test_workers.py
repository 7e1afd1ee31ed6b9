"""What each of several workers may hold."""

from __future__ import annotations

import pytest

from app.settings import load


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
