"""`POST /context/compact`, where its conversation is deleted meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app.api.compactions import _keep
from app.compaction.decision import UNTOUCHED


async def test_nothing_is_stored_of_what_was_erased_meanwhile() -> None:
    # A store that only answers this question: anything else would be an error.
    store = SimpleNamespace(is_erased=lambda *key: key == ("tenant", "conversation", 3))
    services: Any = SimpleNamespace(store=store, keeps_messages=True)
    chat: Any = SimpleNamespace(conversation_key=("tenant", "conversation"), epoch=3)
    record: Any = SimpleNamespace(decided=lambda *_, **__: None)
    await _keep(services, chat, record, UNTOUCHED, 0.0)
