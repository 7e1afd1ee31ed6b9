"""Calibrations: learnt at once, shared by replicas, never lost to each other, never in the way."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import update

from app.providers import calibrations as shell
from app.providers.calibrations import Calibrations
from app.store import CalibrationKey, Store, StoreUnavailable, UnknownCursor
from app.store.calibrations import learn_calibrations, read_calibrations, read_own_calibrations
from app.store.tables import Paging, calibrations, metadata
from app.tokens.calibration import Calibration, Sample, prior_of
from tests.faults.proxy import FaultProxy
from tests.integration.examples import STRANGER, TENANT, Replicas, StartStore, until

FORMULA = "1/o200k_base"
KEY = CalibrationKey("openai", "gpt-4o", FORMULA, tools=False, tenant=TENANT)
GROWING = [Sample(size, round(1.25 * size)) for size in range(3_000, 60_000, 5_000)]


def key(model: str, *, tools: bool = False, tenant: str = TENANT) -> CalibrationKey:
    return CalibrationKey("openai", model, FORMULA, tools, tenant)


async def stored(store: Store) -> dict[CalibrationKey, Calibration]:
    return {row.key: row.calibration for row in await store.task(read_calibrations)}


async def until_stored(store: Store, samples: int) -> None:
    async def are() -> bool:
        return sum(row.samples for row in (await stored(store)).values()) == samples

    await until(are)


# The store


async def test_samples_are_kept_and_learnt_from(store: Store) -> None:
    learnt = await store.task_change(learn_calibrations, {KEY: GROWING[:2], key("gpt-4o", tools=True): GROWING[2:3]})
    assert learnt[KEY].line.ratio == pytest.approx(1.25, abs=0.01)
    assert await stored(store) == learnt
    again = await store.task_change(learn_calibrations, {KEY: GROWING[2:4]})
    assert again[KEY].recent == tuple(GROWING[:4])
    assert again[KEY].samples == 4


async def test_rejected_samples_are_not_kept(store: Store) -> None:
    learnt = await store.task_change(learn_calibrations, {KEY: [Sample(1_000, 1), Sample(0, 0)]})
    assert learnt == {KEY: Calibration(prior_of("gpt-4o", tools=False))}


async def test_models_of_any_name_are_kept(store: Store) -> None:
    """A client may name one with a NUL in it, or one too long for an index."""
    names = {key("n\0"), key("long" * 5_000), key("\ud800")}
    assert set(await store.task_change(learn_calibrations, dict.fromkeys(names, GROWING[:1]))) == names
    assert len(await stored(store)) == 3


async def test_the_latest_to_change_come_first_and_can_be_read_alone(store: Store) -> None:
    for number in range(3):
        await store.task_change(learn_calibrations, {key(f"m{number}"): GROWING[:1]})
        await asyncio.sleep(0.01)
    await store.task_change(learn_calibrations, {key("m0"): GROWING[1:2]})
    assert [row.key.model for row in await store.task(read_calibrations)] == ["m0", "m2", "m1"]
    async with store.database.writing() as connection:
        await connection.execute(update(calibrations).values(updated_at=calibrations.c.updated_at - 60_000))
    await store.task_change(learn_calibrations, {key("m1"): GROWING[1:2]})
    assert [row.key.model for row in await store.task(read_calibrations, 30)] == ["m1"]


async def test_two_stores_that_learn_at_once_lose_no_sample(replicas: Replicas) -> None:
    """The first rows included, which both want to make."""
    models = [f"m{number}" for number in range(40)]
    for number in range(4):
        batches = [{key(model): [GROWING[number]] for model in order} for order in (models, models[::-1])]
        await asyncio.gather(
            *(store.task_change(learn_calibrations, batch) for store, batch in zip(replicas, batches, strict=True))
        )
    found = await stored(replicas[0])
    assert {calibration.samples for calibration in found.values()} == {8}
    assert len(found) == 40


async def test_a_tenant_sees_its_own_calibrations_only(store: Store) -> None:
    """A fine-tune's name tells whose it is."""
    await store.task_change(learn_calibrations, {key(model): GROWING[:1] for model in ("ft:gpt-4o:acme::x", "gpt-4o")})
    await store.task_change(learn_calibrations, {key("gpt-4o", tenant=STRANGER): GROWING[:2]})
    seen_by = {
        tenant: {row.key.model: row.calibration.samples for row in page.data}
        for tenant in (TENANT, STRANGER, "nobody")
        for page in [await store.rest(read_own_calibrations, tenant, Paging(100))]
    }
    assert seen_by == {TENANT: {"ft:gpt-4o:acme::x": 1, "gpt-4o": 1}, STRANGER: {"gpt-4o": 2}, "nobody": {}}
    with pytest.raises(UnknownCursor):
        await store.rest(read_own_calibrations, STRANGER, Paging(1, after=key("ft:gpt-4o:acme::x").id))


# The service


async def test_what_was_learnt_is_in_force_at_once(store: Store) -> None:
    known = Calibrations(store)
    assert known.of(KEY).line.ratio == 1.0
    for sample in GROWING[:3]:
        known.learn(KEY, sample)
    assert known.of(KEY).line.ratio == pytest.approx(1.25)
    assert known.of(key("gpt-4o", tools=True)).line.ratio == 1.0
    assert known.of(replace(KEY, formula="2/o200k_base")).line.ratio == 1.0


