"""Budget: how much of the context window the prompt may use, when that is too much, and the limits with which a prompt
that the provider refused for its size (`Overflow`) is sent once more.

Where the provider counts the output cap beside the prompt, the cap is lowered first, and the prompt is made smaller
only where that is not enough. The provider's numbers count where it gives them: the limit, or how much the prompt was
over it, scaled by the estimate. Otherwise 70 % of the prompt is tried, or half of one with pictures.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.calibration import ONE_TO_ONE, Line

WindowSource = str
"""Origin of a window: config, provider, learnt, bundled, default."""
MAX_RESERVE = 8_192
CAP = 160_000
"""Tokens over which a compaction is due in any window: models read longer prompts worse, and each request pays for all
of it. Shares of a larger limit are shares of this."""
MOST_RESERVED = 0.25
"""Share of the window that an output cap reserves at most: many clients set `max_tokens` as high as they can, and no
answer is as long."""
MIN_SUMMARY = 256
COST_GATE_SHARE = 0.95
"""Share of the limit up to which the cost gate may put off a compaction: the rest covers the estimate's error."""
RATIO_STEP = 0.25
HEURISTIC_CAUTION = 0.85
"""Factor of trigger and target where tokens are only estimated by bytes."""
PROMPT_ERROR = 0.02
"""Share of a prompt by which its estimate may be too low."""
UNTOLD_ERROR = 0.25
"""The same where a refusal gives no number of the prompt's."""
SOFT_SHARE = 0.55
"""Share of the room (see `Budget.room`) up to which no summary is made before it is due."""
LEAST_OVER_TARGET = 1.10
"""Times the target, likewise: below that a summary frees hardly anything."""
WAIT_SHARE = 0.97
"""Share of the limit over which a view is not sent without the summary that is due."""
MOST_OVER = 1.04
"""Times the room, likewise: a cap that keeps below a price step is exceeded by no more than this."""
REMEMBERED_SHARE = 0.5
"""Share of `background_threshold` from which on requests are counted."""
LEAST_KEPT = 0.5
"""Share of target and tail that the expected growth leaves: it may not come."""


class Window(Struct, frozen=True):
    """Tokens that a model accepts."""

    context: int
    """Prompt and completion together."""
    source: WindowSource
    max_input: int | None = None
    max_output: int | None = None
    note: str | None = None


class Trigger(Struct, frozen=True):
    """A compaction is due for a view that is larger than this."""

    tokens: int
    since: int | None = None
    """Tokens of the messages after the last summary, the current one included; None where they do not count."""

    def fires(self, tokens: int, since: int = 0) -> bool:
        return tokens > self.tokens or (self.since is not None and since > self.since)

    @property
    def quiet_tokens(self) -> int:
        """The largest view that never fires it."""
        return self.tokens if self.since is None else min(self.tokens, self.since)


class Shares(Struct, frozen=True):
    """The settings of `compaction`; ratios are shares of the limit."""

    trigger: float | None = 0.70
    """None: a compaction is due at the limit."""
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
    """Whole turns before the current one that stay verbatim."""
    tail: float = 0.30
    tail_fill: float = 0.15
    """More turns stay verbatim up to this, and to `most_tail_fill` tokens."""
    most_tail_fill: int = 16_384
    chunk: float = 0.06
    """A summary chunk takes at most this, and `max_summary_tokens`."""
    max_summary_tokens: int = 2_048
    fold: float = 0.30
    """Chunks that together take more are folded."""
    reserve: float | None = None
    """Least share of the window that is kept free for the completion. None: see `reserve_of`."""

    def for_model(self, cap: int) -> Shares:
        """A copy with the model's cap in place of the default one; a cap that the operator set stays."""
        return replace(self, cap=cap) if self.cap == CAP else self


