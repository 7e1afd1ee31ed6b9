"""The ledger: what every answered call to a provider took, as the provider reported it. Never in a request's way."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import monotonic, time_ns

import structlog

from app.core.tokens.rules import LONGEST_MODEL
from app.core.tokens.usage import UNBILLED, Bill, Decided, Made, Price, Purpose, Tariff, Tokens, charge, saved
from app.memory.bounded import MOST_REMEMBERED, BoundedMap
from app.memory.randomness import RANDOMNESS
from app.metrics.metrics import Metrics
from app.store import Store, UsageRecord

log = structlog.get_logger("steno.ledger")

PRICES_REMEMBERED = 1_000
"""Models: comparing a name with every glob takes longer than all the rest."""

NOT_REPORTED = Tokens()
CACHED_SECONDS = 300.0
"""How long providers usually keep a prompt that nobody asks for again."""
WARM_SHARE = 0.5
"""Of a prompt that was read from the cache or written to it: from there on the next one finds most of itself there."""


def new_request_id() -> str:
    """For one request of a client, and all calls that it leads to."""
    return f"req_{RANDOMNESS.hex(12)}"


class Ledger:
    """Writes through the store's write-behind."""

    def __init__(
        self,
        store: Store,
        tariff_of: Callable[[str, str], Tariff | None],
        metrics: Metrics,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`tariff_of`: what a model costs, by the name that was asked for and the one that answered, if it is known."""
        self._store = store
        self._metrics = metrics
        self._tariff_of = lru_cache(PRICES_REMEMBERED)(tariff_of)
        self._warm: BoundedMap[tuple[str, str, str], bool] = BoundedMap(
            MOST_REMEMBERED, seconds=CACHED_SECONDS, clock=clock
        )
        self._latest = 0
        self.heard: Callable[[UsageRecord], None] | None = None
        """Who else hears of each record, at once and in the server's own loop."""

    def tariff_of(self, model: str, answered: str = "") -> Tariff | None:
        """What calls cost now: of the model that answered, where that is known, or of the one that was asked for; None
        where nobody knows."""
        return self._tariff_of(model[:LONGEST_MODEL], answered[:LONGEST_MODEL])

    def price_of(self, model: str) -> Price | None:
        """The same of a call of usual size and tier."""
        tariff = self.tariff_of(model)
        return None if tariff is None else tariff.base

    def is_warm(self, tenant: str, conversation_id: str, model: str) -> bool:
        """Whether the provider's cache holds most of what the conversation sent last. Where nobody said so, it does
        not; nor where only another replica knows."""
        return bool(self._warm.get((tenant, conversation_id, model)))

    def record(
        self,
        *,
        tenant: str,
        conversation_id: str,
        request_id: str,
        turn: int,
        purpose: Purpose,
        upstream: str,
        format_: str,
        model: str,
        status: int,
        tokens: Tokens = NOT_REPORTED,
        bill: Bill = UNBILLED,
        estimated: int | None = None,
        forwarded: int | None = None,
        context_status: str | None = None,
        values_kept: float | None = None,
        decided: Decided | None = None,
        made: Made | None = None,
    ) -> None:
        """A call that a provider answered, with what `UsageRecord` says of it. Stored within about 0.2 s. Whatever goes
        wrong, no request fails for it."""
        try:
            if purpose == "message":
                self._note((tenant, conversation_id, model), tokens)
            model = model[:LONGEST_MODEL]
            charged = charge(tokens, bill, self.tariff_of(model, bill.model))
            record = UsageRecord(
                tenant=tenant,
                id=self._next_id(),
                conversation_id=conversation_id,
                request_id=request_id,
                turn=turn,
                purpose=purpose,
                upstream=upstream,
                format=format_,
                model=model,
                estimated=estimated,
                forwarded=forwarded,
                saved=saved(estimated, forwarded, status),
                tokens=tokens,
                searches=bill.searches,
                tier=bill.tier or None,
                price=charged.price,
                price_source=charged.source,
                priced_model=charged.model,
                cost=charged.cost,
                status=status,
                context_status=context_status,
                values_kept=values_kept,
                decided=decided,
                made=made,
            )
            self._metrics.called(purpose, tokens, record.saved, estimated, forwarded, record.cost)
            if values_kept is not None:
                self._metrics.summarised(values_kept)
            self._store.record_usage(record)
            if self.heard is not None:
                self.heard(record)
        except Exception:
            log.exception("a call was not recorded", request_id=request_id)

    def _note(self, of: tuple[str, str, str], tokens: Tokens) -> None:
        """What the answer says about the provider's cache."""
        prompt, cached, written = tokens.prompt, tokens.cached, tokens.written
        if prompt and (cached is not None or written is not None):
            self._warm.keep(of, (cached or 0) + (written or 0) >= WARM_SHARE * prompt)

    def _next_id(self) -> str:
        """Each greater than the one before: many records are stored in the same millisecond."""
        now = time_ns()
        self._latest = now if now > self._latest else self._latest + 1
        return f"use_{self._latest:016x}{RANDOMNESS.hex(4)}"
