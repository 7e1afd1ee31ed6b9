"""Bounded memory: maps, caches, facts that tenants saw, the throttle of log lines, and erasures."""

from __future__ import annotations

import gc
import json
import random
import tracemalloc
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.view import Conversation
from app.formats.chat_completions import CHAT_COMPLETIONS, read_message
from app.formats.reader import MessageReader
from app.main import create_app
from app.runtime import caches as module
from app.runtime.caches import (
    ENTRY_BYTES,
    MOST_AT_ONCE,
    REMINDER_SECONDS,
    BoundedMap,
    Cache,
    Caches,
    Erased,
    LogThrottle,
    TenantFacts,
)
from app.settings import load
from app.telemetry.metrics import CACHES
from app.tokens.estimate import Declarations
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer
from tests.unit.clock import Clock
from tests.unit.conversations import IDENTITY

KEYS = st.sampled_from("abcdef")
MAP_STEPS = st.one_of(
    st.tuples(st.just("keep"), KEYS, st.integers(1, 9)), st.tuples(st.sampled_from(["get", "use"]), KEYS, st.just(0))
)


@given(most=st.integers(1, 4), steps=st.lists(MAP_STEPS, max_size=40))
def test_it_does_what_a_list_would_do(most: int, steps: list[tuple[str, str, int]]) -> None:
    gone, naive_gone, naive = list[tuple[str, int]](), list[tuple[str, int]](), list[tuple[str, int]]()
    held: BoundedMap[str, int] = BoundedMap(most, lambda key, value: gone.append((key, value)))
    for act, key, number in steps:
        if act == "keep":
            held.keep(key, number)
            naive = [*(entry for entry in naive if entry[0] != key), (key, number)]
            naive_gone += naive[:-most]
            naive = naive[-most:]
        else:
            assert getattr(held, act)(key) == dict(naive).get(key)
            if act == "use":
                naive.sort(key=lambda entry: entry[0] == key)
        assert (list(held.items()), gone) == (naive, naive_gone)


# Caches under one bound


def weighed(caches: Caches, name: str = "one") -> Cache[str, int]:
    """One whose values are their sizes, beside what every entry takes."""
    return Cache(caches, name, lambda _, size: size - ENTRY_BYTES)


def test_for_one_large_entry_only_so_many_small_ones_go_at_once() -> None:
    """Everybody waits meanwhile. What is too much goes with the entries that come next."""
    caches = Caches(1_000)
    small = weighed(caches)
    for number in range(1_000):
        small.keep(f"{number}", 1)
    large = weighed(caches)
    large.keep("a", 900)
    assert len(small.items()) == 1_000 - MOST_AT_ONCE
    for _ in range(4):
        large.keep("a", 900)
    assert (len(small.items()), caches.held_bytes) == (100, 1_000)


SIZES = st.integers(1, 9)
STEPS = st.tuples(
    st.sampled_from(["keep", "use", "get", "pop", "drop"]), st.integers(0, 2), st.sampled_from("abcd"), SIZES
)


@given(most=st.integers(1, 30), steps=st.lists(STEPS, max_size=60))
def test_they_do_what_one_list_of_all_entries_would_do(most: int, steps: list[tuple[str, int, str, int]]) -> None:
    caches = Caches(most)
    several = [weighed(caches, f"{number}") for number in range(3)]
    naive: list[tuple[int, str, int]] = []
    for act, number, key, size in steps:
        found = next((entry for entry in naive if entry[:2] == (number, key)), None)
        if act == "keep":
            several[number].keep(key, size)
            naive = [*(entry for entry in naive if entry is not found), (number, key, size)]
            while len(naive) > 1 and sum(entry[2] for entry in naive) > most:
                del naive[0]
        elif act == "drop":
            several[number].drop(lambda _, held: held == size)  # noqa: B023 - called at once
            naive = [entry for entry in naive if (entry[0], entry[2]) != (number, size)]
        else:
            assert getattr(several[number], act)(key) == (found[2] if found else None)
            if found and act != "get":
                naive.remove(found)
                naive += [found] if act == "use" else []
        for place, cache in enumerate(several):
            assert dict(cache.items()) == {key: size for at, key, size in naive if at == place}
            assert caches.bytes_of[f"{place}"] == sum(entry[2] for entry in naive if entry[0] == place)
        assert caches.held_bytes == sum(entry[2] for entry in naive)