class Budget(Struct, frozen=True):
    """Limits for one request, in tokens of the uncalibrated estimate unless said otherwise. For `tail_turns`,
    `tail_fill`, `summary` and `fold` see `Shares`."""

    window: int
    """The provider's tokens."""
    limit: int
    """The prompt takes at most this: the window less the reserve."""
    room: int
    """Shares are shares of this: the limit, or the cap if that is less."""
    trigger: Trigger
    target: int
    """A compaction brings the view to at most this."""
    tail_turns: int
    tail: int
    """The verbatim tail takes at most this, the last user message not counted."""
    tail_fill: int
    summary: int
    fold: int
    reported_limit: int
    """The limit in the provider's tokens, which stays the same while the calibration learns; the target likewise."""
    reported_target: int
    cost_gate_limit: int = 0
    """Up to this view the cost gate may put off what is due. 0 after an overflow, and where a request names its own
    trigger."""
    line: Line = ONE_TO_ONE
    caution: float = 1.0
    """Factor of shares of the limit: see `HEURISTIC_CAUTION`."""
    reserve: int = 0
    """The part of the window that is kept free for the completion, in the provider's tokens."""
    body_bytes: int = 0
    """Bytes of all messages over which pictures and files are left out; 0: no bound."""

    def steady_estimate(self, tokens: float) -> int:
        """Estimate of the provider's tokens by coarse steps of the ratio, as the calibration moves a little with each
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
    """Work out the limits of one request from the model's window and the settings.

    `output` is the request's output cap. `threshold` is a trigger in the provider's tokens that the request names:
    target, tail and summaries are then as if the window began to be full there.

    The calibration is applied here and nowhere else: a limit in the provider's tokens becomes an estimate; shares of it
    are as much smaller, without the offset.
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
    # The cap is also for quality, which is not traded for cost.
    cost_gate_limit = line.to_estimate(min(COST_GATE_SHARE * limit, room) * caution) if threshold is None else 0
    return Budget(
        window=window.context,
        limit=line.to_estimate(limit),
        room=line.to_estimate(room),
        # What does not fit is too large, however cautious the estimate.
        trigger=Trigger(min(line.to_estimate(due * caution), line.to_estimate(limit)), since),
        target=line.to_estimate(target * caution),
        tail_turns=shares.tail_turns,
        tail=int(shares.tail * room / line.ratio),
        # Where the trigger leaves less than the target would be, the tail is as much smaller.
        tail_fill=int(min(shares.tail_fill / shares.target * target, shares.most_tail_fill) / line.ratio),
        summary=int(summary / line.ratio),
        fold=int(shares.fold * room / line.ratio),
        reported_limit=limit,
        reported_target=int(target * caution),
        cost_gate_limit=cost_gate_limit,
        line=line,
        caution=caution,
        reserve=reserve,
        body_bytes=body_bytes,
    )


def limit_of(window: Window, reserve: int) -> int:
    """Tokens that the prompt may use, as the provider counts them."""
    return max(0, min(window.max_input or window.context, window.context - reserve))


