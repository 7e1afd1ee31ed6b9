"""Usage: the tokens that a provider reports of a call, their price, and what a compaction saves.

A saving is what the client's own request would have cost uncompacted, less what the call did cost.

The provider reports the prompt that it was sent, and how much of it came from its cache. For the client's own request
both follow from the request before it, because a client's history only grows:

1. Steno changed this prompt as it changed the one before. Then each extends its predecessor, and both grew by as much.
   If the cache had the earlier prompt, it would have had what was left out of it, too.
2. Steno changed it otherwise. Then the growth is known as an estimate, and the cache had only what stands before the
   change. The client's own prompt would still have extended the one before: a provider that caches, and was sent that
   one a short time ago, would have had all of it but the few tokens at its end that were never cached so far.
3. Nothing was left out, now or before: the call cost what it would have cost.

Completions are the same in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import asdict, replace

Purpose = Literal["message", "summary", "background"]
"""`background`: a summary that is made after a request's answer."""
Kind = Literal["prompt", "cached", "written", "written_hour", "audio", "completion", "speech", "search"]
PriceSource = Literal["provider", "settings", "registry"]
"""The provider's own bill, the operator's price, or the public list price. The first and the last are in US dollars."""

MOST_TOKENS = 100_000_000
"""No window and no prompt is larger: a larger number counts no tokens."""
MILLIONTHS = 1_000_000
"""A price is for a million tokens: a token costs its price in millionths of the currency unit."""


class Tokens(Struct, frozen=True):
    """Tokens that a provider reported of one call; None where it did not."""

    prompt: int | None = None
    """Tokens of the prompt, those read from and written to the provider's cache included."""
    completion: int | None = None
    """Tokens of the completion, its reasoning included."""
    cached: int | None = None
    reasoning: int | None = None
    written: int | None = None
    """Tokens of the prompt that were written to the provider's cache."""
    written_hour: int | None = None
    """Tokens among `written` that are kept for an hour."""
    audio: int | None = None
    """Uncached tokens of sound in the prompt."""
    speech: int | None = None
    """Tokens of sound in the completion."""


class Bill(Struct, frozen=True):
    """Members of an answer that its price depends on, beside its tokens."""

    model: str = ""
    tier: str = ""
    """The service tier, as the provider calls it."""
    region: str = ""
    """Region it was computed in, where that is charged for."""
    searches: int = 0
    """Searches of the web."""
    cost: float | None = None
    """US dollars."""


UNBILLED = Bill()


class DecisionRecord(Struct, frozen=True):
    """The decision about a request, for the ledger. Tokens are the provider's."""

    window: int
    limit: int
    trigger: int
    actions: tuple[str, ...] = ()
    """Actions on its history, in their order."""
    reason: str | None = None
    """Why something could not be done."""
    waited_seconds: float | None = None
    """None where no compaction was being made for it."""


class SummaryStats(Struct, frozen=True):
    """A call for a summary, for the ledger. Tokens are the provider's."""

    seconds: float
    replaced: int
    """Tokens of the messages that the summary stands for."""
    summary: int | None = None
    """Tokens of the chunk as it stands in a payload; None where none was kept."""
    summary_id: str | None = None


class Price(Struct, frozen=True):
    """Prices in currency units for a million tokens (see `Tokens`) or searches; None where they have none of their
    own."""

    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    audio: float | None = None
    speech: float | None = None
    search: float | None = None

    def times(self, factor: float) -> Price:
        """Price in a region where tokens cost more, or less. A search costs the same."""
        return Price(
            **{name: rate if rate is None or name == "search" else rate * factor for name, rate in asdict(self).items()}
        )


Steps = tuple[tuple[int, Price], ...]
"""Prices by the size of the prompt: each is for prompts of more tokens than its number, the first for all."""


class Tariff(Struct, frozen=True):
    """Prices of a model, by what its answers say."""

    model: str
    source: PriceSource
    steps: Steps
    tiers: Mapping[str, Steps] = field(default_factory=dict)
    """Prices of the service tiers that have their own."""
    regions: Mapping[str, float] = field(default_factory=dict)
    """Factor of a region's prices."""

    @property
    def base(self) -> Price:
        return self.steps[0][1]

    def price(self, prompt: int, bill: Bill = UNBILLED) -> Price:
        steps = self.tiers.get(bill.tier, self.steps)
        price = next(price for above, price in reversed(steps) if prompt > above or not above)
        factor = self.regions.get(bill.region)
        return price if factor is None else price.times(factor)


