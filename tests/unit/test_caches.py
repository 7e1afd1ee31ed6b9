"""Caches: one bound for all of them, what goes first, and what it costs to make room."""

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
from app.formats.chat_completions.format import CHAT_COMPLETIONS, read_message
from app.formats.reader import MessageReader
from app.main import create_app
from app.runtime.bounded import ENTRY_BYTES, MOST_AT_ONCE, Cache, Caches
from app.settings import load
from app.telemetry.metrics import CACHES
from app.tokens.estimate import Declarations
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer
from tests.unit.conversations import IDENTITY


def weighed(caches: Caches, name: str = "one") -> Cache[str, int]:
    """One whose values are their sizes, beside what every entry takes."""
    return caches.cache(name, lambda _, size: size - ENTRY_BYTES)


def test_somebody_is_told_of_what_is_pushed_out_and_of_nothing_else() -> None:
    caches, gone = Caches(20), list[tuple[str, int]]()
    told: Cache[str, int] = caches.cache(
        "told", lambda _, size: size - ENTRY_BYTES, lambda key, size: gone.append((key, size))
    )
    for key, size in (("a", 10), ("a", 5), ("b", 5), ("c", 5)):
        told.keep(key, size)
    told.pop("b")
    told.drop(lambda key, _: key == "c")
    weighed(caches).keep("d", 20)
    assert (gone, told.items(), told.use("a"), told.pop("a")) == ([("a", 5)], [], None, None)


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
            assert caches.bytes_of(f"{place}") == sum(entry[2] for entry in naive if entry[0] == place)
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
    found = {cache.name for held in gc.get_objects() if type(held) is Caches for cache in held._all}
    assert set(CACHES) <= found
