"""Bounded maps: what stays, and what goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.runtime.bounded import BoundedMap

KEYS = st.sampled_from("abcdef")
STEPS = st.one_of(
    st.tuples(st.just("keep"), KEYS, st.integers(1, 9)), st.tuples(st.sampled_from(["get", "use"]), KEYS, st.just(0))
)


@given(most=st.integers(1, 4), steps=st.lists(STEPS, max_size=40))
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
