"""The cost gate: whether a change of the prompt is worth what it costs.

1. Providers charge less for what they read a moment ago. While that holds (the prompt is *warm*), a token of it costs
   `cached`; what comes after the first changed byte costs `uncached`. So a change that frees tokens saves
   `freed * cached` with every request from this one on, and costs once the calls for its summaries and, for what
   follows the change, the difference to what it would have cost unchanged:

       saves = requests * freed * cached
       costs = calls + rewritten * (uncached - cached)

   Where nothing is warm, `cached` is `uncached`: nothing is lost by a change.
2. The number of further requests is unknown. The conversation grew by `growth` tokens with each request, so it has
   carried what a change would free for `freed / growth` of them, half of it in the mean. As many more are counted on as
   have paid for all of it, `freed / (2 * growth)`: a change is made once going without it has cost as much. That costs
   at most twice what would have been best, had the end been known (the ski rental problem), and least where the
   conversation goes on for good (the economic order quantity).
3. That a change is only put off is in this already: waiting for `n` requests costs `n * freed * cached`, and spares the
   share `n / requests` of the costs.
"""

from __future__ import annotations

from msgspec import Struct

from app.tokens.usage import Price


class CostGate(Struct, frozen=True):
    """Puts off what would cost more than it saves."""

    requests: int = 10
    """Least number of further requests that are counted on, the current one included."""


class Rates(Struct, frozen=True):
    """Prices of a token of the prompt."""

    uncached: float
    """Price where the provider reads it for the first time, and writes it to its cache."""
    cached: float


class Change(Struct, frozen=True):
    """Difference that a change makes to the prompts from this one on, in tokens."""

    freed: int
    rewritten: int
    """Tokens after the first byte that changes."""
    growth: float
    """Tokens that each request added so far."""


COMMON_PRICE = Price(prompt=1.0, completion=5.0, cached=0.1)
"""Stands for the price of a model without one: the ratio that most models have. A local model's cache spares time."""


def rates_of(price: Price, *, warm: bool) -> Rates | None:
    """Rates of a price; None where the prompt is warm and the price of cached tokens is unknown."""
    if not warm:
        return Rates(price.prompt, price.prompt)
    if price.cached is None:
        return None
    return Rates(price.prompt if price.written is None else price.written, price.cached)


def is_worth(change: Change, rates: Rates, gate: CostGate, calls: float = 0.0) -> bool:
    """Whether the change saves at least what it costs. `calls` is the cost of its summaries, in tokens times the price
    of a million."""
    requests = max(gate.requests, change.freed / (2 * max(1.0, change.growth)))
    saves = requests * change.freed * rates.cached
    return saves >= calls + change.rewritten * (rates.uncached - rates.cached)
