"""What the routes work with, put together once by `main`."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.compactor import Compactor
from app.conversations import Conversations
from app.core.budget import Shares, Window
from app.core.estimate import Count
from app.core.identity import Identity
from app.settings import Settings
from app.store import Store
from app.tasks import OwnedTasks
from app.tenants import Tenants
from app.tokenizer import Counter, Tokenizer
from app.upstream import Upstream
from app.windows import window_of
from app.wire.chat_completions import MessageReader

HEURISTIC_CAUTION = 0.85
"""Trigger and target are scaled by this where tokens are only estimated by bytes."""


@dataclass(slots=True)
class Services:
    settings: Settings
    upstream: Upstream
    store: Store
    identity: Identity
    tokenizer: Tokenizer
    compactor: Compactor
    conversations: Conversations
    tasks: OwnedTasks
    tenants: Tenants
    readers: dict[str, MessageReader] = field(default_factory=dict)

    @property
    def shares(self) -> Shares:
        compaction = self.settings.compaction
        return Shares(
            trigger=compaction.trigger.token_ratio,
            floor_tokens=compaction.floor_tokens,
            target=compaction.target_ratio,
            tail_turns=compaction.tail.turns,
            tail=compaction.tail.max_ratio,
            max_summary_tokens=self.settings.summary.max_tokens,
        )

    def counter(self, model: str) -> Counter:
        return self.tokenizer.counter(model)

    def reader(self, counter: Counter) -> MessageReader:
        """One for each encoding: what a message costs depends on it."""
        if counter.encoding not in self.readers:
            count: Count = counter
            self.readers[counter.encoding] = MessageReader(self.identity, count, self.settings.identity.ignore)
        return self.readers[counter.encoding]

    def window(self, model: str) -> Window:
        return window_of(model, self.settings.models)
