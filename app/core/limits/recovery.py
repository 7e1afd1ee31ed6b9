"""Recovery: the limits for sending a request once more, after the provider refused it for its size.

Where the provider counts the output cap beside the prompt, the cap is lowered first, and the prompt is made smaller
only where that is not enough. The provider's numbers count where it gives them: the limit, or how much the prompt was
over it, scaled by what was estimated. Otherwise 70 % of what was sent is tried.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from app.core.limits.budget import Budget
from app.core.limits.output_cap import PROMPT_ERROR, least_output
from app.core.limits.overflow import PRESSURE, Overflow
from app.core.limits.trigger import Trigger

CEILING_SHARE = 0.95
SENT_SHARE = 0.70
TARGET_SHARE = 0.60
"""Target of a summary as a share of the ceiling, so that the next turn does not overflow again."""
LEAST_ROOM = 2_000
LEAST_SHARE = 0.25
"""Tokens beside the instructions, or this share of the limit in small windows; with less there is no conversation
left."""
PAYLOAD_SHARE = 0.9
"""Share of a limit of bytes that is used, as tokens and bytes do not shrink alike."""


class Sent(Struct, frozen=True):
    """A refused request. Estimates are in our tokens."""

    tokens: int
    """Estimate of the prompt."""
    instructions: int
    """Estimate of what no compaction takes away."""
    cap: int | None = None
    """The request's output cap."""
    thinking: int = 0
    """Tokens for thinking, which the output cap has to exceed."""
    holds_media: bool = False
    size: int = 0
    """Bytes of the body."""
    media_bytes: int = 0
    """Bytes of media that a policy may put into words."""


class Recovery(Struct, frozen=True):
    """Changes of a refused request."""

    budget: Budget | None
    """Limits to make the prompt anew with; None where it stays."""
    output_cap: int | None = None
    """Lower output cap; None where it stays."""


def recover(overflow: Overflow, budget: Budget, sent: Sent) -> Recovery | None:
    """Choose the change for one more try; None if none can help. Limits in the result are in our tokens."""
    if overflow.kind == "payload":
        lighter = _lighter(overflow, budget, sent)
        return Recovery(lighter) if lighter is not None else None
    expected = budget.line.reported(sent.tokens)
    if overflow.needs_pressure and expected < PRESSURE * budget.window:
        return None
    window = overflow.limit or budget.window
    least = least_output(window, sent.cap, sent.thinking) if sent.cap is not None else None
    prompt, output = _counted(overflow, expected, sent.cap, window)
    if sent.cap is not None and least is not None and output:
        fitting = window - prompt if prompt else window - round((1 + PROMPT_ERROR) * _at_least(overflow, expected))
        if least <= fitting < sent.cap:
            return Recovery(None, fitting)
    kept = least if output is None else output if least is None else min(output, least)
    smaller = _smaller(overflow, budget, sent, prompt, kept or 0)
    if smaller is None:
        return None
    cap = max(least or 0, window - budget.line.reported(smaller.limit))
    return Recovery(smaller, cap if kept and sent.cap is not None and cap < sent.cap else None)


def _at_least(overflow: Overflow, expected: int) -> int:
    """The provider's tokens of the prompt, where its refusal gives no more than a lower bound."""
    return max(expected, overflow.prompt or 0)


def _counted(overflow: Overflow, expected: int, cap: int | None, window: int) -> tuple[int | None, int | None]:
    """Tokens of the prompt and of the output that the provider added, each None where that is not known.

    `expected` is the prompt's estimate in the provider's tokens, `cap` the request's output cap.
    """
    prompt, requested = overflow.prompt, overflow.requested
    if requested is None:
        fits_alone = expected <= CEILING_SHARE * window
        is_sum = overflow.names_output and cap is not None and fits_alone and expected + cap > window
        return None, cap if is_sum else None
    if prompt is None:
        is_sum = cap is not None and abs(requested - cap - expected) < abs(requested - expected)
        return (requested - cap, cap) if cap is not None and is_sum else (None, None)
    output = requested - prompt if cap is None else min(cap, requested - prompt)
    if output and requested == window + 1:  # vLLM names the least prompt that would be too large.
        return None, output
    return requested - output, output


def _smaller(overflow: Overflow, budget: Budget, sent: Sent, prompt: int | None, kept: int) -> Budget | None:
    """Limits for a smaller prompt, beside which so many of the provider's tokens are kept free; None where that leaves
    no conversation.

    Where the provider counts more than was expected, all of it is taken to cost as much more. In a prompt that holds
    media the difference is taken to be that of pictures, which stay: it is the same for a smaller prompt. Where that
    leaves no room, it is that of pictures which can go.
    """
    expected = budget.line.reported(sent.tokens)
    least = least_room(budget)
    # How much more the provider counts than we did, as a factor and in tokens, and the least room: one way, or two.
    more: list[tuple[float, int, float]] = [(1.0, 0, least)]
    if overflow.limit is None:
        in_force = budget.line.reported(budget.limit)
        allowed = SENT_SHARE * (expected if SENT_SHARE * expected < in_force else in_force)
        target = allowed
    else:
        ceiling = overflow.limit - kept
        allowed = CEILING_SHARE * ceiling
        if prompt is None:
            allowed = min(allowed, SENT_SHARE * expected)
        else:
            factor = prompt / expected  # Applied once, here.
            more = [(factor, 0, least)]
            if sent.holds_media and prompt > expected:
                more = [(1.0, prompt - expected, least), (factor, 0, least / factor)]
        target = min(allowed, TARGET_SHARE * ceiling)
    for factor, media, room in more:
        limit = budget.line.estimate(allowed / factor - media)
        if limit >= sent.instructions + room:
            aim = budget.line.estimate(max(target / factor - media, LEAST_SHARE * target))
            return _within(budget, limit, aim)
    return None


def _lighter(overflow: Overflow, budget: Budget, sent: Sent) -> Budget | None:
    """Limits for a payload of fewer bytes: with less of its media where that is enough, else smaller as a whole."""
    share = SENT_SHARE
    if overflow.limit_bytes is not None and sent.size:
        share = min(share, PAYLOAD_SHARE * overflow.limit_bytes / sent.size)
    lighter = replace(budget, body_bytes=int(share * sent.size))
    if sent.media_bytes >= (1 - share) * sent.size > 0:
        return lighter
    limit = int(share * sent.tokens)
    return _within(lighter, limit, limit) if limit >= sent.instructions + least_room(budget) else None


def _within(budget: Budget, limit: int, aim: int) -> Budget:
    share = limit / budget.limit if budget.limit else 0.0
    return replace(
        budget,
        limit=limit,
        room=min(budget.room, limit),
        trigger=Trigger(aim),
        target=aim,
        tail=int(budget.tail * share),
        fold=int(budget.fold * share),
        hold=0,
    )


def least_room(budget: Budget) -> int:
    """Least tokens of a prompt beside the instructions; a smaller one is not made."""
    return max(1, min(LEAST_ROOM, int(LEAST_SHARE * budget.limit)))
