"""What one tenant saw is its own until a second one confirms it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runtime import bounded as module
from app.runtime.bounded import TenantFacts
from tests.unit.clock import Clock

DAY = 24 * 3600.0


def made(clock: Clock | None = None, **options: object) -> TenantFacts[str, int]:
    return TenantFacts(DAY, clock or Clock(), **options)  # type: ignore[arg-type]


def test_a_second_tenant_confirms_it_for_all() -> None:
    seen = made()
    seen.learn("a", "m", 1)
    seen.learn("b", "m", 1)
    assert seen.find("c", "m") == 1
    assert seen.find("c", "another") is None


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


def test_what_is_forgotten_confirms_no_more() -> None:
    seen = made()
    seen.learn("a", "m", 1)
    seen.learn("b", "m", 1)
    seen.forget("b", "m")
    seen.forget("b", "m")
    seen.forget("nobody", "m")
    assert (seen.find("c", "m"), seen.find("a", "m")) == (None, 1)
    seen.forget("a", "m")
    assert "m" not in list(seen)


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
