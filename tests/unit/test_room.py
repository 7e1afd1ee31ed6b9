"""How many compactions find room in the background."""

from __future__ import annotations

from app.compaction.background import BackgroundLimits, BackgroundRoom


def room(compactions: int = 3, per_tenant: int = 2, body_bytes: int = 100) -> BackgroundRoom:
    return BackgroundRoom(BackgroundLimits(compactions, per_tenant, body_bytes))


def test_none_is_free_where_none_is_allowed() -> None:
    assert not room(compactions=0).is_free("a", 0)


def test_there_are_so_many_at_once_for_a_tenant_and_for_all() -> None:
    held = room()
    held.take(("a", "1"), 1)
    assert held.is_free("a", 1)
    held.take(("a", "2"), 1)
    assert not held.is_free("a", 1)
    assert held.is_free("b", 1)
    held.take(("b", "1"), 1)
    assert not held.is_free("c", 1)
    held.leave(("a", "1"))
    assert held.is_free("c", 1)


def test_a_tenant_has_half_of_the_bytes_and_all_have_no_more_than_there_are() -> None:
    held = room()
    assert held.is_free("a", 50)
    assert not held.is_free("a", 51)
    held.take(("a", "1"), 40)
    assert not held.is_free("a", 11)
    held.take(("b", "1"), 50)
    assert held.is_free("c", 10)
    assert not held.is_free("c", 11)


def test_a_conversation_has_its_place_until_it_leaves() -> None:
    held = room()
    held.take(("a", "1"), 1)
    assert held.is_taken(("a", "1"))
    assert not held.is_taken(("b", "1"))
    assert len(held) == 1
    held.leave(("a", "1"))
    assert not held.is_taken(("a", "1"))
    assert not len(held)
