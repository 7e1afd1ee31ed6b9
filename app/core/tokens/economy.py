"""Economy: whether a change of the prompt is worth what it costs.

Theory. Providers charge less for what they read a moment ago. While that holds (the prompt is *warm*), a token of it
costs `again`; what comes after the first changed byte is read anew, and costs `anew`. So a change that frees tokens
saves `freed * again` with every request from this one on, and costs once what it takes to make it (the calls for the
summaries) and, for what follows the change, the difference to what it would have cost unchanged:

    saves = requests * freed * again
    costs = calls + rewritten * (anew - again)

It is worth it if it saves at least what it costs within so many requests. Where nothing is known to be warm, `again`
is `anew`: nothing is lost by changing what is read anew in any case.

Why only postponed is judged alike: a change that is not made now is due again with the next request, and is made at the
latest when the window leaves no choice. Let that be `n` requests later, and let a change serve `requests` of them.
Waiting then costs `n * freed * again`, and spares the share `n / requests` of what the change costs, since it is made
so much less often. Whatever `n` is, waiting pays where `requests * freed * again` is less than the costs.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.tokens.usage import Price


@dataclass(frozen=True, slots=True)
class CostGate:
    """Puts off what would cost more than it saves."""

    requests: int = 10
    """Of one conversation, the current one too, within which a change has to pay."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token of the prompt costs."""

    anew: float
    """Where the provider reads it for the first time, and writes it to its cache."""
    again: float
    """Where the last request had it, too."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change does to the prompts from this one on, in tokens."""

    freed: int
    rewritten: int
    """What stands after the first byte that changes."""


def rates_of(price: Price, *, warm: bool) -> Rates | None:
    """None where the prompt is warm and nobody knows what that is worth."""
    if not warm:
        return Rates(price.prompt, price.prompt)
    if price.cached is None:
        return None
    return Rates(price.prompt if price.written is None else price.written, price.cached)


def is_worth(change: Change, rates: Rates, gate: CostGate, calls: float = 0.0) -> bool:
    """Whether it saves at least what it costs. `calls` is what has to be paid for it beside, in the unit of the rates:
    tokens times the price of a million."""
    saves = gate.requests * change.freed * rates.again
    return saves >= calls + change.rewritten * (rates.anew - rates.again)
