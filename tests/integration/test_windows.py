"""Windows learnt by one replica hold for all of them, and survive a restart."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from app.compaction.overflow import Overflow
from app.http.headers import new_instance
from app.http.upstream import Upstream
from app.providers.windows import LEARNT_SECONDS, Windows
from app.settings import load
from app.store import Store
from app.store.calibrations import read_learned_windows
from tests.e2e import running
from tests.integration.examples import STRANGER, TENANT, Replicas, until

LIMIT = 32_768

Pair = tuple[Windows, Windows]


def windows_of(store: Store, monkeypatch: pytest.MonkeyPatch, base_url: str = "https://provider.example/v1") -> Windows:
    running.forget_environment(monkeypatch)
    settings = load(upstream={"base_url": base_url})
    upstream = Upstream(base_url, 1.0, 1.0, 1.0, new_instance())
    windows = Windows(settings.models, settings.upstream, upstream, store)
    windows.add_answered(TENANT)
    return windows


async def written(windows: Windows) -> None:
    await asyncio.gather(*windows._tasks._tasks)


@pytest.fixture
def pair(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> Pair:
    one, other = replicas
    return windows_of(one, monkeypatch), windows_of(other, monkeypatch)


async def test_what_one_replica_learnt_another_knows(pair: Pair) -> None:
    one, other = pair
    one.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await written(one)
    await other.load()
    assert other.window_of("gpt-4o", TENANT).context == LIMIT
    _, until = other.limits._facts["gpt-4o"][TENANT]
    assert until == pytest.approx(monotonic() + LEARNT_SECONDS, abs=60)


async def test_what_two_tenants_were_told_at_two_replicas_holds_for_a_third(pair: Pair) -> None:
    one, other = pair
    one.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    other.learn(STRANGER, "gpt-4o", Overflow("context_window", LIMIT))
    await written(one)
    await other.load()
    assert other.window_of("gpt-4o", "a third").source == "bundled", "the provider never answered the other tenant"
    other.add_answered(STRANGER)
    await written(other)
    await one.load()
    assert [replica.window_of("gpt-4o", "a third").context for replica in (one, other)] == [LIMIT, LIMIT]


async def test_of_whom_the_provider_never_answered_nothing_is_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = windows_of(store, monkeypatch)
    windows.learn(STRANGER, "gpt-4o", Overflow("context_window", LIMIT))
    await written(windows)
    assert await store.task(read_learned_windows, windows._upstream, 10) == []


async def test_what_one_replica_dropped_another_drops(pair: Pair) -> None:
    one, other = pair
    one.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await written(one)
    await other.load()
    other.add_prompt(TENANT, "gpt-4o", LIMIT + 1)
    await written(other)
    await one.load()
    assert one.window_of("gpt-4o", TENANT).source == "bundled"


async def test_what_one_replica_saw_answered_no_other_one_takes_for_too_large(pair: Pair) -> None:
    one, other = pair
    one.add_prompt(TENANT, "gpt-4o", LIMIT + 1)
    other.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await written(other)
    await one.load()
    assert one.window_of("gpt-4o", TENANT).source == "bundled"
    await written(one)
    await other.load()
    assert other.window_of("gpt-4o", TENANT).source == "bundled"


async def test_another_provider_learns_for_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = windows_of(store, monkeypatch), windows_of(store, monkeypatch, "https://other.example/v1")
    one.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await written(one)
    await other.load()
    assert other.window_of("gpt-4o", TENANT).source == "bundled"


async def test_what_could_not_be_stored_yet_is_kept_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_store(*_: object) -> None:
        pass

    windows = windows_of(store, monkeypatch)
    monkeypatch.setattr(windows, "_store_limit", no_store)
    windows.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await windows.load()
    assert windows.window_of("gpt-4o", TENANT).context == LIMIT


async def test_a_start_reads_what_was_learnt_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = windows_of(store, monkeypatch)
    before.learn(TENANT, "gpt-4o", Overflow("context_window", LIMIT))
    await written(before)
    after = windows_of(store, monkeypatch)
    after.start()
    await until(lambda: after.window_of("gpt-4o", TENANT).context == LIMIT)
    await after.stop()
