"""`POST /context/compact`, where its conversation is deleted meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from app.api import compactions
from app.compaction.decision import UNTOUCHED


async def test_nothing_is_stored_of_what_was_erased_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactions, "count_messages", AsyncMock())
    # A store that only answers this question: anything else would be an error.
    store = SimpleNamespace(is_erased=lambda *key: key == ("tenant", "conversation", 3))
    compaction = SimpleNamespace(for_request=lambda _: SimpleNamespace(prepare=AsyncMock(return_value=UNTOUCHED)))
    services: Any = SimpleNamespace(store=store, keeps_messages=True, compactor=compaction)
    key = {"tenant": "tenant", "conversation_key": ("tenant", "conversation"), "epoch": 3}
    chat: Any = SimpleNamespace(**key, conversation=None, prompt=None)
    record: Any = SimpleNamespace(decided=lambda *_, **__: None)
    assert await compactions._prepare(services, chat, record) is UNTOUCHED
