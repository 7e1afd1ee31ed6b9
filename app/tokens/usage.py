"""Usage: the tokens a provider says a call took, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct, field

Purpose = Literal["message", "summary", "background"]
"""`background`: for a summary, too, but after a request's answer, for those to come."""
Kind = Literal["prompt", "cached", "written", "written_hour", "audio", "completion", "speech", "search"]
PriceSource = Literal["provider", "settings", "registry"]
"""Whether a cost is the provider's own bill, or by the operator's price, or by the public list price. The first and the
last are in US dollars."""

MOST_TOKENS = 100_000_000
"""No window and no prompt is larger: a larger number counts no tokens."""
MILLIONTHS = 1_000_000
"""Millionths in one currency unit, and tokens that a price is for: so a token costs its price in millionths."""


class Tokens(Struct, frozen=True):
    """Tokens that a provider reported of one call; None where it did not say."""

    prompt: int | None = None
    """Tokens of the prompt, with those that came from its cache, and those that were written to it."""
    completion: int | None = None
    """Tokens of the completion, with those of its reasoning."""
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None
    """Tokens of the prompt that were put into the provider's cache for later calls."""
    written_hour: int | None = None
    """Tokens among `written` that are kept for an hour."""
    audio: int | None = None
    """Tokens of sound in the prompt that came from no cache."""
    speech: int | None = None
    """Tokens of sound in the completion."""


class Bill(Struct, frozen=True):
    """Price as an answer tells it, beside its tokens; empty or None where it does not say."""

    model: str = ""
    """The model that answered."""
    tier: str = ""
    """The service tier that it is charged by, as the provider calls it."""
    region: str = ""
    """Region it was computed in, where that is charged for."""
    searches: int = 0
    """Searches of the web, each charged for."""
    cost: float | None = None
    """Cost that the provider charged, in US dollars."""


UNBILLED = Bill()


class Decided(Struct, frozen=True):
    """Decision about a request. Tokens are the provider's."""

    window: int
    limit: int
    """Tokens of the window that the prompt may use."""
    trigger: int
    """Tokens over which a compaction is due, where the trigger counts tokens."""
    actions: tuple[str, ...] = ()
    """Actions on its history, in their order."""
    reason: str | None = None
    """Why something could not be done."""
    waited_seconds: float | None = None
    """How long it waited for a compaction; None where none was being made for it."""


class Made(Struct, frozen=True):
    """Result of a call for a summary. Tokens are the provider's."""

    seconds: float
    """How long the call took."""
    replaced: int
    """Tokens of what its summary was to stand for."""
    summary: int | None = None
    """Tokens of the summary as it stands in a payload, with what stands beside its text; None where none was kept."""
    summary_id: str | None = None


class Price(Struct, frozen=True):
    """Price of one call: currency units for a million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """Price of prompt tokens from the provider's cache, where they have one of their own; likewise the others."""
    written: float | None = None
    """Price of prompt tokens that are written to the cache."""
    written_hour: float | None = None
    """Price of prompt tokens that the cache keeps for an hour."""
    audio: float | None = None
    """Price of sound in the prompt."""
    speech: float | None = None
    """Price of sound in the completion."""
    search: float | None = None
    """Price of a million searches of the web."""

    def times(self, factor: float) -> Price:
        """Price of what is computed where tokens cost more, or less. A search costs the same."""
        return Price(
            self.prompt * factor,
            self.completion * factor,
            cached=_times(self.cached, factor),
            written=_times(self.written, factor),
            written_hour=_times(self.written_hour, factor),
            audio=_times(self.audio, factor),
            speech=_times(self.speech, factor),
            search=self.search,
        )


Steps = tuple[tuple[int, Price], ...]
"""Prices by the size of the prompt: each holds for prompts of more tokens than its number, the first for all."""


