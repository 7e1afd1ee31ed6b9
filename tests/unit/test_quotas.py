"""Quotas: what one tenant has used, and when it may have more."""

from __future__ import annotations

from app.compaction.quotas import Quotas
from app.core.reasons import Code
from app.store.tallies import Tallies
from tests.unit.clock import Clock


def test_so_many_conversations_of_a_tenant_are_compacted_at_once() -> None:
    limited = Quotas(Tallies(), compactions=2)
    assert [limited.begin("a", name) for name in ("1", "2", "3")] == [None, None, Code.TOO_MANY_COMPACTIONS]
    assert limited.begin("b", "3") is None
    limited.end("a", "1")
    assert limited.begin("a", "3") is None


def test_a_crowd_of_one_conversation_counts_once() -> None:
    limited = Quotas(Tallies(), compactions=1)
    assert [limited.begin("a", "1") for _ in range(3)] == [None] * 3
    for _ in range(2):
        limited.end("a", "1")
        assert limited.begin("a", "2") == Code.TOO_MANY_COMPACTIONS
    limited.end("a", "1")
    assert limited.begin("a", "2") is None


def test_nothing_is_remembered_of_what_has_ended() -> None:
    limited = Quotas(Tallies(), compactions=1)
    limited.begin("a", "1")
    limited.begin("a", "2")
    limited.begin("b", "1")
    limited.end("a", "1")
    limited.end("b", "1")
    assert not limited._under_way


def test_no_limit_is_none() -> None:
    limited = Quotas(Tallies())
    limited.spend("a", 10**9)
    assert {limited.begin("a", str(number)) for number in range(100)} == {None}
    assert {limited.force("a") for _ in range(1_000)} == {0.0}


def test_so_many_compactions_may_be_demanded_in_a_minute() -> None:
    clock = Clock(1_000.5)
    limited = Quotas(Tallies(clock), forced_per_minute=3)
    assert [limited.force("a") for _ in range(3)] == [0.0] * 3
    assert limited.force("b") == 0.0
    refused = limited.force("a")
    assert 0 < refused <= 60
    clock.now += refused - 0.01
    assert limited.force("a") > 0
    clock.now += 0.02
    assert limited.force("a") == 0.0


def test_tokens_that_were_spent_come_back_with_the_next_hour() -> None:
    clock = Clock(3_600.5)
    limited = Quotas(Tallies(clock), summary_tokens_per_hour=1_000)
    limited.spend("a", 999)
    assert limited.begin("a", "1") is None
    limited.spend("a", 5_000)
    assert limited.begin("a", "1") == Code.SUMMARY_TOKENS_SPENT
    assert limited.begin("b", "1") is None
    clock.now += 3_599
    assert limited.begin("a", "1") == Code.SUMMARY_TOKENS_SPENT
    clock.now += 1
    assert limited.begin("a", "1") is None