def reserve_of(window: Window, output: int | None, least: float | None = None) -> int:
    """Tokens kept free for a completion with this output cap; `least` is a share of the window."""
    if output is None and least is None:
        return min(window.context // 20, MAX_RESERVE, window.max_output or MAX_RESERVE)
    return max(min(output or 0, int(MOST_RESERVED * window.context)), round((least or 0.0) * window.context))


def _due(window: int, limit: int, shares: Shares) -> float:
    share = limit if shares.trigger is None else shares.trigger * (window if shares.of_window else limit)
    # A cap that the operator sets lower than the floor is meant.
    floor = min(shares.floor_tokens, shares.floor * limit, shares.cap or limit)
    return max(floor, min(share, shares.cap or share))


def least_output(window: int, cap: int, thinking: int) -> int:
    """The lowest output cap in place of `cap`: a quarter of the window, and more than the tokens for thinking."""
    return min(cap, max(int(MOST_RESERVED * window), thinking + 1))


def output_cap(budget: Budget, sent: int, cap: int, thinking: int) -> int | None:
    """The lower output cap with which a prompt of this estimate fits the window of a provider that adds the two; None
    where the client's own fits."""
    prompt = budget.line.to_provider_tokens(sent)
    if prompt + cap <= budget.window:
        return None
    fitting = budget.window - round((1 + PROMPT_ERROR) * prompt)
    lowered = max(fitting, least_output(budget.window, cap, thinking))
    return lowered if lowered < cap else None


def most_without_summary(budget: Budget) -> int:
    """The largest view that may be sent although a compaction is due."""
    return int(budget.caution * min(WAIT_SHARE * budget.limit, MOST_OVER * budget.room))


def background_threshold(budget: Budget) -> int:
    """The largest view for which nothing is made in the background, however fast the history grows."""
    soft = max(SOFT_SHARE * budget.caution * budget.room, LEAST_OVER_TARGET * budget.target)
    return min(int(soft), budget.trigger.quiet_tokens)


def least_counted(budget: Budget) -> int:
    """The largest history whose requests need not be counted."""
    return int(REMEMBERED_SHARE * background_threshold(budget))


def latest_start(budget: Budget, growth: int) -> int:
    return max(background_threshold(budget), most_without_summary(budget) - growth)


def background_budget(budget: Budget, growth: int) -> Budget:
    """The limits of a background compaction that begins now: when it begins, and the size of view it aims for. Its
    trigger fires wherever the request's own does.

    A request over the trigger goes on without its summary while it fits, and the summary is made after its answer.
    Where the conversation grows fast, or summaries take long, the next requests would no longer fit, and would wait. So
    a summary begins below the trigger, and is no longer put off for its cost, once the free room is less than the
    expected growth of the history while the summary is made (`RequestRate.growth`).

    The expected growth counts against the target and the tail, so that the view is as large when the summary is used
    as if the compaction had been made at that moment.
    """
    start = latest_start(budget, growth)

    def less(tokens: int) -> int:
        return max(int(LEAST_KEPT * tokens), tokens - growth)

    return replace(
        budget,
        trigger=replace(budget.trigger, tokens=min(budget.trigger.tokens, start)),
        target=less(budget.target),
        tail=less(budget.tail),
        tail_fill=less(budget.tail_fill),
        cost_gate_limit=min(budget.cost_gate_limit, start),
    )


MIN_LIMIT = 1_000
"""Tokens; a smaller limit is no window but an entitlement, or not a number of tokens at all."""
FEW = 16
"""Tokens of an empty answer; a provider counts what ends it."""
FULL_SHARE = 0.95
"""Share of the window that prompt and answer fill when the window ended the answer."""
PRESSURE = 0.80
"""Share of the window from which on a prompt may be too large for it, by an estimate."""
CEILING_SHARE = 0.95
MIX_ERROR = 0.05
"""Share by which a smaller prompt may cost more than the refused one, for its size: it mixes other parts."""
SENT_SHARE = 0.70
SENT_MEDIA_SHARE = 0.50
"""Shares of a prompt that are tried where the refusal gives no numbers; what pictures cost is known least."""
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


class SmallerLimits(Struct, frozen=True):
    """Changes of a refused request; None for what stays."""

    budget: Budget | None
    output_cap: int | None = None


def limits_after(overflow: Overflow, budget: Budget, sent: Payload) -> SmallerLimits | None:
    """Choose a smaller budget or output cap for a retry; None if neither can help."""
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
        # Without the prompt's own number the refusal gives a lower bound at most.
        fitting = window - (prompt or round((1 + PROMPT_ERROR) * max(expected, overflow.prompt or 0)))
        if least <= fitting < sent.cap:
            return SmallerLimits(None, fitting)
    reserve = least if output is None else min(output, least)
    smaller, allowed = _fewer_tokens(overflow, budget, sent, prompt, reserve)
    if smaller is None:
        return None
    # Without the prompt's own number its estimate may be far off, and the provider may add the cap unsaid.
    cap = max(least, window - (allowed if prompt else round((1 + UNTOLD_ERROR) * allowed)))
    return SmallerLimits(smaller, cap if reserve and cap < sent.cap else None)


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

    Where the provider counts more than was expected, every part is taken to cost as much more, with room for another
    error. In a prompt that holds media the difference is first taken to be that of pictures, which stay: it is the same
    for a smaller prompt. Where that leaves no room, it is that of pictures which can go.
    """
    expected = budget.line.to_provider_tokens(sent.tokens)
    least = least_room(budget)
    # What the provider counts more, as a factor and in tokens, and the least room: one way, or two.
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
