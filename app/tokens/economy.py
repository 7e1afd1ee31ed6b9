"""Economy: whether a change of the prompt is worth what it costs.

Theory. Providers charge less for what they read a moment ago. While that holds (the prompt is *warm*), a token of it
costs `again`; what comes after the first changed byte is read anew, and costs `anew`. So a change that frees tokens
saves `freed * again` with every request from this one on, and costs once what it takes to make it (the calls for the
summaries) and, for what follows the change, the difference to what it would have cost unchanged:

    saves = requests * freed * again
    costs = calls + rewritten * (anew - again)

It is worth it if it saves at least what it costs. Where nothing is known to be warm, `again` is `anew`: nothing is lost
by changing what is read anew in any case.

How many requests: nobody knows when a conversation ends. What is known is how it came here: it grew by `growth` tokens
with each request, so what a change would free has been carried for `freed / growth` of them, half of it in the mean.
Carrying it has cost as much as `freed / (2 * growth)` requests with all of it. So many more are counted on: a change is
made once going without it has cost what it costs. Whoever buys when the rent has reached the price pays at most twice
what they would, had they known the end. And one that goes on for good pays least like this: it has grown back after
`freed / growth` requests, and is changed again. If that is always done when it has grown by as much, a request costs
`costs * growth / freed` for changes and, in the mean, `again * freed / 2` more than just after one. The sum is least
where `freed * again * freed / (2 * growth)` is what a change costs; before that it pays to wait. (It is the rule by
which a stock is refilled: as the root of the costs of ordering, through those of holding it.)

That a change is only put off, and made later in any case, is in this already: waiting for `n` requests costs
`n * freed * again`, and spares the share `n / requests` of the costs, since it is done so much less often. Whatever `n`
is, waiting pays where `requests * freed * again` is less than the costs.
"""

from __future__ import annotations

from msgspec import Struct

from app.tokens.usage import Price


class CostGate(Struct, frozen=True):
    """Puts off what would cost more than it saves."""

    requests: int = 10
    """Least number of the conversation's requests, the current one too, that are counted on, whatever it was like so
    far."""


class Rates(Struct, frozen=True):
    """Prices of a token of the prompt."""

    anew: float
    """Price where the provider reads it for the first time, and writes it to its cache."""
    again: float
    """Price where the last request had it, too."""


class Change(Struct, frozen=True):
    """Difference that a change makes to the prompts from this one on, in tokens."""

    freed: int
    rewritten: int
    """Tokens after the first byte that changes."""
    growth: float
    """Tokens that each request added so far."""


COMMON_PRICE = Price(prompt=1.0, completion=5.0, cached=0.1)
"""Ratio that holds for most models: it decides where a model has no price. Where there is a cache at all, a local
model's too, what is read anew takes longer, if nothing else."""


def rates_of(price: Price, *, warm: bool) -> Rates | None:
    """Rates of a price; None where the prompt is warm and nobody knows what that is worth."""
    if not warm:
        return Rates(price.prompt, price.prompt)
    if price.cached is None:
        return None
    return Rates(price.prompt if price.written is None else price.written, price.cached)


def is_worth(change: Change, rates: Rates, gate: CostGate, calls: float = 0.0) -> bool:
    """Whether it saves at least what it costs. `calls` is what has to be paid for it beside, in the unit of the rates:
    tokens times the price of a million."""
    requests = max(gate.requests, change.freed / (2 * max(1.0, change.growth)))
    saves = requests * change.freed * rates.again
    return saves >= calls + change.rewritten * (rates.anew - rates.again)
