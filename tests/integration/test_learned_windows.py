"""Learned windows: what a refusal told is shared, lowered, forgotten."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from app.store import StatementRefused, Store
from app.store import calibrations as rows
from app.store.calibrations import forget_window, learn_window, read_learned_windows, read_models_used
from app.store.tables import learned_windows
from tests.integration.examples import STRANGER, TENANT, seen

UPSTREAM = "https://provider.example/v1"
DAY = 24 * 3600.0


async def limits(store: Store, upstream: str = UPSTREAM) -> dict[str, int]:
    return {window.model: window.limit_tokens for window in await store.task(read_learned_windows, upstream, 100)}


async def test_of_two_limits_the_smaller_stays_and_its_time_begins_anew(store: Store) -> None:
    await store.task_change(learn_window, UPSTREAM, "m", TENANT, 32_768, 10)
    await store.task_change(learn_window, UPSTREAM, "m", TENANT, 65_536, DAY)
    [learnt] = await store.task(read_learned_windows, UPSTREAM, 100)
    assert learnt.limit_tokens == 32_768
    assert learnt.left_ms > 60_000
    await store.task_change(learn_window, UPSTREAM, "m", TENANT, 16_384, DAY)
    assert await limits(store) == {"m": 16_384}


async def test_every_tenant_has_limits_of_its_own(store: Store) -> None:
    for tenant, limit in ((TENANT, 32_768), (STRANGER, 16_384)):
        await store.task_change(learn_window, UPSTREAM, "m", tenant, limit, DAY)
    await store.task_change(forget_window, UPSTREAM, "m", STRANGER, 40_000)
    [learnt] = await store.task(read_learned_windows, UPSTREAM, 100)
    assert (learnt.tenant, learnt.limit_tokens) == (TENANT, 32_768)


async def test_of_one_tenant_only_the_latest_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_OF_TENANT", 2)
    await store.task_change(learn_window, UPSTREAM, "m", STRANGER, 32_768, DAY)
    for number in range(4):
        await store.task_change(learn_window, UPSTREAM, f"made up {number}", TENANT, 32_768, DAY + number)
    assert set(await limits(store)) == {"m", "made up 2", "made up 3"}


async def test_an_expired_limit_is_gone_and_its_row_with_the_next_one(store: Store) -> None:
    await store.task_change(learn_window, UPSTREAM, "old", TENANT, 32_768, DAY)
    async with store.database.writing() as connection:
        await connection.execute(update(learned_windows).values(expires_at=1))
    assert await limits(store) == {}
    await store.task_change(learn_window, UPSTREAM, "old", TENANT, 65_536, DAY)
    await store.task_change(learn_window, UPSTREAM, "new", TENANT, 8_192, DAY)
    assert await limits(store) == {"old": 65_536, "new": 8_192}
    async with store.database.reading() as connection:
        assert len((await connection.execute(select(learned_windows))).all()) == 2


async def test_only_a_limit_below_the_prompt_that_was_answered_is_forgotten(store: Store) -> None:
    await store.task_change(learn_window, UPSTREAM, "m", TENANT, 32_768, DAY)
    await store.task_change(forget_window, UPSTREAM, "m", TENANT, 32_768)
    assert await limits(store) == {"m": 32_768}
    await store.task_change(forget_window, UPSTREAM, "m", TENANT, 40_000)
    assert await limits(store) == {}


async def test_a_name_that_cannot_be_stored_as_it_is_does_no_harm(store: Store) -> None:
    await store.task_change(learn_window, UPSTREAM, "m\0\ud800", TENANT, 32_768, DAY)
    assert list((await limits(store)).values()) == [32_768]


async def test_a_number_that_cannot_be_stored_is_refused_and_does_no_harm(store: Store) -> None:
    await store.task_change(learn_window, UPSTREAM, "m", TENANT, 32_768, DAY)
    with pytest.raises(StatementRefused):
        await store.task_change(forget_window, UPSTREAM, "m", TENANT, 10**30)
    with pytest.raises(StatementRefused):
        await store.task_change(learn_window, UPSTREAM, "m", TENANT, 2**63, DAY)
    assert await limits(store) == {"m": 32_768}
    assert store.reason is None


async def test_a_tenant_sees_the_models_of_its_own_conversations(store: Store) -> None:
    store.writes.record(seen("c1", model="gpt-4o"))
    store.writes.record(seen("c2", model="gpt-4o"))
    store.writes.record(seen("c3", model="o3"))
    store.writes.record(seen("c4", tenant=STRANGER, model="secret-model"))
    assert sorted(await store.rest(read_models_used, TENANT)) == ["gpt-4o", "o3"]
