"""Budget: how much of the context window the prompt may use, and when that is too much."""

from __future__ import annotations

from dataclasses import dataclass

WindowSource = str
"""Where a window comes from: config, provider, learnt, bundled, default."""

MOST_TOKENS = 100_000_000
"""No window and no prompt is larger; what somebody says beyond it is no number of tokens."""
MAX_RESERVE = 8_192
MIN_SUMMARY = 256


@dataclass(frozen=True, slots=True)
class Window:
    """What a model accepts, in tokens."""

    context: int
    """Prompt and completion together."""
    source: WindowSource
    max_input: int | None = None
    max_output: int | None = None
    note: str | None = None
    """What is to be known about it."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The settings of `compaction`; ratios are shares of the limit."""

    trigger: float = 0.70
    floor_tokens: int = 4_096
    target: float = 0.50
    tail_turns: int = 4
    tail: float = 0.30
    chunk: float = 0.06
    max_summary_tokens: int = 2_048
    fold: float = 0.30


@dataclass(frozen=True, slots=True)
class Line:
    """What a provider counts, as a line over our estimate: offset + ratio x estimate."""

    offset: float = 0.0
    ratio: float = 1.0

    def reported(self, estimate: float) -> int:
        """The provider's tokens for a prompt of that estimate."""
        return round(self.offset + self.ratio * estimate)

    def estimate(self, reported: float) -> int:
        """The largest estimate of a prompt that the provider counts as so many tokens."""
        return max(0, int((reported - self.offset) / self.ratio))


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for one request in our uncalibrated estimate, so that what is counted need not be converted."""

    window: int
    """In the provider's tokens."""
    limit: int
    """What the prompt may use: the window less the output."""
    trigger: int
    """A compaction is due when the estimate is over it."""
    target: int
    """A compaction brings the view to at most this."""
    tail_turns: int
    tail: int
    """The verbatim tail takes at most this, but for the last user message."""
    summary: int
    """A summary chunk takes at most this."""
    fold: int
    """Chunks are folded when together they take more."""
    line: Line = Line()
    """How what is estimated is shown: as the provider counts it."""


def budget_for(
    window: Window,
    output: int | None,
    shares: Shares,
    line: Line = Line(),
    *,
    caution: float = 1.0,
    threshold: int | None = None,
) -> Budget:
    """The budget of DESIGN section 5.

    `output` is what the request reserves for the completion, None if it does not say. `caution` scales trigger and
    target: 0.85 where counts are only a heuristic. `threshold` is a trigger in the provider's tokens that a request
    sets for itself: target, tail and summaries are then as if the window began to be full there.

    The calibration is applied here and nowhere else: a limit in the provider's tokens becomes one in our estimate;
    shares of it are as much smaller, without the offset.
    """
    if output is None:
        output = min(window.context // 20, MAX_RESERVE, window.max_output or MAX_RESERVE)
    limit = max(0, min(window.max_input or window.context, window.context - output))
    if threshold is None:
        room, trigger = float(limit), max(shares.trigger * limit, min(shares.floor_tokens, 0.85 * limit))
    else:
        room, trigger = min(limit, threshold / shares.trigger), min(limit, threshold)
    summary = max(MIN_SUMMARY, min(shares.max_summary_tokens, int(shares.chunk * room)))
    return Budget(
        window=window.context,
        limit=line.estimate(limit),
        trigger=line.estimate(trigger * caution),
        target=line.estimate(min(shares.target * room, trigger) * caution),
        tail_turns=shares.tail_turns,
        tail=int(shares.tail * room / line.ratio),
        summary=int(summary / line.ratio),
        fold=int(shares.fold * room / line.ratio),
        line=line,
    )
