"""Quotas: how many conversations of a tenant are compacted at once."""

from __future__ import annotations

from app.compaction.runner import Quotas


def test_so_many_conversations_of_a_tenant_are_compacted_at_once() -> None:
    limited = Quotas(compactions=2)
    assert [limited.begin("a", name) for name in ("1", "2", "3")] == [True, True, False]
    assert limited.begin("b", "3")
    limited.end("a", "1")
    assert limited.begin("a", "3")


def test_a_crowd_of_one_conversation_counts_once() -> None:
    limited = Quotas(compactions=1)
    assert all(limited.begin("a", "1") for _ in range(3))
    for _ in range(2):
        limited.end("a", "1")
        assert not limited.begin("a", "2")
    limited.end("a", "1")
    assert limited.begin("a", "2")


def test_nothing_is_remembered_of_what_has_ended() -> None:
    limited = Quotas(compactions=1)
    limited.begin("a", "1")
    limited.begin("a", "2")
    limited.begin("b", "1")
    limited.end("a", "1")
    limited.end("b", "1")
    assert not limited._under_way


def test_no_limit_is_none() -> None:
    assert all(Quotas().begin("a", str(number)) for number in range(100))
