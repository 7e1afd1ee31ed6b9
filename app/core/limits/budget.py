"""Budget: how much of the context window the prompt may use, and when that is too much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.core.limits.trigger import Condition, Trigger

WindowSource = str
"""Origin of a window: config, provider, learnt, bundled, default."""

MOST_TOKENS = 100_000_000
"""No window and no prompt is larger; what somebody says beyond it is no number of tokens."""
MAX_RESERVE = 8_192
CAP = 160_000
"""Tokens over which a compaction is due however large the window is: models read longer prompts worse, and each request
pays for all of it. The shares of a larger limit are shares of this."""
MOST_RESERVED = 0.25
"""Share of the window that an output cap reserves at most: many clients set `max_tokens` as high as they can, and no
answer is as long."""
MIN_SUMMARY = 256
HOLD_RATIO = 0.95
"""Share of the limit up to which a request may go on without a compaction that is due: what is left is for what an
estimate may be wrong by."""
HEURISTIC_CAUTION = 0.85
"""Trigger and target are scaled by this where tokens are only estimated by bytes."""


class Window(Struct, frozen=True):
    """Tokens that a model accepts."""

    context: int
    """Prompt and completion together."""
    source: WindowSource
    max_input: int | None = None
    max_output: int | None = None
    note: str | None = None
    """Remark about the window for whoever looks at it."""


class Rule(Struct, frozen=True):
    """One alternative of a trigger as it is set: all that it names must hold. Tokens are the provider's."""

    token_ratio: float | None = None
    """The estimate is over this share."""
    since_checkpoint_ratio: float | None = None
    """The messages after the last summary are."""
    of: Literal["limit", "window"] = "limit"
    """Size that the ratios are shares of."""
    tokens: int | None = None
    """The estimate is over so many."""
    remaining_tokens: int | None = None
    """Tokens of the window, of which at most so many are left."""
    overflow: bool = False
    """The estimate is over the limit."""
    turns: int | None = None
    messages: int | None = None


class Shares(Struct, frozen=True):
    """The settings of `compaction`; ratios are shares of the limit."""

    trigger: tuple[Rule, ...] = (Rule(token_ratio=0.70), Rule(tokens=CAP))
    """Rules of the trigger; one of them is enough."""
    floor_tokens: int = 4_096
    target: float = 0.50
    tail_turns: int = 3
    tail: float = 0.30
    tail_fill: float = 0.15
    most_tail_fill: int = 16_384
    """Tokens."""
    chunk: float = 0.06
    max_summary_tokens: int = 2_048
    fold: float = 0.30
    reserve: float | None = None
    """Least share of the window that is kept free for the completion. None: see `reserve_of`."""

    @property
    def cap(self) -> int | None:
        """Tokens that fire the trigger beside a ratio that may be more in a large window; None if it has none."""
        if not any(rule.token_ratio is not None for rule in self.trigger):
            return None
        return min(
            (rule.tokens for rule in self.trigger if rule.tokens and rule == Rule(tokens=rule.tokens)), default=None
        )

    def for_model(self, cap: int) -> Shares:
        """A copy with this cap in place of the usual one; itself without the usual one."""
        if cap == CAP or self.cap != CAP:
            return self
        return replace(
            self, trigger=tuple(Rule(tokens=cap) if rule == Rule(tokens=CAP) else rule for rule in self.trigger)
        )


class Line(Struct, frozen=True):
    """Line from our estimate to a provider's count: offset + ratio x estimate."""

    offset: float = 0.0
    ratio: float = 1.0

    def reported(self, estimate: float) -> int:
        """The provider's tokens for a prompt of that estimate."""
        return round(self.offset + self.ratio * estimate)

    def estimate(self, reported: float) -> int:
        """The largest estimate of a prompt that the provider counts as so many tokens."""
        return max(0, int((reported - self.offset) / self.ratio))


ONE_TO_ONE = Line()
"""The line of a provider of which nothing was learnt."""


class Budget(Struct, frozen=True):
    """Limits for one request in our uncalibrated estimate, so that what is counted need not be converted."""

    window: int
    """Tokens of the model's window, as the provider counts them."""
    limit: int
    """Tokens that the prompt may use: the window less the output."""
    room: int
    """Tokens that shares are of: the limit, or the cap if that is less."""
    trigger: Trigger
    """Fires where a compaction is due."""
    target: int
    """A compaction brings the view to at most this."""
    tail_turns: int
    """Number of whole turns before the current one that stay verbatim, as that does."""
    tail: int
    """The verbatim tail takes at most this, but for the last user message."""
    tail_fill: int
    """Tokens up to which more turns stay."""
    summary: int
    """A summary chunk takes at most this."""
    fold: int
    """Chunks are folded when together they take more."""
    reported_limit: int
    """The limit in the provider's tokens, which stays the same while the calibration learns."""
    reported_target: int
    """The target likewise."""
    hold: int = 0
    """While the view has at most this, what is due may be put off. Never after an overflow, nor where a request says
    itself when it is due."""
    line: Line = ONE_TO_ONE
    """How what is estimated is shown: as the provider counts it."""
    caution: float = 1.0
    """Shares of the limit are scaled by this: see `HEURISTIC_CAUTION`."""
    reserve: int = 0
    """Tokens of the window that are kept free for the completion, as the provider counts them."""
    body_bytes: int = 0
    """Bytes of all messages over which pictures and files give way; 0: whatever they have."""


