"""Usage: the tokens a provider says a call took, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.core.values import value

Purpose = Literal["message", "summary", "background"]
"""`background`: for a summary, too, but after a request's answer, for those to come."""
Kind = Literal["prompt", "cached", "written", "completion"]
PriceSource = Literal["settings", "registry"]
"""Whether a price is the operator's own, or the public list price, which is in US dollars."""

MILLIONTHS = 1_000_000
"""Of the currency unit in one unit, and tokens that a price is for: so a token costs its price in millionths."""


@value
class Tokens:
    """What a provider reported of one call; None where it did not say."""

    prompt: int | None = None
    """With those that came from its cache, and those that were written to it."""
    completion: int | None = None
    """With those of its reasoning."""
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None
    """Of the prompt, put into the provider's cache for later calls."""


@value
class Decided:
    """What was decided for a request. Tokens are the provider's."""

    window: int
    limit: int
    """What the prompt may use of it."""
    trigger: int
    """Over so many tokens a compaction is due, where the trigger goes by tokens."""
    actions: tuple[str, ...] = ()
    """What was done to its history."""
    reason: str | None = None
    """Why something could not be done."""
    waited_seconds: float | None = None
    """How long it waited for a compaction; None where none was being made for it."""


@value
class Made:
    """What a call for a summary came to. Tokens are the provider's."""

    seconds: float
    """How long the call took."""
    replaced: int
    """Tokens of what its summary was to stand for."""
    summary: int | None = None
    """Tokens of the summary as it stands in a payload, with what stands beside its text; None where none was kept."""
    summary_id: str | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs: currency units for a million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """For prompt tokens from the provider's cache, where they have a price of their own."""
    written: float | None = None
    """For prompt tokens that are written to it, likewise."""
    source: PriceSource = "settings"


@dataclass(frozen=True, slots=True)
class Spend:
    """One row of the ledger. Amount and value are negative, because they leave the account."""

    kind: Kind
    amount: int
    """Tokens."""
    rate: float | None
    value: float | None
    """Amount times rate: millionths of the currency unit."""


def spends(tokens: Tokens, price: Price | None) -> tuple[Spend, ...]:
    """The rows of one call. Their amounts are the tokens reported: cached and written ones leave the prompt's row only
    for their own."""
    return tuple(
        Spend(kind, -amount, rate, None if rate is None else -amount * rate)
        for kind, amount, rate in _amounts(tokens, price)
    )


def cost(tokens: Tokens, price: Price | None) -> float | None:
    """What a call cost in currency units; None unless price, prompt and completion are known."""
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    return sum([amount * (rate or 0.0) for _, amount, rate in _amounts(tokens, price)]) / MILLIONTHS


def saved(estimated: int | None, forwarded: int | None, status: int) -> int:
    """Tokens that a call was spared. One that was refused was spared nothing: another one has to bring the answer."""
    return 0 if estimated is None or forwarded is None or status != 200 else estimated - forwarded


def _amounts(tokens: Tokens, price: Price | None) -> list[tuple[Kind, int, float | None]]:
    """What each row counts, and the price of a million of it."""
    amounts: list[tuple[Kind, int, float | None]] = []
    if tokens.prompt is not None:
        cached = tokens.cached or 0 if price and price.cached is not None else 0
        written = tokens.written or 0 if price and price.written is not None else 0
        amounts.append(("prompt", tokens.prompt - cached - written, price.prompt if price else None))
        if cached:
            amounts.append(("cached", cached, price.cached if price else None))
        if written:
            amounts.append(("written", written, price.written if price else None))
    if tokens.completion is not None:
        amounts.append(("completion", tokens.completion, price.completion if price else None))
    return amounts
