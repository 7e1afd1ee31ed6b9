"""Costs: the reported tokens of a call, their price, and the saving by compaction.

The saving is the cost of the client's own (uncompacted) request minus the cost of the call. The provider reports the
tokens of the sent prompt, and how many of them its cache had. For the client's own request, Steno derives these two
numbers from the conversation's previous request, because a client's history only grows:

1. If Steno omitted the same tokens as from the previous request, the client's prompt grew by as many tokens as the sent
   prompt. If the cache had the previous prompt, it would also have had the omitted tokens.
2. If Steno omitted other tokens, Steno estimates the growth, and the cache had only the bytes before the change. But
   the client's own prompt would have extended its previous prompt. If the provider caches prompts, and the previous
   request was a short time ago, the cache would have had the previous prompt except its last tokens (`lag`).
3. If Steno omitted nothing, now or before, the saving is 0.

Steno assumes the same completion for both requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import asdict, replace

Purpose = Literal["message", "summary", "background"]
"""`background` is a summary written after a request's answer."""
PriceSource = Literal["provider", "settings", "registry"]
"""Provider's own bill (US dollars), operator's price, or public list price (US dollars)."""

MOST_TOKENS = 100_000_000
"""More tokens than any window has. Steno ignores larger numbers."""


class Tokens(Struct, frozen=True):
    """Reported tokens of one call; None if not reported."""

    prompt: int | None = None
    """Tokens of the prompt, including those that the provider read from its cache or wrote to it."""
    completion: int | None = None
    """Tokens of the completion, including reasoning."""
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None
    """Prompt tokens that the provider wrote to its cache."""
    written_hour: int | None = None
    """Tokens of `written` that the cache keeps for an hour."""
    audio: int | None = None
    """Uncached tokens of sound in the prompt."""
    speech: int | None = None
    """Tokens of sound in the completion."""


class Bill(Struct, frozen=True):
    """Members of an answer, other than tokens, that determine its price."""

    model: str = ""
    tier: str = ""
    """Provider's name of the service tier."""
    region: str = ""
    """Region of the computation, if it affects the price."""
    searches: int = 0
    cost: float | None = None
    """Provider's charge in US dollars."""


UNBILLED = Bill()


class DecisionRecord(Struct, frozen=True):
    """Ledger's record of the decision about a request. Sizes are in the provider's tokens."""

    window: int
    limit: int
    trigger: int
    actions: tuple[str, ...] = ()
    """Actions on the history, in order."""
    reason: str | None = None
    """Reason why an action was impossible."""
    waited_seconds: float | None = None
    """Time that the request waited for a compaction; None if no compaction ran for it."""


class SummaryStats(Struct, frozen=True):
    """Ledger's record of a summary call. Sizes are in the provider's tokens."""

    seconds: float
    replaced: int
    """Tokens of the messages that the summary replaces."""
    summary: int | None = None
    """Tokens that the summary takes in a payload; None if Steno did not store the summary."""
    summary_id: str | None = None


class Price(Struct, frozen=True):
    """Prices in currency units for a million tokens of each kind and a million searches. None: no separate price."""

    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    audio: float | None = None
    speech: float | None = None
    search: float | None = None

    def times(self, factor: float) -> Price:
        """Multiply all rates except the price of searches."""
        return Price(
            **{name: rate if rate is None or name == "search" else rate * factor for name, rate in asdict(self).items()}
        )


Steps = tuple[tuple[int, Price], ...]
"""Pairs of prompt size and price. A price applies to prompts with more tokens than its size. The first size is 0."""