def budget_for(
    window: Window,
    output: int | None,
    shares: Shares,
    line: Line = ONE_TO_ONE,
    *,
    caution: float = 1.0,
    threshold: int | None = None,
    body_bytes: int = 0,
) -> Budget:
    """The limits of one request, worked out from the model's window and the shares that are set.

    `output` is the request's output cap, None if it names none. `caution` scales trigger and target, see
    `HEURISTIC_CAUTION`. `threshold` is a trigger in the provider's tokens that a request sets for itself: target, tail
    and summaries are then as if the window began to be full there.

    The calibration is applied here and nowhere else: a limit in the provider's tokens becomes one in our estimate;
    shares of it are as much smaller, without the offset.
    """
    reserve = reserve_of(window, output, shares.reserve)
    limit = limit_of(window, reserve)
    room, floor, rules = _room(limit, shares, threshold)
    bounds = [max(_tokens(rule, window.context, limit), default=None) for rule in rules]
    conditions = (
        Condition(
            tokens=line.estimate(max(floor, bound or 0.0) * caution),
            since=_since(rule, window.context, limit, line),
            turns=rule.turns,
            messages=rule.messages,
        )
        for rule, bound in zip(rules, bounds, strict=True)
    )
    # What fires by other measures sets no bound to the whole.
    least = min((max(floor, bound) for bound in bounds if bound is not None), default=limit)
    target = min(shares.target * room, least)
    summary = max(MIN_SUMMARY, min(shares.max_summary_tokens, int(shares.chunk * room)))
    return Budget(
        window=window.context,
        limit=line.estimate(limit),
        room=line.estimate(room),
        # Whatever else it looks at: what does not fit is too large.
        trigger=Trigger((*conditions, Condition(tokens=line.estimate(limit))), shares.tail_turns),
        target=line.estimate(target * caution),
        tail_turns=shares.tail_turns,
        tail=int(shares.tail * room / line.ratio),
        # Where the trigger leaves less than the target would be, the tail is as much smaller.
        tail_fill=int(min(shares.tail_fill / shares.target * target, shares.most_tail_fill) / line.ratio),
        summary=int(summary / line.ratio),
        fold=int(shares.fold * room / line.ratio),
        reported_limit=limit,
        reported_target=int(target * caution),
        # A cap is also for quality, which is not traded for cost.
        hold=line.estimate(min(HOLD_RATIO * limit, room) * caution) if threshold is None else 0,
        line=line,
        caution=caution,
        reserve=reserve,
        body_bytes=body_bytes,
    )


def limit_of(window: Window, kept: int) -> int:
    """Tokens that the prompt may use with so many kept free for the completion, as the provider counts them."""
    return max(0, min(window.max_input or window.context, window.context - kept))


def reserve_of(window: Window, output: int | None, least: float | None = None) -> int:
    """Tokens of the window that are kept free for a completion with this output cap, None for no cap. `least` is the
    share of the window that is kept free in any case."""
    if output is None and least is None:
        return min(window.context // 20, MAX_RESERVE, window.max_output or MAX_RESERVE)
    return max(min(output or 0, int(MOST_RESERVED * window.context)), round((least or 0.0) * window.context))


def _room(limit: int, shares: Shares, threshold: int | None) -> tuple[float, float, tuple[Rule, ...]]:
    """Tokens that shares are of, the least that triggers, and the rules of the trigger."""
    if threshold is None:
        return min(limit, shares.cap or limit), min(shares.floor_tokens, 0.85 * limit), shares.trigger
    ratio = next((rule.token_ratio for rule in shares.trigger if rule.token_ratio), 1.0)
    return min(limit, threshold / ratio), 0.0, (Rule(tokens=min(limit, threshold)),)


def _tokens(rule: Rule, window: int, limit: int) -> Iterator[float]:
    """Limits that the estimate must exceed for this rule, one for each measure that it names."""
    if rule.token_ratio is not None:
        yield rule.token_ratio * (window if rule.of == "window" else limit)
    if rule.tokens is not None:
        yield rule.tokens
    if rule.remaining_tokens is not None:
        yield window - rule.remaining_tokens - 1
    if rule.overflow:
        yield limit


def _since(rule: Rule, window: int, limit: int, line: Line) -> int | None:
    if rule.since_checkpoint_ratio is None:
        return None
    return int(rule.since_checkpoint_ratio * (window if rule.of == "window" else limit) / line.ratio)
