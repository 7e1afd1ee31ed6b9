"""Allowances: what a tenant may have of the providers, counted by all processes together."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from math import ceil
from time import time

from msgspec import Struct

from app.core.tokens.usage import MILLIONTHS, Price
from app.errors import LimitReached, MoneySpent
from app.settings import LimitSettings
from app.store import UsageRecord
from app.store.tallies import DAY, MINUTE, Tallies, Window

REQUESTS = Window("requests", MINUTE)
TOKENS = Window("tokens", DAY)
MONEY = Window("money", DAY)


class Limit(Struct, frozen=True):
    """Most that a tenant may use in a window."""

    window: Window
    most: float
    name: str
    """Name of the setting."""
    unit: str
    """Unit, such as `tokens a day`."""


class Allowances:
    def __init__(self, tallies: Tallies, limits: LimitSettings, price_of: Callable[[str], Price | None]) -> None:
        """`price_of`: the price of a model, for calls whose cost nobody reported."""
        self._tallies = tallies
        self._price_of = price_of
        self._limits = tuple(
            Limit(window, most, f"limits.{name}", unit)
            for window, most, name, unit in (
                (REQUESTS, limits.requests_per_minute, "requests_per_minute", "requests a minute"),
                (TOKENS, limits.tokens_per_day, "tokens_per_day", "tokens a day"),
                (MONEY, limits.money_per_day, "money_per_day", "of money a day"),
            )
            if most is not None
        )
        counted = {limit.window for limit in self._limits}
        self._counts_requests = REQUESTS in counted
        self.counts_usage = bool(counted & {TOKENS, MONEY})

    def admit(self, tenant: str) -> None:
        """Count a request that may go to a provider. Raises `LimitReached` and `MoneySpent`."""
        for limit in self._limits:
            if self._tallies.used(tenant, limit.window) >= limit.most:
                raise self._refusal(limit)
        if self._counts_requests:
            self._tallies.add(tenant, REQUESTS, 1)

    def spent(self, record: UsageRecord) -> None:
        """Count an answered call. If no usage was reported, the estimated prompt counts."""
        if record.status != 200:
            return
        prompt, completion, cost = record.tokens.prompt, record.tokens.completion or 0, record.cost
        if prompt is None:
            prompt = record.forwarded or 0
            price = self._price_of(record.model)
            cost = cost if price is None else prompt * price.prompt / MILLIONTHS
        self._tallies.add(record.tenant, TOKENS, prompt + completion)
        if cost is not None:
            self._tallies.add(record.tenant, MONEY, cost)

    def _refusal(self, limit: Limit) -> LimitReached:
        seconds = self._tallies.seconds_left(limit.window)
        ends = datetime.fromtimestamp(ceil(time() + seconds), UTC)
        text = (
            f"The limit of {limit.most:,g} {limit.unit} for each tenant ({limit.name}) is reached."
            f" It begins anew at {ends:%Y-%m-%dT%H:%M:%SZ}, in {ceil(seconds)} s."
        )
        return (MoneySpent if limit.window is MONEY else LimitReached)(text, seconds)