class Tariff(Struct, frozen=True):
    """Prices of a model, by what its answers say."""

    model: str
    """Model whose prices they are."""
    source: PriceSource
    steps: Steps
    tiers: Mapping[str, Steps] = field(default_factory=dict)
    """Prices of the service tiers that have their own."""
    regions: Mapping[str, float] = field(default_factory=dict)
    """Factor by which tokens cost more, for each region they are computed in."""

    @property
    def base(self) -> Price:
        """Price of a call of usual size and tier."""
        return self.steps[0][1]

    def price(self, prompt: int, bill: Bill = UNBILLED) -> Price:
        """Price of a call whose prompt has so many tokens."""
        steps = self.tiers.get(bill.tier, self.steps)
        price = next(price for above, price in reversed(steps) if prompt > above or not above)
        factor = self.regions.get(bill.region)
        return price if factor is None else price.times(factor)


class Charge(Struct, frozen=True):
    """Charge that a call is booked at."""

    cost: float | None = None
    """Cost in currency units, None where nobody knows."""
    price: Price | None = None
    """Price of the table, where it knows one, also where the provider's own bill is the cost."""
    source: PriceSource | None = None
    """Source of the cost; None without a price or a bill."""
    model: str | None = None
    """Model whose price it is."""


class Spend(Struct, frozen=True):
    """One row of the ledger. Amount and value are negative, because they leave the account."""

    kind: Kind
    amount: int
    """Tokens, or searches."""
    rate: float | None
    value: float | None
    """Amount times rate: millionths of the currency unit."""


def spends(tokens: Tokens, price: Price | None, searches: int = 0) -> tuple[Spend, ...]:
    """The rows of one call. Their amounts are the tokens reported: those with a price of their own leave the row of the
    prompt, or of the completion, for one of theirs."""
    return tuple(
        Spend(kind, -amount, rate, None if rate is None else -amount * rate)
        for kind, amount, rate in _amounts(tokens, price, searches)
    )


def cost(tokens: Tokens, price: Price | None, searches: int = 0) -> float | None:
    """Cost of a call in currency units; None unless price, prompt and completion are known."""
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    return sum([amount * (rate or 0.0) for _, amount, rate in _amounts(tokens, price, searches)]) / MILLIONTHS


def charge(tokens: Tokens, bill: Bill, tariff: Tariff | None) -> Charge:
    """Charge of a call: the provider's own bill, or else what its tokens cost."""
    if tariff is None:
        return Charge() if bill.cost is None else Charge(bill.cost, source="provider")
    price = tariff.price(tokens.prompt or 0, bill)
    if bill.cost is not None:
        return Charge(bill.cost, price, "provider", tariff.model)
    return Charge(cost(tokens, price, bill.searches), price, tariff.source, tariff.model)


def saved(estimated: int | None, forwarded: int | None, status: int) -> int:
    """Tokens that a call was spared. One that was refused was spared nothing: another one has to bring the answer."""
    return 0 if estimated is None or forwarded is None or status != 200 else estimated - forwarded


_Amount = tuple[Kind, int, float | None]


def _amounts(tokens: Tokens, price: Price | None, searches: int) -> list[_Amount]:
    """Amount that each row counts, and the price of a million of it."""
    amounts: list[_Amount] = []
    if tokens.prompt is not None:
        amounts += _split(("prompt", tokens.prompt, price.prompt if price else None), _of_prompt(tokens, price))
    if tokens.completion is not None:
        whole: _Amount = ("completion", tokens.completion, price.completion if price else None)
        amounts += _split(whole, [("speech", tokens.speech, price.speech if price else None)])
    if searches:
        amounts.append(("search", searches, price.search if price else None))
    return amounts


def _times(rate: float | None, factor: float) -> float | None:
    return None if rate is None else rate * factor


_Part = tuple[Kind, int | None, float | None]


def _of_prompt(tokens: Tokens, price: Price | None) -> list[_Part]:
    if price is None:
        return []
    hour = tokens.written_hour or 0 if price.written_hour is not None else 0
    return [
        ("cached", tokens.cached, price.cached),
        ("written", (tokens.written or 0) - hour, price.written),
        ("written_hour", hour, price.written_hour),
        ("audio", tokens.audio, price.audio),
    ]


def _split(whole: _Amount, parts: Iterable[_Part]) -> list[_Amount]:
    """The whole without the parts that have a price of their own, and those parts."""
    apart = [(kind, amount, rate) for kind, amount, rate in parts if amount and rate is not None]
    kind, amount, rate = whole
    return [(kind, amount - sum(part for _, part, _ in apart), rate), *apart]
