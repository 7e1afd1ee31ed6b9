"""Prints: shared, kept for their tenant, erased with their conversation."""

from __future__ import annotations

from app.store import Store
from app.store.places import keep_print, prints_at
from tests.integration.examples import STRANGER, TENANT, seen

EARLY, LATE = b"a" * 16, b"b" * 16
ONE, OTHER = b"1" * 16, b"2" * 16


async def test_all_prints_of_a_place_are_found_by_whoever_asks_for_it(store: Store) -> None:
    await store.request_change(keep_print, TENANT, EARLY, ONE, "c")
    await store.request_change(keep_print, TENANT, EARLY, OTHER, "c")
    for _ in range(2):
        await store.request_change(keep_print, TENANT, LATE, ONE, "d")
    assert await store.request(prints_at, TENANT, [EARLY, LATE]) == {EARLY: {ONE, OTHER}, LATE: {ONE}}
    assert await store.request(prints_at, TENANT, [LATE]) == {LATE: {ONE}}
    assert await store.request(prints_at, TENANT, []) == {}
    assert await store.request(prints_at, STRANGER, [EARLY, LATE]) == {}


async def test_prints_go_with_their_conversation(store: Store) -> None:
    for conversation_id in ("c", "d"):
        store.writes.record(seen(conversation_id=conversation_id))
    await store.request_change(keep_print, TENANT, EARLY, ONE, "c")
    await store.request_change(keep_print, TENANT, LATE, ONE, "d")
    assert await store.delete_conversation(TENANT, "c")
    assert await store.request(prints_at, TENANT, [EARLY, LATE]) == {LATE: {ONE}}
