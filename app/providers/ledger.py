"""The ledger stores the tokens and cost of each answered call to a provider. No request waits for this."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import randbytes
from time import monotonic, time_ns

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.conversation.identity import Chain
from app.runtime.caches import MOST_REMEMBERED, BoundedMap
from app.store import UsageRecord
from app.store.write_behind import WriteBehind
from app.telemetry.metrics import Metrics
from app.tokens.costs import (
    UNBILLED,
    Bill,
    EarlierRequest,
    Price,
    PromptEstimate,
    Tariff,
    Tokens,
    charge,
    earlier_request,
    saved,
    saved_cost,
    uncompacted_usage,
)
from app.tokens.counting_rules import LONGEST_MODEL

log = structlog.get_logger("steno.ledger")

PRICES_REMEMBERED = 1_000
"""Number of models whose prices are cached, because comparing a name with all glob patterns is slow."""

NOT_REPORTED = Tokens()
CACHED_SECONDS, CACHED_LONG_SECONDS = 300.0, 3_600.0
"""Seconds for which providers usually cache an unused prompt: by default, and if the client pays for a longer time."""


class _Latest(Struct, frozen=True):
    sent: EarlierRequest
    end: bytes
    """Digest of the whole history."""
    messages: int
    at: float


class Ledger:
    def __init__(
        self,
        writes: WriteBehind,
        tariff_of: Callable[[str, str], Tariff | None],
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`tariff_of` returns prices by the requested model and the model that answered ("" if unknown)."""
        self._writes = writes
        self._metrics = metrics
        self._tariff_of = lru_cache(PRICES_REMEMBERED)(tariff_of)
        self._clock = clock
        self._sent: BoundedMap[tuple[str, str, str], _Latest] = BoundedMap(MOST_REMEMBERED)
        self._latest = 0
        self.heard: list[Callable[[UsageRecord], None]] = []
        """Functions that the ledger calls with each record, in the event loop."""

    def tariff_of(self, model: str, answered: str = "") -> Tariff | None:
        """Return the current prices of the model that answered, or if they are unknown, of the requested model; None if
        both are unknown."""
        return self._tariff_of(model[:LONGEST_MODEL], answered[:LONGEST_MODEL])

    def price_of(self, model: str) -> Price | None:
        """Return the model's price for short prompts (below the first price rise), without a service tier."""
        tariff = self.tariff_of(model)
        return None if tariff is None else tariff.base

    def is_warm(self, tenant: str, conversation_id: str, model: str) -> bool:
        """Whether the provider probably still caches the conversation's last prompt. False until this process has
        received an answer with cached tokens."""
        latest = self._sent.get((tenant, conversation_id, model))
        return latest is not None and latest.sent.caches and self._is_recent(latest)

    def record(
        self,
        call: UsageRecord,
        bill: Bill = UNBILLED,
        chain: Chain | None = None,
        sizes: PromptEstimate | None = None,
    ) -> None:
        """Store an answered call, with its price and saved cost, within about 0.2 s. Never raises. For the call of a
        chat request, `chain` has the digests of the history, and `sizes` the tokens of history and payload."""
        try:
            tokens, whole = call.tokens, None if chain is None or sizes is None else call.tokens
            if chain is not None and sizes is not None and call.status == 200:
                whole = self._uncompacted((call.tenant, call.conversation_id, call.model), tokens, chain, sizes)
            model = call.model[:LONGEST_MODEL]
            tariff = self.tariff_of(model, bill.model)
            charged = charge(tokens, bill, tariff)
            record = replace(
                call,
                id=self._next_id(),
                model=model,
                saved=saved(call.estimated, call.forwarded, call.status),
                searches=bill.searches,
                tier=bill.tier or None,
                price=charged.price,
                price_source=charged.source,
                priced_model=charged.model,
                cost=charged.cost,
                saved_cost=saved_cost(tokens, whole, bill, charged, tariff),
            )
            self._metrics.called(call.purpose, tokens, record.saved, call.estimated, call.forwarded, record.cost)
            if call.values_kept is not None:
                self._metrics.values_kept.observe(call.values_kept)
            self._writes.record_usage(record)
            for hear in self.heard:
                hear(record)
        except Exception:
            log.exception("a call was not recorded", request_id=call.request_id)

    def _uncompacted(self, of: tuple[str, str, str], tokens: Tokens, chain: Chain, sizes: PromptEstimate) -> Tokens:
        """Estimate the usage of the client's unchanged request. Remember this call for the next estimate."""
        latest = self._sent.get(of)
        if latest is not None and (latest.messages >= len(chain.digests) or chain[latest.messages] != latest.end):
            latest = None  # The earlier history is not a prefix of this one: it is another branch, or was edited.
        before, recent = (latest.sent, self._is_recent(latest)) if latest else (None, False)
        whole = uncompacted_usage(tokens, sizes, before, recent=recent)
        if (sent := earlier_request(tokens, whole, sizes, before)) is not None:
            self._sent.keep(of, _Latest(sent, chain.digests[-1], len(chain.digests) - 1, self._clock()))
        return whole

    def _is_recent(self, latest: _Latest) -> bool:
        return self._clock() - latest.at <= (CACHED_LONG_SECONDS if latest.sent.long else CACHED_SECONDS)

    def _next_id(self) -> str:
        """Return an id greater than the last id. Lists order the records of one millisecond by id."""
        now = time_ns()
        self._latest = now if now > self._latest else self._latest + 1
        return f"use_{self._latest:016x}{randbytes(4).hex()}"