class Charge(Struct, frozen=True):
    """The cost of a call in currency units, and where it comes from; None where unknown."""

    cost: float | None = None
    price: Price | None = None
    """Price of the table, also where the provider's own bill is the cost."""
    source: PriceSource | None = None
    model: str | None = None
    """Model whose price it is."""


class Spend(Struct, frozen=True):
    """One row of the ledger; amount and value are negative, because they leave the account."""

    kind: Kind
    amount: int
    """Tokens, or searches."""
    rate: float | None
    value: float | None
    """Amount times rate: millionths of the currency unit."""


def spends(tokens: Tokens, price: Price | None, searches: int = 0) -> tuple[Spend, ...]:
    """The rows of one call. Tokens with a price of their own are taken from the row of the prompt, or of the
    completion."""
    return tuple(
        Spend(kind, -amount, rate, None if rate is None else -amount * rate)
        for kind, amount, rate in _amounts(tokens, price, searches)
    )


def cost(tokens: Tokens, price: Price | None, searches: int = 0) -> float | None:
    """Currency units; None unless price, prompt and completion are known."""
    if price is None or tokens.prompt is None or tokens.completion is None:
        return None
    return sum([amount * (rate or 0.0) for _, amount, rate in _amounts(tokens, price, searches)]) / MILLIONTHS


def charge(tokens: Tokens, bill: Bill, tariff: Tariff | None) -> Charge:
    """The provider's own bill, or else the cost of the tokens."""
    if tariff is None:
        return Charge() if bill.cost is None else Charge(bill.cost, source="provider")
    price = tariff.price(tokens.prompt or 0, bill)
    if bill.cost is not None:
        return Charge(bill.cost, price, "provider", tariff.model)
    return Charge(cost(tokens, price, bill.searches), price, tariff.source, tariff.model)


def saved(estimated: int | None, forwarded: int | None, status: int) -> int:
    """Tokens left out of a call; 0 unless its status is 200, because another call has to answer."""
    return 0 if estimated is None or forwarded is None or status != 200 else estimated - forwarded


_Amount = tuple[Kind, int, float | None]


def _amounts(tokens: Tokens, price: Price | None, searches: int) -> list[_Amount]:
    amounts: list[_Amount] = []
    if tokens.prompt is not None:
        hour = tokens.written_hour or 0 if price is not None and price.written_hour is not None else 0
        written = (tokens.written or 0) - hour
        parts: Mapping[Kind, int | None] = {
            "cached": tokens.cached,
            "written": written,
            "written_hour": hour,
            "audio": tokens.audio,
        }
        amounts += _split("prompt", tokens.prompt, parts, price)
    if tokens.completion is not None:
        amounts += _split("completion", tokens.completion, {"speech": tokens.speech}, price)
    if searches:
        amounts.append(("search", searches, price.search if price else None))
    return amounts


def _split(kind: Kind, whole: int, parts: Mapping[Kind, int | None], price: Price | None) -> list[_Amount]:
    """The whole without the parts that have a price of their own, and those parts. Kinds are the fields of `Price`."""
    rates: Mapping[str, float | None] = asdict(price) if price is not None else {}
    apart = [(part, n, rate) for part, n in parts.items() if n and (rate := rates.get(part)) is not None]
    return [(kind, whole - sum(amount for _, amount, _ in apart), rates.get(kind)), *apart]


WARM_SHARE = 0.5
"""Share of a prompt read from or written to the cache from which on the next prompt counts as cached."""


class PromptEstimate(Struct, frozen=True):
    """A request by the estimate."""

    received: int
    sent: int
    ratio: float = 1.0
    """The provider's tokens for one of the estimate's."""

    @property
    def omitted(self) -> int:
        """Negative where more was added."""
        return self.received - self.sent


