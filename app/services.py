"""What the routes work with, put together once by `main`."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.calibrations import Calibrations
from app.compactor import Compactor
from app.conversations import Conversations
from app.core.budget import Shares
from app.core.identity import Identity
from app.estimator import Estimator
from app.settings import Settings
from app.store import Store
from app.tasks import OwnedTasks
from app.tenants import Tenants
from app.upstream import Upstream
from app.windows import Windows
from app.wire.chat_completions import MessageReader

HEURISTIC_CAUTION = 0.85
"""Trigger and target are scaled by this where tokens are only estimated by bytes."""


@dataclass(slots=True)
class Services:
    settings: Settings
    upstream: Upstream
    store: Store
    identity: Identity
    reader: MessageReader
    estimator: Estimator
    calibrations: Calibrations
    windows: Windows
    compactor: Compactor
    conversations: Conversations
    tasks: OwnedTasks
    tenants: Tenants
    not_asked: set[str] = field(default_factory=set)
    """Models whose streams are not asked for their usage: the provider refuses to tell it, or tells it unasked."""

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
