"""Savings: what a call would have cost had the client's own request been sent whole, less what it did cost.

Theory. The provider says what it read of the prompt that it was sent, and how much of that its cache had. The client's
own request differs from that prompt by what Steno took out, and that is known as an estimate. What is not known is
whether the provider's cache would have had it. A client's history only grows, so the cache would have had what the
request before was, sent whole. It follows what is seen of the prompts that were sent:

- Steno did to this prompt what it did to the one before. Then one extends the other, and how much of the earlier one
  the cache had is reported. What was taken out stands within that part, and would have been read with it.
- Steno did something else. Then the cache had only what stands before the change, which says nothing. The client's own
  prompt would have extended the one before all the same: if the provider keeps prompts at all, and that one was sent a
  short time ago, it would have been read, but for the few tokens at its end that were never found again so far.

Where nothing was taken out, now or before, what was paid is what it would have cost. Completions are the same in both.
"""

from __future__ import annotations

from dataclasses import replace

from app.core.tokens.usage import Price, Tokens, cost
from app.core.values import value

WARM_SHARE = 0.5
"""Of a prompt that its provider read from its cache or wrote to it: from there on the next one finds most of itself
there."""


@value
class Sent:
    """An answered request, as the next one of its conversation looks back on it."""

    whole: int
    """Tokens of the client's own prompt, sent whole."""
    prompt: int
    """Tokens of what was sent, as reported."""
    taken: int
    """Tokens of our estimate that were taken out; negative where more was added."""
    caches: bool = False
    """Whether the provider keeps such prompts."""
    lag: int = 0
    """Tokens at the end of a prompt that are not in the cache when the next one comes."""


def sent_whole(tokens: Tokens, spared: int, taken: int, before: Sent | None, *, recent: bool) -> Tokens:
    """What the provider would have reported of the client's own request.

    `spared`: tokens that were taken out of it, as the provider counts them. `before` is None where nothing is known of
    a request that this one extends. `recent`: so short a time ago that a cache still holds it.
    """
    if tokens.prompt is None or not (spared or (before is not None and before.taken)):
        return tokens
    whole = max(1, tokens.prompt + spared)
    if tokens.cached is None and tokens.written is None:
        return replace(tokens, prompt=whole)
    cached = min(whole, max(0, _cached(tokens, spared, taken, before, recent=recent)))
    return replace(tokens, prompt=whole, cached=cached, written=_written(tokens, whole - cached))


def seen(tokens: Tokens, whole: Tokens, taken: int, before: Sent | None) -> Sent | None:
    """What is to be known of the request when the next one comes; None where the provider told nothing of it."""
    if not tokens.prompt or whole.prompt is None:
        return None
    read, written = tokens.cached or 0, tokens.written or 0
    lag = before.lag if before else 0
    extends = before is not None and before.taken == taken
    if tokens.cached is None and tokens.written is None:
        caches = before is not None and before.caches
    elif before is None or extends:
        least = WARM_SHARE * min(tokens.prompt, before.prompt if before else tokens.prompt)
        caches = read + written >= least
        if before is not None and read >= least:
            lag = max(0, before.prompt - read)
    else:
        caches = before.caches or read + written >= WARM_SHARE * tokens.prompt
    return Sent(whole.prompt, tokens.prompt, taken, caches, lag)


def saved_cost(tokens: Tokens, whole: Tokens | None, price: Price | None) -> float | None:
    """In currency units, negative where more was paid; None where the price or the tokens are not known.

    `whole` is None for a call that the client did not make: all of it is paid more.
    """
    paid, instead = cost(tokens, price), 0.0 if whole is None else cost(whole, price)
    return None if paid is None or instead is None else instead - paid


def _cached(tokens: Tokens, spared: int, taken: int, before: Sent | None, *, recent: bool) -> int:
    """Tokens of the client's own prompt that would have come from the cache."""
    read = tokens.cached or 0
    if before is None:
        return read + spared if read >= WARM_SHARE * (tokens.prompt or 0) else read
    if before.taken == taken:
        return read + before.whole - before.prompt if read >= WARM_SHARE * before.prompt else read
    return max(read, before.whole - before.lag) if before.caches and recent else read


def _written(tokens: Tokens, rest: int) -> int | None:
    """Of the tokens that would not have come from the cache, the share that was written to it."""
    if not tokens.written:
        return tokens.written
    return round(tokens.written * rest / ((tokens.prompt or 0) - (tokens.cached or 0)))
