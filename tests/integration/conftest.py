"""A started store on each database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.store import Store


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """A migrated store with a generous bound: a busy test machine is not what these tests are about."""
    store = Store.open(database_url, timeout=5.0)
    await store.start()
    yield store
    await store.close()