def test_several_threads_may_use_them() -> None:
    caches = Caches(5_000)
    several = [weighed(caches) for _ in range(4)]

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(5_000):
            cache, key = several[chance.randrange(4)], f"{chance.randrange(50)}"
            cache.keep(key, chance.randrange(1, 200))
            cache.use(key)
            if chance.random() < 0.01:
                cache.drop(lambda _, size: size > 100)

    threads = [Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert caches.held_bytes == sum(size for cache in several for _, size in cache.items()) <= 5_000


@pytest.mark.parametrize(("characters", "turns", "letter"), [(300, 20, "a"), (2_000, 20, "a"), (20_000, 5, "é")])
def test_what_histories_are_said_to_take_is_what_python_takes(characters: int, turns: int, letter: str) -> None:
    """Never much less, and at most by half more: a body's bytes are counted once more with its messages."""
    caches, estimator_caches = Caches(1 << 40), Caches(1 << 40)
    reader = MessageReader(IDENTITY, read_message, caches=caches)
    estimator = Estimator(Tokenizer(Path("nowhere")), estimator_caches)

    def talk(name: str) -> None:
        said: list[dict[str, str]] = []
        for turn in range(2 * turns):
            said.append({"role": ("user", "assistant")[turn % 2], "content": f"{name} {turn} " + letter * characters})
            if turn % 2 == 0:
                body = json.dumps({"model": "m", "messages": said}, ensure_ascii=False).encode()
                history = reader.read(CHAT_COMPLETIONS.read(body, beginnings=reader.beginnings).raw_messages)
                costs = estimator.prompt("gpt-4o", history, b"", Declarations).costs
                _ = Conversation(history, IDENTITY, "t", costs, None).chain

    talk("first")
    gc.collect()
    tracemalloc.start()
    said = -caches.held_bytes - estimator_caches.held_bytes
    for number in range(10):
        talk(f"{number}")
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    said += caches.held_bytes + estimator_caches.held_bytes
    assert 0.9 * taken < said < 1.6 * taken


def test_every_cache_of_an_application_has_a_name_that_the_metrics_know() -> None:
    app = create_app(load(storage={"url": "memory"}, secret="a secret for the tests of caches"))
    sampled = {gauge._labelvalues for gauge in app.state.services.sampler._gauges if gauge._name == "steno_cache_bytes"}
    del app
    assert sampled == {(name,) for name in CACHES}
    found = {name for held in gc.get_objects() if type(held) is Caches for name in held.bytes_of}
    assert set(CACHES) <= found


# Facts of tenants

DAY = 24 * 3600.0


def made(clock: Clock | None = None, **options: object) -> TenantFacts[str, int]:
    return TenantFacts(DAY, clock or Clock(), **options)  # type: ignore[arg-type]


def test_a_tenants_own_sighting_goes_before_what_others_agree_on() -> None:
    seen = made()
    for tenant, value in (("a", 1), ("b", 1), ("c", 2)):
        seen.learn(tenant, "m", value)
    assert (seen.find("c", "m"), seen.find("d", "m")) == (2, 1)


def test_it_ends_by_itself() -> None:
    clock = Clock()
    seen = made(clock)
    seen.learn("a", "m", 1)
    seen.learn("b", "m", 1, seconds=10)
    clock.now = 9.9
    assert seen.find("c", "m") == 1
    clock.now = 10
    assert (seen.find("c", "m"), seen.find("a", "m"), list(seen.of("b"))) == (None, 1, [])
    clock.now = DAY
    assert seen.find("a", "m") is None


def test_who_does_not_count_learns_for_itself() -> None:
    answered = set[str]()
    seen = made(counts=answered.__contains__)
    seen.learn("a", "m", 1)
    seen.learn("made up", "m", 1)
    answered.add("a")
    assert (seen.find("c", "m"), seen.find("made up", "m")) == (None, 1)
    answered.add("made up")
    assert seen.find("c", "m") == 1


def test_values_may_agree_without_being_equal() -> None:
    seen = made(agrees=lambda other, value: other >= value)
    for tenant, value in (("a", 5), ("b", 9), ("c", 7)):
        seen.learn(tenant, "m", value)
    assert sorted(seen.confirmed("m")) == [5, 7]


def test_no_tenant_pushes_out_what_others_saw() -> None:
    seen = made()
    seen.learn("b", "m", 1)
    for number in range(10 * module.MOST_OF_ONE):
        seen.learn("a", f"made up {number}", 1)
    assert seen.own("b", "m") == 1
    assert len(list(seen.of("a"))) == module.MOST_OF_ONE
    assert len(seen._facts) == module.MOST_OF_ONE + 1


def test_of_too_many_tenants_the_longest_silent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TENANTS", 2)
    seen = made()
    for tenant in "abac":
        seen.learn(tenant, "m", 1)
    assert [seen.own(tenant, "m") for tenant in "abc"] == [1, None, 1]


EVENTS = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("mn"), st.integers(1, 3), st.booleans()))


