"""Services: the objects that routes and endpoints share. `main` creates them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.compaction.background import Background
from app.compaction.compactor import Compactor
from app.conversation.identity import Identity
from app.formats.format import WireFormat
from app.formats.reader import MessageReader
from app.http.admission import BytesInFlight
from app.providers.ledger import Ledger
from app.providers.providers import Providers
from app.proxy.caller import Authenticator
from app.proxy.conversation_ids import Conversations
from app.proxy.request import ModelLimits
from app.runtime.bounded import LogThrottle
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks, Work
from app.settings import EventSettings, LimitSettings
from app.store import Store
from app.telemetry.metrics import Sampler
from app.telemetry.spans import Tracer
from app.tokens.estimator import Estimator


@dataclass(slots=True)
class Services:
    providers: Providers
    model_limits: ModelLimits
    store: Store
    identity: Identity
    formats: tuple[WireFormat, ...]
    readers: Mapping[str, MessageReader]
    """Readers by format name."""
    estimator: Estimator
    compactor: Compactor
    background: Background
    ledger: Ledger
    conversations: Conversations
    tasks: OwnedTasks
    authenticator: Authenticator
    throttle: LogThrottle
    in_flight: BytesInFlight
    work: Work
    limits: LimitSettings
    events: EventSettings
    base_model: Callable[[str], str]
    """Return the model whose token rules and limits apply to a given model."""
    keeps_messages: bool
    sampler: Sampler
    tracer: Tracer | None
    """None if tracing is off."""

    async def erase(self, tenant: str) -> None:
        erased = Erased(tenant)
        self.conversations.forget(erased)
        await self.providers.forget(tenant)
        await self.store.erase_tenant(tenant)
        # Last, because a request may load summaries again until they are deleted.
        self.compactor.forget(erased)

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and the summaries it made. Return False if it did not exist."""
        erased = Erased(tenant, conversation_id)
        self.conversations.forget(erased)
        was_there = await self.store.delete_conversation(tenant, conversation_id)
        # Last, as in `erase`.
        self.compactor.forget(erased)
        return was_there

    @property
    def format(self) -> WireFormat:
        """Default format, for bodies at a path without a format of its own."""
        return self.formats[0]
