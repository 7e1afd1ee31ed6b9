"""What the routes work with, put together once by `main`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from app.compaction.background import Background
from app.compaction.compactor import Compactor
from app.compaction.quotas import Quotas
from app.compaction.references import References
from app.core.history.identity import Identity
from app.memory.repeats import Repeats
from app.metrics.sampling import Sampler
from app.providers.ledger import Ledger
from app.providers.providers import Providers
from app.proxy.conversations import Conversations
from app.proxy.in_flight import BytesInFlight
from app.proxy.measuring import Measuring
from app.proxy.naming import Naming
from app.proxy.tenants import Tenants
from app.settings import CalibrationSettings, EventSettings, LimitSettings
from app.store import Store
from app.tasks.owned import OwnedTasks
from app.tasks.threads import Work
from app.tokens.estimator import Estimator
from app.tracing.spans import Tracer
from app.wire.format import BodyBounds, WireFormat
from app.wire.reader import MessageReader

T = TypeVar("T")


@dataclass(slots=True)
class Services:
    providers: Providers
    measuring: Measuring
    store: Store
    identity: Identity
    formats: tuple[WireFormat, ...]
    readers: Mapping[str, MessageReader]
    """By the names of their formats."""
    estimator: Estimator
    compactor: Compactor
    background: Background
    ledger: Ledger
    has_list_prices: bool
    """Whether calls are charged by the public prices."""
    conversations: Conversations
    tasks: OwnedTasks
    tenants: Tenants
    repeats: Repeats
    quotas: Quotas
    in_flight: BytesInFlight
    work: Work
    bounds: BodyBounds
    """Of a chat request that is read."""
    limits: LimitSettings
    naming: Naming
    events: EventSettings
    calibration: CalibrationSettings
    base_model: Callable[[str], str]
    """The model that a model is counted and sized as."""
    overflow_retries: int
    references: References
    keeps_messages: bool
    """Whether they are archived."""
    sampler: Sampler
    tracer: Tracer | None
    """None where no traces are wanted."""

    @property
    def format(self) -> WireFormat:
        """Of a body that comes to no format's own path."""
        return self.formats[0]
