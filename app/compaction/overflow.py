"""Overflow: a prompt that the provider refused for its size, and the limits with which it is sent once more.

Where the provider counts the output cap beside the prompt, the cap is lowered first, and the prompt is made smaller
only where that is not enough. The provider's numbers count where it gives them: the limit, or how much the prompt was
over it, scaled by the estimate. Otherwise 70 % of the prompt is tried.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import PROMPT_ERROR, Budget, Trigger, least_output

MIN_LIMIT = 1_000
"""Tokens; a smaller limit is no window but an entitlement, or not a number of tokens at all."""
FEW = 16
"""Tokens of an empty answer; a provider counts what ends it."""
FULL_SHARE = 0.95
"""Share of the window that prompt and answer fill when the window ended the answer."""
PRESSURE = 0.80
"""Share of the window from which on a prompt may be too large for it, by an estimate."""

CEILING_SHARE = 0.95
SENT_SHARE = 0.70
TARGET_SHARE = 0.60
"""Target of a summary as a share of the ceiling, so that the next turn does not overflow again."""
LEAST_ROOM = 2_000
LEAST_SHARE = 0.25
"""Tokens beside the instructions, or this share of the limit in small windows; with less no conversation is left."""
PAYLOAD_SHARE = 0.9
"""Share of a limit of bytes that is used, as tokens and bytes do not shrink alike."""


class Overflow(Struct, frozen=True):
    """A prompt that was refused for its size. Numbers are the provider's own, None where it does not give them."""

    kind: Literal["context_window", "request_too_large", "payload"]
    """Over the model's window, over a bucket of tokens per minute, or over a limit of bytes."""
    limit: int | None = None
    prompt: int | None = None
    """Tokens of the prompt, if the error separates them from the output."""
    requested: int | None = None
    """Tokens counted against the limit: the prompt, with the output where that counts."""
    names_output: bool = False
    needs_pressure: bool = False
    """The error gives no reason: an overflow only if the estimate was at least `PRESSURE`."""
    limit_bytes: int | None = None

    @property
    def learn_window(self) -> bool:
        """Whether the limit may be kept as the model's window."""
        refused = self.requested is None or self.limit is None or self.requested > self.limit
        return self.kind == "context_window" and self.limit is not None and refused


class CutAnswer(Struct, frozen=True):
    """An answer with status 200 that ended for want of room, in the provider's tokens."""

    by_window: bool
    """The stop reason names the window; else any bound of the answer's length."""
    is_empty: bool
    """True if the answer holds neither text nor calls."""
    prompt: int | None
    completion: int | None

    def total(self, expected: int) -> int:
        return (self.prompt or expected) + (self.completion or 0)


def overflow_of(cut: CutAnswer, expected: int, window: int, reserve: int, cap: int | None) -> Overflow | None:
    """The overflow that an answer shows by its end: the prompt left it less room than the reserve.

    `expected` is the prompt's estimate in the provider's tokens; the request's output cap `cap` may have ended the
    answer as well. The limit is what prompt and answer took together.
    """
    completion, total = cut.completion, cut.total(expected)
    if cut.by_window:
        is_overflow = cut.is_empty or (completion is not None and completion < reserve)
    elif not cut.is_empty or (cap is not None and cap <= max(FEW, completion or 0)):
        is_overflow = False
    elif completion is None:
        is_overflow = cap is None or expected >= PRESSURE * window
    else:  # Hidden thinking may have taken a cap of the provider's own.
        is_overflow = completion <= FEW or total >= FULL_SHARE * window
    return Overflow("context_window", total) if is_overflow and total >= MIN_LIMIT else None


class Payload(Struct, frozen=True):
    """The refused request, in tokens of the estimate."""

    tokens: int
    instructions: int
    """Tokens that no compaction takes away."""
    cap: int | None = None
    """The request's output cap."""
    thinking: int = 0
    """The budget for thinking, which the output cap has to exceed."""
    holds_media: bool = False
    size: int = 0
    """Bytes of the body."""
    media_bytes: int = 0
    """Bytes of media that the policy may leave out."""


class Recovery(Struct, frozen=True):
    """Changes of a refused request; None for what stays."""

    budget: Budget | None
    output_cap: int | None = None


def recover(overflow: Overflow, budget: Budget, sent: Payload) -> Recovery | None:
    """Choose the change for one more try; None if none can help."""
    if overflow.kind == "payload":
        return Recovery(lighter) if (lighter := _fewer_bytes(overflow, budget, sent)) else None
    expected = budget.line.to_provider_tokens(sent.tokens)
    if overflow.needs_pressure and expected < PRESSURE * budget.window:
        return None
    window = overflow.limit or budget.window
    prompt, output = _counted(overflow, expected, sent.cap, window)
    if sent.cap is None:
        smaller, _ = _fewer_tokens(overflow, budget, sent, prompt, output or 0)
        return Recovery(smaller) if smaller else None
    least = least_output(window, sent.cap, sent.thinking)
    if output:
        # Without the prompt's own number the refusal gives a lower bound at most.
        fitting = window - (prompt or round((1 + PROMPT_ERROR) * max(expected, overflow.prompt or 0)))
        if least <= fitting < sent.cap:
            return Recovery(None, fitting)
    reserve = least if output is None else min(output, least)
    smaller, allowed = _fewer_tokens(overflow, budget, sent, prompt, reserve)
    if smaller is None:
        return None
    cap = max(least, window - allowed)
    return Recovery(smaller, cap if reserve and cap < sent.cap else None)


def _counted(overflow: Overflow, expected: int, cap: int | None, window: int) -> tuple[int | None, int | None]:
    """The provider's tokens of the prompt and of the output that it added, each None where unknown."""
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
    if output and requested == window + 1:  # vLLM names the least prompt that would be too large.
        return None, output
    return requested - output, output


def _fewer_tokens(
    overflow: Overflow, budget: Budget, sent: Payload, prompt: int | None, reserve: int
) -> tuple[Budget | None, int]:
    """Limits for a smaller prompt, None where that leaves no conversation, and its most tokens as the provider counts.

    Where the provider counts more than was expected, every part is taken to cost as much more. In a prompt that holds
    media the difference is first taken to be that of pictures, which stay: it is the same for a smaller prompt. Where
    that leaves no room, it is that of pictures which can go.
    """
    expected = budget.line.to_provider_tokens(sent.tokens)
    least = least_room(budget)
    # What the provider counts more, as a factor and in tokens, and the least room: one way, or two.
    ways: list[tuple[float, int, float]] = [(1.0, 0, least)]
    if overflow.limit is None:
        in_force = budget.line.to_provider_tokens(budget.limit)
        allowed = SENT_SHARE * (expected if SENT_SHARE * expected < in_force else in_force)
        target = allowed
    else:
        ceiling = overflow.limit - reserve
        allowed = CEILING_SHARE * ceiling
        if prompt is None:
            allowed = min(allowed, SENT_SHARE * expected)
        else:
            factor = prompt / expected
            ways = [(factor, 0, least)]
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
    """Limits for a smaller body: with less of its media where that is enough, else with fewer tokens."""
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


def least_room(budget: Budget) -> int:
    """Least tokens of a prompt beside the instructions; a smaller one is not made."""
    return max(1, min(LEAST_ROOM, int(LEAST_SHARE * budget.limit)))