@given(EVENTS)
def test_without_agreement_a_tenant_changes_nothing_for_others(events: list[tuple[str, str, int, bool]]) -> None:
    """What the others use is what they would use without it, unless one of them saw the same."""
    with_a, without_a = made(), made()
    for tenant, what, value, remembers in events:
        for seen in (with_a, without_a) if tenant != "a" else (with_a,):
            if remembers:
                seen.learn(tenant, what, value)
            else:
                seen.forget(tenant, what)
    for what in "mn":
        own_of_a = with_a.own("a", what)
        assert set(without_a.confirmed(what)) <= set(with_a.confirmed(what))
        assert set(with_a.confirmed(what)) - set(without_a.confirmed(what)) <= {own_of_a}
        for tenant in "bcd":
            assert with_a.own(tenant, what) == without_a.own(tenant, what)
            if all(with_a.own(other, what) != own_of_a for other in "bcd"):
                assert with_a.find(tenant, what) == without_a.find(tenant, what)


@given(EVENTS)
def test_nothing_is_kept_of_what_nobody_holds(events: list[tuple[str, str, int, bool]]) -> None:
    seen, model = made(), dict[tuple[str, str], int]()
    for tenant, what, value, remembers in events:
        if remembers:
            seen.learn(tenant, what, value)
            model[tenant, what] = value
        else:
            seen.forget(tenant, what)
            model.pop((tenant, what), None)
    assert {(tenant, what): value for tenant in "abcd" for what, value in seen.of(tenant)} == model
    assert set(seen) == {what for _, what in model}


# Log lines


def test_what_lasts_is_told_once_a_minute_with_how_often_it_happened() -> None:
    now = [0.0]
    throttle = LogThrottle(lambda: now[0])
    assert throttle.end("database") is None
    assert [throttle.count("database") for _ in range(3)] == [1, None, None]
    now[0] = REMINDER_SECONDS
    assert throttle.count("summariser") == 1
    assert [throttle.count("database") for _ in range(2)] == [4, None]
    now[0] = REMINDER_SECONDS + 1.23
    assert throttle.end("database") == (5, 61.2)
    assert throttle.end("database") is None
    assert throttle.count("database") == 1


# Erasures


@pytest.mark.parametrize("conversation_id", ["one", "", "with spaces", "nul\0", "\ud800half", "caf\u00e9"])
def test_an_erased_conversation_covers_itself_alone(conversation_id: str) -> None:
    erased = Erased("tenant", conversation_id)
    assert erased.covers("tenant", conversation_id)
    assert not erased.covers("tenant", "other")
    assert not erased.covers("tenant", "caf?")
    assert not erased.covers("other", conversation_id)