class Tariff(Struct, frozen=True):
    """Prices of a model by prompt size, service tier and region."""

    model: str
    source: PriceSource
    steps: Steps
    tiers: Mapping[str, Steps] = field(default_factory=dict)
    """Prices by service tier, for tiers with other prices than `steps`."""
    regions: Mapping[str, float] = field(default_factory=dict)
    """Price factors by region."""

    @property
    def base(self) -> Price:
        return self.steps[0][1]

    def price(self, prompt: int, bill: Bill = UNBILLED) -> Price:
        steps = self.tiers.get(bill.tier, self.steps)
        price = next(price for above, price in reversed(steps) if prompt > above or not above)
        factor = self.regions.get(bill.region)
        return price if factor is None else price.times(factor)


class Charge(Struct, frozen=True):
    """Cost of a call in currency units, and the source of the cost; None if unknown."""

    cost: float | None = None
    price: Price | None = None
    """Price in the price table, even if the cost is the provider's bill."""
    source: PriceSource | None = None
    model: str | None = None


def cost(tokens: Tokens, price: Price | None, searches: int = 0) -> float | None:
    """Return the cost in currency units; None if price, prompt or completion is unknown."""
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    hour = tokens.written_hour or 0 if price.written_hour is not None else 0
    written = (tokens.written or 0) - hour
    parts = ((tokens.cached, price.cached), (written, price.written), (hour, price.written_hour))
    prompt = _cost_of(tokens.prompt, price.prompt, *parts, (tokens.audio, price.audio))
    completion = _cost_of(tokens.completion, price.completion, (tokens.speech, price.speech))
    return (prompt + completion + searches * (price.search or 0.0)) / 1_000_000


def _cost_of(tokens: int, rate: float, *parts: tuple[int | None, float | None]) -> float:
    """Return the cost in millionths of a currency unit. `parts`: number and rate of special tokens; those without a
    rate cost `rate`."""
    apart = [(amount, own) for amount, own in parts if amount and own is not None]
    rest = tokens - sum(amount for amount, _ in apart)
    return rest * rate + sum(amount * own for amount, own in apart)


def charge(tokens: Tokens, bill: Bill, tariff: Tariff | None) -> Charge:
    """Return the cost that the provider billed. Without a bill, return the cost of the tokens by the tariff."""
    if tariff is None:
        return Charge() if bill.cost is None else Charge(bill.cost, source="provider")
    price = tariff.price(tokens.prompt or 0, bill)
    if bill.cost is not None:
        return Charge(bill.cost, price, "provider", tariff.model)
    return Charge(cost(tokens, price, bill.searches), price, tariff.source, tariff.model)


def saved(estimated: int | None, forwarded: int | None, status: int) -> int:
    """Return the tokens omitted from a call; 0 if the sizes are unknown or the status is not 200."""
    return 0 if estimated is None or forwarded is None or status != 200 else estimated - forwarded


WARM_SHARE = 0.5
"""A prompt counts as cached if at least this share of it was read from or written to the cache."""


class PromptEstimate(Struct, frozen=True):
    """Estimated tokens of a request as received and as sent."""

    received: int
    sent: int
    ratio: float = 1.0
    """Provider's tokens for each estimated token."""

    @property
    def omitted(self) -> int:
        """Tokens omitted by Steno; negative if Steno added more than it omitted."""
        return self.received - self.sent


class EarlierRequest(Struct, frozen=True):
    """Previous request of the conversation, in the provider's tokens."""

    estimated: PromptEstimate
    prompt: int
    """Tokens of the sent prompt."""
    whole: int
    """Tokens of the client's own, uncompacted prompt."""
    caches: bool = False
    """Whether the provider caches the conversation's prompts."""
    lag: int = 0
    """Tokens at the end of a prompt that are not yet in the cache at the next request."""
    long: bool = False
    """Whether the cache keeps prompts for an hour, at a higher price."""