class EarlierRequest(Struct, frozen=True):
    """The request before in the conversation. Tokens are the provider's."""

    estimated: PromptEstimate
    prompt: int
    """Tokens of the prompt that was sent."""
    whole: int
    """Tokens of the client's own prompt."""
    counted: tuple[int, int]
    """Tokens of the conversation so far, by the provider and by the estimate."""
    caches: bool = False
    """Whether the provider caches such prompts."""
    lag: int = 0
    """Tokens at the end of a prompt that are not in the cache when the next one comes."""
    long: bool = False
    """Whether the provider is paid to keep them for an hour."""


def uncompacted_usage(
    tokens: Tokens, estimated: PromptEstimate, before: EarlierRequest | None, *, recent: bool
) -> Tokens:
    """The usage that the provider would have reported of the client's own request.

    `recent`: a cache still holds the request `before`.
    """
    if tokens.prompt is None or not (estimated.omitted or (before is not None and before.estimated.omitted)):
        return tokens
    whole = max(1, _whole(tokens.prompt, estimated, before))
    if tokens.cached is None and tokens.written is None:
        return replace(tokens, prompt=whole)
    cached = min(whole, max(0, _cached(tokens, whole - tokens.prompt, estimated, before, recent=recent)))
    # Of the uncached tokens as large a share is written to the cache.
    share = (whole - cached) / max(1, tokens.prompt - (tokens.cached or 0))
    written, hour = (count and round(share * count) for count in (tokens.written, tokens.written_hour))
    return replace(tokens, prompt=whole, cached=cached, written=written, written_hour=hour)


def earlier_request(
    tokens: Tokens, whole: Tokens, estimated: PromptEstimate, before: EarlierRequest | None
) -> EarlierRequest | None:
    """Record this request for the next one; None where nothing was reported."""
    if not tokens.prompt or whole.prompt is None:
        return None
    read, written = tokens.cached or 0, tokens.written or 0
    if before is None:
        counted = tokens.prompt, estimated.sent
    elif _extends(estimated, before):
        counted = (
            before.counted[0] + tokens.prompt - before.prompt,
            before.counted[1] + estimated.received - before.estimated.received,
        )
    else:
        counted = before.counted
    caches, lag = (before.caches, before.lag) if before else (False, 0)
    if tokens.cached is not None or tokens.written is not None:
        if before is None or not _extends(estimated, before):
            caches = caches or read + written >= WARM_SHARE * tokens.prompt
        else:
            least = WARM_SHARE * min(tokens.prompt, before.prompt)
            caches = read + written >= least
            lag = max(0, before.prompt - read) if read >= least else lag
    long = bool(tokens.written_hour) or (not written and before is not None and before.long)
    return EarlierRequest(estimated, tokens.prompt, whole.prompt, counted, caches, lag, long)


def saved_cost(
    tokens: Tokens, whole: Tokens | None, bill: Bill, charged: Charge, tariff: Tariff | None
) -> float | None:
    """Saving in currency units, negative where more was paid; None where the price or the tokens are unknown.

    `whole` is None for a call that the client did not make. Both costs are by the table, also where the provider
    billed: it does not say what another prompt would have cost.
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
    # The conversation's own ratio of counts is closer than the calibration's.
    counted, of = before.counted
    return before.whole + round((estimated.received - before.estimated.received) * counted / max(1, of))


def _cached(
    tokens: Tokens, omitted: int, estimated: PromptEstimate, before: EarlierRequest | None, *, recent: bool
) -> int:
    read = tokens.cached or 0
    if before is None or _extends(estimated, before):
        known = (tokens.prompt if before is None else before.prompt) or 0
        return read + omitted if read >= WARM_SHARE * known else read
    return max(read, before.whole - before.lag) if before.caches and recent else read


# The cost gate: whether a change of the prompt is worth what it costs


class CostGate(Struct, frozen=True):
    """Puts off what would cost more than it saves.

    1. A change that frees tokens saves `freed * cached` with each request from this one on. It costs the calls for its
       summaries once and, where the prompt is in the provider's cache, `rewritten * (uncached - cached)`.
    2. The conversation grew by `growth` tokens with each request. As many more are counted on as have paid for what is
       freed, `freed / (2 * growth)`: that costs at most twice the best choice, had the end been known (the ski rental
       problem).
    3. Waiting for `n` requests costs `n * freed * cached` and spares `n / requests` of the costs, so that putting off
       needs no term of its own.
    """

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
