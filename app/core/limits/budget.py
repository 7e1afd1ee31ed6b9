"""Budget: how much of the context window the prompt may use, and when that is too much."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from app.core.limits.trigger import Trigger
from app.tokens.calibration import ONE_TO_ONE, Line

WindowSource = str
"""Origin of a window: config, provider, learnt, bundled, default."""

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
RATIO_STEP = 0.25
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


class Shares(Struct, frozen=True):
    """The settings of `compaction`; ratios are shares of the limit."""

    trigger: float | None = 0.70
    """Share over which a compaction is due; None: at the limit."""
    of_window: bool = False
    """True if `trigger` is a share of the window, not of the limit."""
    cap: int | None = CAP
    """Tokens over which a compaction is due in any case; None for no cap."""
    since_checkpoint: float | None = None
    """Share of the window that the messages after the last summary may take before a compaction is due."""
    floor_tokens: int = 4_096
    """Tokens below which nothing is compacted."""
    floor: float = 0.85
    """Share of the limit that the floor takes at most."""
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

    def for_model(self, cap: int) -> Shares:
        """A copy with this cap in place of the usual one; itself without the usual one."""
        return replace(self, cap=cap) if self.cap == CAP else self


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

    def steady_estimate(self, tokens: float) -> int:
        """The provider's tokens as estimated ones, by coarse steps of the calibration, which moves a little with each
        answer."""
        return int(tokens / (max(1, round(self.line.ratio / RATIO_STEP)) * RATIO_STEP))


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
    room: float = min(limit, shares.cap or limit)
    due = _due(window.context, limit, shares)
    if threshold is not None:
        room, due = min(limit, threshold / (shares.trigger or 1.0)), min(limit, threshold)
    since = None
    if shares.since_checkpoint is not None and threshold is None:
        since = int(shares.since_checkpoint * window.context / line.ratio)
    target = min(shares.target * room, due)
    summary = max(MIN_SUMMARY, min(shares.max_summary_tokens, int(shares.chunk * room)))
    return Budget(
        window=window.context,
        limit=line.estimate(limit),
        room=line.estimate(room),
        # What does not fit is too large, however cautious the estimate.
        trigger=Trigger(min(line.estimate(due * caution), line.estimate(limit)), since),
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


def _due(window: int, limit: int, shares: Shares) -> float:
    """Tokens over which a compaction is due."""
    share = limit if shares.trigger is None else shares.trigger * (window if shares.of_window else limit)
    least = min(share, shares.cap or share)
    # A cap that the operator sets lower than the floor is meant.
    return max(min(shares.floor_tokens, shares.floor * limit, shares.cap or limit), least)