def uncompacted_usage(
    tokens: Tokens, estimated: PromptEstimate, before: EarlierRequest | None, *, recent: bool
) -> Tokens:
    """Return the usage that the provider would have reported for the client's own request.

    `recent`: whether the cache still has the previous request's prompt.
    """
    if tokens.prompt is None or not (estimated.omitted or (before is not None and before.estimated.omitted)):
        return tokens
    whole = max(1, _whole(tokens.prompt, estimated, before))
    if tokens.cached is None and tokens.written is None:
        return replace(tokens, prompt=whole)
    cached = min(whole, max(0, _cached(tokens, whole - tokens.prompt, estimated, before, recent=recent)))
    # Assume that the same share of the uncached tokens would have been written to the cache.
    share = (whole - cached) / max(1, tokens.prompt - (tokens.cached or 0))
    written, hour = (count and round(share * count) for count in (tokens.written, tokens.written_hour))
    return replace(tokens, prompt=whole, cached=cached, written=written, written_hour=hour)


def earlier_request(
    tokens: Tokens, whole: Tokens, estimated: PromptEstimate, before: EarlierRequest | None
) -> EarlierRequest | None:
    """Return this request's record, which the next request gets as `before`; None without reported tokens."""
    if not tokens.prompt or whole.prompt is None:
        return None
    read, written = tokens.cached or 0, tokens.written or 0
    caches, lag = (before.caches, before.lag) if before else (False, 0)
    if tokens.cached is not None or tokens.written is not None:
        if before is None or not _extends(estimated, before):
            caches = caches or read + written >= WARM_SHARE * tokens.prompt
        else:
            least = WARM_SHARE * min(tokens.prompt, before.prompt)
            caches = read + written >= least
            lag = max(0, before.prompt - read) if read >= least else lag
    long = bool(tokens.written_hour) or (not written and before is not None and before.long)
    return EarlierRequest(estimated, tokens.prompt, whole.prompt, caches, lag, long)


def saved_cost(
    tokens: Tokens, whole: Tokens | None, bill: Bill, charged: Charge, tariff: Tariff | None
) -> float | None:
    """Return the saving in currency units, negative if the call cost more; None if price or tokens are unknown.

    `whole` is None for a call that the client did not make. Both costs are from the price table, because a provider's
    bill is for the sent prompt only.
    """
    if charged.cost is None:
        return None
    if whole is None:
        return -charged.cost
    if whole == tokens:
        return 0.0
    paid = cost(tokens, charged.price, bill.searches)
    instead = charge(whole, replace(bill, cost=None), tariff).cost
    return None if paid is None or instead is None else instead - paid


def _extends(estimated: PromptEstimate, before: EarlierRequest) -> bool:
    return estimated.omitted == before.estimated.omitted


def _whole(prompt: int, estimated: PromptEstimate, before: EarlierRequest | None) -> int:
    if before is None:
        return prompt + round(estimated.ratio * estimated.omitted)
    if _extends(estimated, before):
        return before.whole + prompt - before.prompt
    return before.whole + round(estimated.ratio * (estimated.received - before.estimated.received))


def _cached(
    tokens: Tokens, omitted: int, estimated: PromptEstimate, before: EarlierRequest | None, *, recent: bool
) -> int:
    read = tokens.cached or 0
    if before is None or _extends(estimated, before):
        known = (tokens.prompt if before is None else before.prompt) or 0
        return read + omitted if read >= WARM_SHARE * known else read
    return max(read, before.whole - before.lag) if before.caches and recent else read


class Rates(Struct, frozen=True):
    """Prices of a token of the prompt."""

    uncached: float
    """Price of a token that the provider reads for the first time and writes to its cache."""
    cached: float


COMMON_PRICE = Price(prompt=1.0, completion=5.0, cached=0.1)
"""Assumed prices in the usual ratio, if a model has no known prices. For local models, they represent time."""


def rates_of(price: Price, *, warm: bool) -> Rates | None:
    """Return the rates of a price; None if the prompt is cached (`warm`) and the price of cached tokens is unknown."""
    if not warm:
        return Rates(price.prompt, price.prompt)
    if price.cached is None:
        return None
    return Rates(price.prompt if price.written is None else price.written, price.cached)
