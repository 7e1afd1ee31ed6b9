"""A started store on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from app.store import Store
from tests.integration.examples import OpenStore, Replicas, StartStore


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores that are closed at the end, also when the test fails."""
    opened: list[Store] = []

    def open_one(url: str, timeout: float = 5.0, *, lease_ttl: float = 15.0) -> Store:
        # A generous bound: most tests are not about a busy test machine.
        opened.append(Store(url, timeout=timeout, lease_ttl=lease_ttl))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
def start_store(open_store: OpenStore) -> StartStore:
    async def start(*arguments: Any, **options: Any) -> Store:
        store = open_store(*arguments, **options)
        await store.start()
        return store

    return start


@pytest.fixture
async def store(start_store: StartStore, shared_url: str) -> Store:
    """A started store on each of the two databases."""
    return await start_store(shared_url)


@pytest.fixture
async def replicas(start_store: StartStore, shared_url: str) -> Replicas:
    return await start_store(shared_url), await start_store(shared_url)
