"""Mask boundaries: shared, kept for their settings and tenant, erased with their conversation."""

from __future__ import annotations

from app.store import Store
from app.store.chunks import keep_mask, masks_in
from tests.integration.examples import STRANGER, TENANT, seen

ROOT, EARLY, LATE = b"r" * 16, b"a" * 16, b"b" * 16


async def test_a_boundary_is_found_by_any_history_that_holds_both_its_places(store: Store) -> None:
    await store.request_change(keep_mask, TENANT, "s", LATE, ROOT, "c")
    assert await store.request(masks_in, TENANT, "s", [ROOT, EARLY, LATE]) == [(LATE, ROOT)]
    assert await store.request(masks_in, TENANT, "s", [ROOT, EARLY]) == []
    assert await store.request(masks_in, TENANT, "s", [EARLY, LATE]) == []


async def test_keeping_a_boundary_twice_is_keeping_it_once(store: Store) -> None:
    for _ in range(2):
        await store.request_change(keep_mask, TENANT, "s", LATE, ROOT, "c")
    await store.request_change(keep_mask, TENANT, "s", LATE, EARLY, "c")
    assert sorted(await store.request(masks_in, TENANT, "s", [ROOT, EARLY, LATE])) == sorted(
        [(LATE, ROOT), (LATE, EARLY)]
    )


async def test_a_boundary_holds_for_its_settings_and_its_tenant_only(store: Store) -> None:
    await store.request_change(keep_mask, TENANT, "s", LATE, ROOT, "c")
    assert await store.request(masks_in, TENANT, "other", [ROOT, LATE]) == []
    assert await store.request(masks_in, STRANGER, "s", [ROOT, LATE]) == []


async def test_boundaries_go_with_their_conversation(store: Store) -> None:
    for conversation_id in ("c", "d"):
        store.writes.record(seen(conversation_id=conversation_id))
    await store.request_change(keep_mask, TENANT, "s", EARLY, ROOT, "c")
    await store.request_change(keep_mask, TENANT, "s", LATE, ROOT, "d")
    assert await store.delete_conversation(TENANT, "c")
    assert await store.request(masks_in, TENANT, "s", [ROOT, EARLY, LATE]) == [(LATE, ROOT)]
