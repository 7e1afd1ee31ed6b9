"""What was erased is told to other processes without a name in it."""

from __future__ import annotations

import pytest

from app.runtime.erased import Erased


@pytest.mark.parametrize("conversation_id", ["one", "", "with spaces", "nul\0", "\ud800half", "é" * 5_000])
def test_a_conversation_is_told_by_a_word_that_only_covers_it(conversation_id: str) -> None:
    told = Erased.told_by(Erased.of("tenant", conversation_id).message)
    assert told is not None
    assert told.covers("tenant", conversation_id)
    assert not told.covers("tenant", "other")
    assert not told.covers("other", conversation_id)
    assert not conversation_id or conversation_id not in told.message
    assert len(told.message) < 200


def test_a_tenant_is_told_with_all_of_his_conversations() -> None:
    told = Erased.told_by(Erased.of("a tenant").message)
    assert told == Erased("a tenant")
    assert told.covers("a tenant", "any")
    assert not told.covers("another", "any")


def test_other_messages_erase_nothing() -> None:
    assert Erased.told_by("0123456789abcdef") is None