async def test_one_tenants_samples_move_no_other_tenants_line(store: Store) -> None:
    known = Calibrations(store)
    for sample in GROWING:
        known.learn(key("gpt-4o", tenant=STRANGER), sample)
    assert known.of(key("gpt-4o", tenant=STRANGER)).line.ratio == pytest.approx(1.25)
    assert known.of(KEY).line.ratio == 1.0


async def test_a_tenant_that_makes_up_models_pushes_out_only_its_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "MOST_OF_TENANT", 2)
    known = Calibrations(store)
    for sample in GROWING[:5]:
        known.learn(KEY, sample)
        for number in range(4):
            known.learn(key(f"made up {number}", tenant=STRANGER), sample)
    assert known.of(KEY).samples == 5
    assert len(known._known) == 3


async def test_stopping_stores_what_waits(store: Store) -> None:
    known = Calibrations(store)
    await known.start()
    await asyncio.sleep(0.1)
    known.learn(KEY, GROWING[0])
    await known.stop()
    assert (await stored(store))[KEY].samples == 1


async def test_a_replica_knows_what_another_learnt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "FLUSH_SECONDS", 0.02)
    monkeypatch.setattr(shell, "REFRESH_SECONDS", 0.05)
    one, other = Calibrations(store), Calibrations(store)
    for known in (one, other):
        await known.start()
    for sample in GROWING:
        one.learn(KEY, sample)
    await until(lambda: other.of(KEY).samples == len(GROWING))
    assert other.of(KEY) == one.of(KEY)
    assert other.of(replace(KEY, upstream="azure")).samples == 0
    for known in (one, other):
        await known.stop()


async def test_what_waits_is_added_to_what_others_stored(store: Store) -> None:
    """A refresh takes nothing back that this process already knows."""
    known = Calibrations(store)
    await store.task_change(learn_calibrations, {KEY: GROWING[:3]})
    known.learn(KEY, GROWING[3])
    await known._refresh()
    assert known.of(KEY).recent == tuple(GROWING[:4])
    await known.flush()
    assert (await stored(store))[KEY].recent == tuple(GROWING[:4])


async def test_what_waits_of_a_tenant_that_is_forgotten_is_not_stored(store: Store) -> None:
    known = Calibrations(store)
    for tenant in (TENANT, STRANGER):
        for model in ("gpt-4o", "gpt-5"):
            known.learn(key(model, tenant=tenant), GROWING[0])
    await known.forget(TENANT)
    assert known.of(KEY).samples == 0
    await known.flush()
    assert set(await stored(store)) == {key("gpt-4o", tenant=STRANGER), key("gpt-5", tenant=STRANGER)}
    known.learn(KEY, GROWING[1])
    await known.flush()
    assert (await stored(store))[KEY].recent == (GROWING[1],)


async def test_samples_wait_while_the_database_is_away(start_store: StartStore, gate: FaultProxy) -> None:
    """Requests learn on; what is too much is counted; what waits is stored when the database is back."""
    gate.inject("refuse")
    store = await start_store(gate.url)
    known = Calibrations(store)
    known.learn(KEY, GROWING[0])
    with pytest.raises(StoreUnavailable):
        await known.flush()
    known.learn(KEY, GROWING[1])
    assert known.of(KEY).samples == 2
    await known.start()
    await asyncio.sleep(0.1)
    gate.heal()
    await until(store.ready.is_set)
    await until_stored(store, 2)
    await known.stop()


async def test_samples_in_flight_count_for_the_bound(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails puts them back."""
    monkeypatch.setattr(shell, "MOST_WAITING", 2)
    known = Calibrations(store)

    async def fail(*_: object) -> None:
        for sample in GROWING[2:4]:
            known.learn(KEY, sample)
        raise StoreUnavailable("away")

    for sample in GROWING[:2]:
        known.learn(KEY, sample)
    with monkeypatch.context() as patched:
        patched.setattr(store, "task_change", fail)
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await known.flush()
    await known.flush()
    assert (await stored(store))[KEY].recent == tuple(GROWING[:2])


async def test_an_error_that_nobody_foresaw_does_not_end_the_exchange(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, learn = Calibrations(store), store.task_change

    async def fail(*_: object) -> None:
        monkeypatch.setattr(store, "task_change", learn)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(store, "task_change", fail)
    known.learn(KEY, GROWING[0])
    await known.start()
    await until_stored(store, 1)
    await known.stop()


async def test_samples_that_the_database_refuses_are_dropped(store: Store) -> None:
    known = Calibrations(store)
    async with store.database.writing() as connection:
        await connection.run_sync(metadata.tables["calibrations"].drop)
    known.learn(KEY, GROWING[0])
    await known.flush()
    assert not known._waiting


async def test_a_name_no_model_has_is_neither_learnt_nor_remembered(store: Store) -> None:
    known = Calibrations(store)
    for model in ("m" * 300, "m" * 301, "gpt-4o" * 700_000):
        for sample in GROWING[:3]:
            known.learn(key(model), sample)
    assert known.of(key("m" * 300)).samples == 3
    assert known.of(key("m" * 301)) == Calibration(prior_of("m", tools=False))
    assert known.of(key("gpt-4o" * 700_000)).samples == 0
    await known.flush()
    assert {row.model for row in await stored(store)} == {"m" * 300}
