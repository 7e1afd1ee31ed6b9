"""Bounded maps: what stays, what goes, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime.bounded import BoundedMap
from tests.unit.clock import Clock


def test_an_entry_holds_so_long_from_when_it_was_kept() -> None:
    clock = Clock()
    held: BoundedMap[str, int] = BoundedMap(9, seconds=10.0, clock=clock)
    held.keep("a", 1)
    clock.now = 9.9
    assert held.use("a") == 1
    held.keep("b", 2)
    clock.now = 10.0
    assert (held.get("a"), held.use("a"), "a" in held, list(held), list(held.items())) == (
        None,
        None,
        False,
        ["b"],
        [("b", 2)],
    )
    with pytest.raises(KeyError):
        held["a"]
    assert (held.pop("a"), held.pop("b"), len(held)) == (None, 2, 0)


class Naive:
    """The same with a list of keys, values and times, the next to go first."""

    def __init__(self, most: int, seconds: float, clock: Clock) -> None:
        self.most, self.seconds, self.clock = most, seconds, clock
        self.entries: list[tuple[str, int, float]] = []
        self.gone: list[tuple[str, int]] = []

    def holding(self) -> list[tuple[str, int]]:
        return [(key, value) for key, value, until in self.entries if until > self.clock()]

    def keep(self, key: str, value: int) -> None:
        others = [entry for entry in self.entries if entry[0] != key]
        self.entries = [*others, (key, value, self.clock() + self.seconds)]
        while len(self.entries) > self.most:
            key, value, _ = self.entries.pop(0)
            self.gone.append((key, value))

    def use(self, key: str) -> int | None:
        value = dict(self.holding()).get(key)
        if value is not None:
            self.entries.sort(key=lambda entry: entry[0] == key)
        return value

    def pop(self, key: str) -> int | None:
        value = dict(self.holding()).get(key)
        self.entries = [entry for entry in self.entries if entry[0] != key]
        return value


KEYS = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("keep"), KEYS, st.integers(1, 9)),
    st.tuples(st.sampled_from(["get", "use", "pop"]), KEYS, st.just(0)),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 4)),
)


@given(most=st.integers(1, 4), steps=st.lists(STEPS, max_size=40))
def test_it_does_what_a_list_would_do(most: int, steps: list[tuple[str, str, int]]) -> None:
    clock, gone = Clock(), list[tuple[str, int]]()
    naive = Naive(most, 5.0, clock)
    held: BoundedMap[str, int] = BoundedMap(
        most,
        seconds=5.0,
        clock=clock,
        pushed_out=lambda key, value: gone.append((key, value)),
    )
    for act, key, number in steps:
        if act == "keep":
            held.keep(key, number)
            naive.keep(key, number)
        elif act == "wait":
            clock.now += number
        elif act == "get":
            assert held.get(key) == dict(naive.holding()).get(key)
        else:
            assert getattr(held, act)(key) == getattr(naive, act)(key)
        assert list(held.items()) == naive.holding()
        assert list(held) == [key for key, _ in naive.holding()]
        assert (len(held), gone) == (len(naive.entries), naive.gone)


def test_what_is_dropped_takes_up_no_room() -> None:
    held: BoundedMap[str, int] = BoundedMap(3)
    for number, key in enumerate("abc"):
        held.keep(key, number)
    held.drop(lambda key, number: key == "a" or number == 1)
    held.keep("d", 3)
    held.keep("e", 4)
    assert list(held) == ["c", "d", "e"]


def test_nothing_is_left_of_an_entry_that_went() -> None:
    held: BoundedMap[int, int] = BoundedMap(2, seconds=10.0)
    for number in range(5):
        held.keep(number, number)
    held.pop(3)
    assert held._until.keys() == {4}
