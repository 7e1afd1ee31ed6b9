"""Savings: what a call would have cost had the client's own request been sent whole, less what it did cost.

Theory. The provider says what it read of the prompt that it was sent, and how much of that its cache had. Neither is
known of the client's own request, where something was taken out of that. But a client's history only grows: its request
is the one before, and what was added since. So its size follows from that of the one before, and so does what the
provider's cache would have had of it.

- Steno did to this prompt what it did to the one before. Then one extends the other, as the client's own do. They grew
  by as much, and how much of the earlier one the cache had is reported; what was taken out stands within that part, and
  would have been read with it.
- Steno did something else. Then what was added since is known as an estimate, and the cache had only what stands before
  the change, which says nothing. The client's own prompt would still have extended the one before: if the provider
  keeps prompts at all, and that one was sent a short time ago, it would have been read, but for the few tokens at its
  end that were never found again so far.

Where nothing was taken out, now or before, what was paid is what it would have cost. Completions are the same in both.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.usage import Bill, Charge, Tariff, Tokens, charge, cost

WARM_SHARE = 0.5
"""Share of a prompt that its provider read from its cache or wrote to it: from there on the next one finds most of
itself there."""


class Estimated(Struct, frozen=True):
    """A request in tokens of our estimate."""

    came: int
    sent: int
    ratio: float = 1.0
    """The provider's tokens for one of them."""

    @property
    def taken(self) -> int:
        """Tokens that were taken out; negative where more was added."""
        return self.came - self.sent


class Sent(Struct, frozen=True):
    """An answered request, as the next one of its conversation looks back on it. Tokens are the provider's."""

    estimated: Estimated
    prompt: int
    """Tokens of the prompt as it was sent."""
    whole: int
    """Tokens of the prompt as it came."""
    counted: tuple[int, int]
    """Tokens of the conversation so far: as the provider counted them, and as we estimated them."""
    caches: bool = False
    """Whether the provider keeps such prompts."""
    lag: int = 0
    """Tokens at the end of a prompt that are not in the cache when the next one comes."""
    long: bool = False
    """Whether the provider is paid to keep them for an hour."""


def sent_whole(tokens: Tokens, estimated: Estimated, before: Sent | None, *, recent: bool) -> Tokens:
    """Tokens that the provider would have reported of the client's own request.

    `before` is None where nothing is known of a request that this one extends. `recent`: that was sent so short a time
    ago that a cache still holds it.
    """
    if tokens.prompt is None or not (estimated.taken or (before is not None and before.estimated.taken)):
        return tokens
    whole = max(1, _whole(tokens.prompt, estimated, before))
    if tokens.cached is None and tokens.written is None:
        return replace(tokens, prompt=whole)
    cached = min(whole, max(0, _cached(tokens, whole - tokens.prompt, estimated, before, recent=recent)))
    # Of the tokens that would not have come from the cache, as large a share is written to it.
    share = (whole - cached) / max(1, tokens.prompt - (tokens.cached or 0))
    written, hour = (count and round(share * count) for count in (tokens.written, tokens.written_hour))
    return replace(tokens, prompt=whole, cached=cached, written=written, written_hour=hour)


def seen(tokens: Tokens, whole: Tokens, estimated: Estimated, before: Sent | None) -> Sent | None:
    """Facts about the request for when the next one comes; None where nothing was reported."""
    if not tokens.prompt or whole.prompt is None:
        return None
    read, written = tokens.cached or 0, tokens.written or 0
    if before is None:
        counted = tokens.prompt, estimated.sent
    elif _extends(estimated, before):
        more = tokens.prompt - before.prompt, estimated.came - before.estimated.came
        counted = before.counted[0] + more[0], before.counted[1] + more[1]
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
    return Sent(estimated, tokens.prompt, whole.prompt, counted, caches, lag, long)


def saved_cost(
    tokens: Tokens, whole: Tokens | None, bill: Bill, charged: Charge, tariff: Tariff | None
) -> float | None:
    """Saving in currency units, negative where more was paid; None where the price or the tokens are not known.

    `whole` is None for a call that the client did not make: all of it is paid more. Both are taken from the table, also
    where the provider billed: it does not say what another prompt would have cost.
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


def _extends(estimated: Estimated, before: Sent) -> bool:
    """Whether the same was done to both."""
    return estimated.taken == before.estimated.taken


def _whole(prompt: int, estimated: Estimated, before: Sent | None) -> int:
    """Tokens of the client's own prompt."""
    if before is None:
        return prompt + round(estimated.ratio * estimated.taken)
    if _extends(estimated, before):
        return before.whole + prompt - before.prompt
    # What was counted of this conversation says more of it than what was of all that the model reads.
    counted, of = before.counted
    return before.whole + round((estimated.came - before.estimated.came) * counted / max(1, of))


def _cached(tokens: Tokens, more: int, estimated: Estimated, before: Sent | None, *, recent: bool) -> int:
    """Tokens of the client's own prompt that would have come from the cache; `more` of them were not sent."""
    read = tokens.cached or 0
    if before is None or _extends(estimated, before):
        known = (tokens.prompt if before is None else before.prompt) or 0
        return read + more if read >= WARM_SHARE * known else read
    return max(read, before.whole - before.lag) if before.caches and recent else read
