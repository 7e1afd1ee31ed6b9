"""Savings: what the client's own request would have cost uncompacted, less what the call did cost.

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

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.usage import Bill, Charge, Tariff, Tokens, charge, cost

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
