"""The ledger: what every answered call to a provider took, as the provider reported it. Never in a request's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import lru_cache
from time import monotonic, time_ns

import structlog

from app.core.tokens.rules import LONGEST_MODEL
from app.core.tokens.usage import Decided, Made, Price, Purpose, Tokens, cost, saved
from app.core.values import value
from app.memory.bounded import MOST_REMEMBERED, BoundedMap
from app.memory.randomness import RANDOMNESS
from app.metrics.metrics import Metrics
from app.store import Store, UsageRecord

log = structlog.get_logger("steno.ledger")

PRICES_REMEMBERED = 1_000
"""Models: comparing a name with every glob takes longer than all the rest."""


CACHED_SECONDS = 300.0
"""How long providers usually keep a prompt that nobody asks for again."""
WARM_SHARE = 0.5
"""Of a prompt that was read from the cache or written to it: from there on the next one finds most of itself there."""


def new_request_id() -> str:
    """For one request of a client, and all calls that it leads to."""
    return f"req_{RANDOMNESS.hex(12)}"


@value
class Call:
    """A call that a provider answered."""

    tenant: str
    conversation_id: str
    request_id: str
    turn: int
    """User messages in the request's history."""
    purpose: Purpose
    upstream: str
    """Its name in the settings."""
    model: str
    status: int
    tokens: Tokens = field(default_factory=Tokens)
    """As far as the provider reported them."""
    estimated: int | None = None
    """Tokens of what came, and of what was sent, where they were counted."""
    forwarded: int | None = None
    context_status: str | None = None
    values_kept: float | None = None
    """Of a summary: the share of the exact values beside it that its text holds."""
    decided: Decided | None = None
    """Of a message."""
    made: Made | None = None
    """Of a summary."""


class Ledger:
    """Writes through the store's write-behind."""

    def __init__(
        self,
        store: Store,
        price_of: Callable[[str], Price | None],
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._price_of = lru_cache(PRICES_REMEMBERED)(price_of)
        self._warm: BoundedMap[tuple[str, str, str], bool] = BoundedMap(
            MOST_REMEMBERED, seconds=CACHED_SECONDS, clock=clock
        )
        self._latest = 0
        self.heard: Callable[[UsageRecord], None] | None = None
        """Who else hears of each record, at once and in the server's own loop."""

    def price_of(self, model: str) -> Price | None:
        """What a call costs now; None where nobody knows."""
        return self._price_of(model[:LONGEST_MODEL])

    def is_warm(self, tenant: str, conversation_id: str, model: str) -> bool:
        """Whether the provider's cache holds most of what the conversation sent last. Where nobody said so, it does
        not; nor where only another replica knows."""
        return bool(self._warm.get((tenant, conversation_id, model)))

    def record(self, call: Call) -> None:
        """Stored within about 0.2 s. Whatever goes wrong, no request fails for it."""
        try:
            self._note(call)
            record = self._record(call)
            self._metrics.called(
                record.purpose, record.tokens, record.saved, record.estimated, record.forwarded, record.cost
            )
            if record.values_kept is not None:
                self._metrics.summarised(record.values_kept)
            self._store.record_usage(record)
            if self.heard is not None:
                self.heard(record)
        except Exception:
            log.exception("a call was not recorded", request_id=call.request_id)

    def _note(self, call: Call) -> None:
        """What the answer says about the provider's cache."""
        prompt, cached, written = call.tokens.prompt, call.tokens.cached, call.tokens.written
        if call.purpose != "message" or not prompt or (cached is None and written is None):
            return
        held = (cached or 0) + (written or 0)
        self._warm.keep((call.tenant, call.conversation_id, call.model), held >= WARM_SHARE * prompt)

    def _record(self, call: Call) -> UsageRecord:
        model = call.model[:LONGEST_MODEL]
        tokens, price = call.tokens, self.price_of(model)
        return UsageRecord(
            tenant=call.tenant,
            id=self._next_id(),
            conversation_id=call.conversation_id,
            request_id=call.request_id,
            turn=call.turn,
            purpose=call.purpose,
            upstream=call.upstream,
            model=model,
            estimated=call.estimated,
            forwarded=call.forwarded,
            saved=saved(call.estimated, call.forwarded, call.status),
            tokens=tokens,
            price=price,
            cost=cost(tokens, price),
            status=call.status,
            context_status=call.context_status,
            values_kept=call.values_kept,
            decided=call.decided,
            made=call.made,
        )

    def _next_id(self) -> str:
        """Each greater than the one before: many records are stored in the same millisecond."""
        self._latest = max(self._latest + 1, time_ns())
        return f"use_{self._latest:016x}{RANDOMNESS.hex(4)}"
