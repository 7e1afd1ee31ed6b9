"""Overflow: a refusal of a prompt for its size, and the lower limits for a retry.

If the provider adds the output cap to the prompt, Steno lowers the cap first, and shortens the prompt only if that is
not enough. The new limits follow from two numbers in the provider's error: the limit, and the tokens that the provider
counted. Without numbers, Steno tries 70 % of the prompt, or 50 % if the prompt holds media.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import CEILING_SHARE, LEAST_SHARE, PROMPT_ERROR, Budget, Trigger, least_output, least_room

MIN_LIMIT = 1_000
"""Minimum tokens of a window. A smaller number in an error is a quota, or not a number of tokens."""
FEW = 16
"""Maximum reported tokens of an empty answer: the provider may count end tokens. More may be hidden thinking."""
FULL_SHARE = 0.95
"""Steno assumes that the window ended an empty answer if prompt and answer fill at least this share of the window."""
PRESSURE = 0.80
"""Share of the window that the estimate of a prompt must reach for an overflow to be plausible."""
MIX_ERROR = 0.05
"""Margin for the ratio of the provider's count to the estimate. The retry has other content, so another ratio."""
SENT_SHARE = 0.70
SENT_MEDIA_SHARE = 0.50
"""After a refusal without numbers, the retry has `SENT_SHARE` of the prompt; with media, `SENT_MEDIA_SHARE`."""
TARGET_SHARE = 0.60
"""Target of a compaction after an overflow, as a share of the new limit, so that the next turn fits, too."""
PAYLOAD_SHARE = 0.9
"""Share of the provider's byte limit that the retry aims at. Steno cuts by tokens, and bytes may shrink less."""


class Overflow(Struct, frozen=True):
    """Refusal of a prompt for its size. Numbers are from the provider's error; None if the error has no such number."""

    kind: Literal["context_window", "request_too_large", "payload"]
    """Exceeded limit: the model's window, a quota of tokens per minute, or a number of bytes."""
    limit: int | None = None
    prompt: int | None = None
    """Tokens of the prompt, if the error separates them from the output."""
    requested: int | None = None
    """Tokens counted against the limit: the prompt, and the output if the provider adds it."""
    names_output: bool = False
    needs_pressure: bool = False
    """True if the error gives no reason. Steno then assumes an overflow only if the estimate reaches `PRESSURE`."""
    limit_bytes: int | None = None

    @property
    def learn_window(self) -> bool:
        refused = self.requested is None or self.limit is None or self.requested > self.limit
        return self.kind == "context_window" and self.limit is not None and refused


class CutAnswer(Struct, frozen=True):
    """Answer with status 200 that a length limit ended. Numbers are the provider's tokens."""

    by_window: bool
    """True if the stop reason names the window, False if it names the length of the answer."""
    is_empty: bool
    """True if the answer has neither text nor tool calls."""
    prompt: int | None
    completion: int | None

    def total(self, expected: int) -> int:
        return (self.prompt or expected) + (self.completion or 0)


def overflow_of(cut: CutAnswer, expected: int, window: int, reserve: int, cap: int | None) -> Overflow | None:
    """Return an overflow if the prompt left too little room for the answer, None if another limit ended the answer.

    `expected`: estimated prompt in the provider's tokens. `cap`: output cap of the request, which may have ended the
    answer. `Overflow.limit` gets the tokens of prompt and answer together.
    """
    completion, total = cut.completion, cut.total(expected)
    if cut.by_window:
        is_overflow = cut.is_empty or (completion is not None and completion < reserve)
    elif not cut.is_empty or (cap is not None and cap <= max(FEW, completion or 0)):
        is_overflow = False
    elif completion is None:
        is_overflow = cap is None or expected >= PRESSURE * window
    else:  # A longer completion may be hidden thinking that used up the provider's own output cap.
        is_overflow = completion <= FEW or total >= FULL_SHARE * window
    return Overflow("context_window", total) if is_overflow and total >= MIN_LIMIT else None


class Payload(Struct, frozen=True):
    """Refused request, in tokens of the estimate."""

    tokens: int
    instructions: int
    """Tokens that no compaction can remove."""
    cap: int | None = None
    """Output cap of the request."""
    thinking: int = 0
    """Thinking budget of the request, which the output cap has to exceed."""
    holds_media: bool = False
    size: int = 0
    """Bytes of the body."""
    media_bytes: int = 0
    """Bytes of media that Steno may mask."""


class SmallerLimits(Struct, frozen=True):
    """Changed limits for the retry of a refused request; None for an unchanged limit."""

    budget: Budget | None
    output_cap: int | None = None
    cap_alone: int | None = None
    """Output cap for a retry with the same messages, if no smaller prompt can be made."""


