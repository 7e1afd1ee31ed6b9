"""The ledger: what every answered call to a provider took, as the provider told it. Never in a request's way."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from time import time_ns

import structlog

from app.core.tokens.rules import LONGEST_MODEL
from app.core.tokens.usage import Price, Purpose, Tokens, cost, saved
from app.metrics.metrics import Metrics
from app.store import Store, UsageRecord

log = structlog.get_logger("steno.ledger")

PRICES_REMEMBERED = 1_000
"""Models: comparing a name with every glob takes longer than all the rest."""


def new_request_id() -> str:
    """For one request of a client, and all calls that it leads to."""
    return f"req_{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
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
    """As far as the provider told them."""
    estimated: int | None = None
    """Tokens of what came, and of what was sent, where they were counted."""
    forwarded: int | None = None
    context_status: str | None = None


class Ledger:
    """Writes through the store's write-behind."""

    def __init__(self, store: Store, price_of: Callable[[str], Price | None], metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._price_of = lru_cache(PRICES_REMEMBERED)(price_of)
        self._latest = 0

    def record(self, call: Call) -> None:
        """Stored within about 0.2 s. Whatever goes wrong, no request fails for it."""
        try:
            record = self._record(call)
            self._metrics.called(record.purpose, record.tokens, record.saved)
            self._store.record_usage(record)
        except Exception:
            log.exception("a call was not recorded", request_id=call.request_id)

    def _record(self, call: Call) -> UsageRecord:
        model = call.model[:LONGEST_MODEL]
        tokens, price = call.tokens, self._price_of(model)
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
        )

    def _next_id(self) -> str:
        """Each greater than the one before: many records are stored in the same millisecond."""
        self._latest = max(self._latest + 1, time_ns())
        return f"use_{self._latest:016x}{secrets.token_hex(4)}"
