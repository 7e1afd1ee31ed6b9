"""What the routes work with, put together once by `main`."""

from __future__ import annotations

from dataclasses import dataclass

from app.compactor import Compactor
from app.conversations import Conversations
from app.core.identity import Identity
from app.estimator import Estimator
from app.in_flight import BytesInFlight
from app.ledger import Ledger
from app.policies import Policies
from app.providers import Providers
from app.quotas import Quotas
from app.repeats import Repeats
from app.settings import Settings
from app.store import Store
from app.tasks import OwnedTasks
from app.tenants import Tenants
from app.wire.chat_completions import Bounds, MessageReader
from app.work import Work

HEURISTIC_CAUTION = 0.85
"""Trigger and target are scaled by this where tokens are only estimated by bytes."""


@dataclass(slots=True)
class Services:
    settings: Settings
    providers: Providers
    policies: Policies
    store: Store
    identity: Identity
    reader: MessageReader
    estimator: Estimator
    compactor: Compactor
    ledger: Ledger
    conversations: Conversations
    tasks: OwnedTasks
    tenants: Tenants
    repeats: Repeats
    quotas: Quotas
    in_flight: BytesInFlight
    work: Work
    bounds: Bounds
