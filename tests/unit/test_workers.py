"""What each of several workers may hold."""

from __future__ import annotations

import pytest

from app.settings import load


@pytest.mark.parametrize(
    ("workers", "connections", "cache"),
    [(1, 1_000, 128_000_000), (3, 333, 42_666_666), (64, 15, 2_000_000)],
)
def test_connections_and_caches_are_divided(workers: int, connections: int, cache: int) -> None:
    limits = load().limits
    own = limits.of_each(workers)
    assert (own.connections, own.cache_bytes) == (connections, cache)
    assert own.compactions_per_tenant == limits.compactions_per_tenant