def limits_after(overflow: Overflow, budget: Budget, sent: Payload) -> SmallerLimits | None:
    """Choose a smaller budget, a lower output cap, or both for a retry; None if no such change can help."""
    if overflow.kind == "payload":
        return SmallerLimits(lighter) if (lighter := _fewer_bytes(overflow, budget, sent)) else None
    expected = budget.line.to_provider_tokens(sent.tokens)
    if overflow.needs_pressure and expected < PRESSURE * budget.window:
        return None
    window = overflow.limit or budget.window
    prompt, output = _counted(overflow, expected, sent.cap, window)
    if sent.cap is None:
        smaller, _ = _fewer_tokens(overflow, budget, sent, prompt, output or 0)
        return SmallerLimits(smaller) if smaller else None
    least = least_output(window, sent.cap, sent.thinking)
    if output:
        # If the provider's count of the prompt is unknown, use the estimate, or the refusal's lower bound.
        fitting = window - (prompt or round((1 + PROMPT_ERROR) * max(expected, overflow.prompt or 0)))
        if least <= fitting < sent.cap:
            return SmallerLimits(None, fitting)
    # A provider may add the output even if its refusal names only the prompt, as Anthropic does.
    smaller, allowed = _fewer_tokens(overflow, budget, sent, prompt, min(output, least) if output else least)
    # Without the provider's count, the estimate may be far off, and the provider may have added the cap.
    alone = least if output is None and least < sent.cap and expected <= CEILING_SHARE * window else None
    if smaller is None:
        return SmallerLimits(None, alone) if alone else None
    cap = max(least, window - allowed) if prompt else least
    return SmallerLimits(smaller, cap if output != 0 and cap < sent.cap else None, alone)


def _counted(overflow: Overflow, expected: int, cap: int | None, window: int) -> tuple[int | None, int | None]:
    """Return two counts: the prompt, and the output that the provider added to it. None for an unknown count."""
    prompt, requested = overflow.prompt, overflow.requested
    if requested is None:
        fits_alone = expected <= CEILING_SHARE * window
        is_sum = overflow.names_output and cap is not None and fits_alone and expected + cap > window
        return None, cap if is_sum else None
    if prompt is None:
        if cap is not None and abs(requested - cap - expected) < abs(requested - expected):
            return requested - cap, cap
        return None, None
    output = requested - prompt if cap is None else min(cap, requested - prompt)
    if output and requested == window + 1:  # vLLM reports the smallest prompt that would be too large.
        return None, output
    return requested - output, output


def _fewer_tokens(
    overflow: Overflow, budget: Budget, sent: Payload, prompt: int | None, reserve: int
) -> tuple[Budget | None, int]:
    """Return limits for a smaller prompt, and the maximum of this prompt in the provider's tokens. The limits are None
    if too little of the conversation would be left.

    Steno divides the limits by the ratio of the provider's count to the estimate. Without media, a ratio above
    1.05 gets a margin (`MIX_ERROR`). If a prompt with media has more tokens than expected, Steno first subtracts the
    difference, as if it could not mask the media. If this leaves too little room, Steno divides by the ratio instead.
    """
    expected = budget.line.to_provider_tokens(sent.tokens)
    least = least_room(budget)
    # One or two assumptions on the provider's count, each as factor, constant tokens and minimum room.
    ways: list[tuple[float, int, float]] = [(1.0, 0, least)]
    if overflow.limit is None:
        share, in_force = (
            SENT_MEDIA_SHARE if sent.holds_media else SENT_SHARE,
            budget.line.to_provider_tokens(budget.limit),
        )
        allowed = share * (expected if share * expected < in_force else in_force)
        target = allowed
    else:
        ceiling = overflow.limit - reserve
        allowed = CEILING_SHARE * ceiling
        if prompt is None:
            allowed = min(allowed, SENT_SHARE * expected)
        else:
            factor = prompt / expected
            ways = [(factor * (1 + MIX_ERROR) if factor > 1 + MIX_ERROR else factor, 0, least)]
            if sent.holds_media and prompt > expected:
                ways = [(1.0, prompt - expected, least), (factor, 0, least / factor)]
        target = min(allowed, TARGET_SHARE * ceiling)
    for factor, media, room in ways:
        limit = budget.line.to_estimate(allowed / factor - media)
        if limit >= sent.instructions + room:
            aim = budget.line.to_estimate(max(target / factor - media, LEAST_SHARE * target))
            return _within(budget, limit, aim), int(allowed)
    return None, int(allowed)


def _fewer_bytes(overflow: Overflow, budget: Budget, sent: Payload) -> Budget | None:
    """Return limits for a smaller body: fewer tokens if media masks are not enough. None if no such limits help."""
    share = SENT_SHARE
    if overflow.limit_bytes is not None and sent.size:
        share = min(share, PAYLOAD_SHARE * overflow.limit_bytes / sent.size)
    lighter = replace(budget, body_bytes=int(share * sent.size))
    if sent.media_bytes >= (1 - share) * sent.size > 0:
        return lighter
    limit = int(share * sent.tokens)
    return _within(lighter, limit, limit) if limit >= sent.instructions + least_room(budget) else None


def _within(budget: Budget, limit: int, target: int) -> Budget:
    share = limit / budget.limit if budget.limit else 0.0
    return replace(
        budget,
        limit=limit,
        room=min(budget.room, limit),
        trigger=Trigger(target),
        target=target,
        tail=int(budget.tail * share),
        fold=int(budget.fold * share),
        cost_gate_limit=0,
    )
