"""What an erasure covers."""

from __future__ import annotations

import pytest

from app.runtime.bounded import Erased


@pytest.mark.parametrize("conversation_id", ["one", "", "with spaces", "nul\0", "\ud800half", "caf\u00e9"])
def test_an_erased_conversation_covers_itself_alone(conversation_id: str) -> None:
    erased = Erased("tenant", conversation_id)
    assert erased.covers("tenant", conversation_id)
    assert not erased.covers("tenant", "other")
    assert not erased.covers("tenant", "caf?")
    assert not erased.covers("other", conversation_id)


def test_an_erased_tenant_covers_all_its_conversations() -> None:
    erased = Erased("a tenant")
    assert erased.covers("a tenant", "any")
    assert not erased.covers("another", "any")
