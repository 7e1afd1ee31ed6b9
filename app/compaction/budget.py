"""Budget: the token limits of a request, and the lower limits for a retry after the provider refused the prompt for its
size (`Overflow`).

If the provider adds the output cap to the prompt, Steno lowers the cap first, and shortens the prompt only if that is
not enough. The new limits follow from two numbers in the provider's error: the limit, and the tokens that the provider
counted. Without numbers, Steno tries 70 % of the prompt, or 50 % if the prompt holds media.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.calibration import ONE_TO_ONE, Line

WindowSource = str
"""Origin of a window's size: config, provider, learnt, bundled or default."""
MAX_RESERVE = 8_192
CAP = 160_000
"""Tokens above which a compaction is due in any window: longer prompts lower the quality and raise the cost of answers.
If the limit is larger, the ratios of `Shares` are shares of the cap."""
MOST_RESERVED = 0.25
"""Maximum share of the window that is reserved for an output cap. Many clients set `max_tokens` to the maximum, but
their answers are far shorter."""
MIN_SUMMARY = 256
WIDE_RECALL = 3
"""Factor of `Shares.recall` for a question of the user, if the view has enough room."""
WORDS_SHARE, WIDE_WORDS_SHARE = 0.12, 0.20
"""Maximum share of `Budget.room` for the user's words in all chunks; `WIDE_WORDS_SHARE` if the view meets its
target."""
CHUNK_WORDS_SHARE, CHUNK_WORDS_TOKENS = 0.06, 4_096
"""Maximum share of `Budget.room`, and maximum tokens, for the user's words in one chunk."""
CONTEXT_SHARE = 0.10
"""Maximum share of the limit for the note that repeats client context."""
COST_GATE_SHARE = 0.95
"""Share of the limit above which the cost gate no longer postpones a compaction. The rest covers estimation errors."""
RATIO_STEP = 0.25
HEURISTIC_CAUTION = 0.85
"""Factor for trigger and target if tokens are estimated from bytes alone."""
PROMPT_ERROR = 0.02
"""Share of a prompt by which its estimate may be too low."""
SOFT_SHARE = 0.55
"""Share of `Budget.room` below which no background compaction starts."""
LEAST_OVER_TARGET = 1.10
"""Multiple of the target below which no background compaction starts, because a compaction would free too little."""
WAIT_SHARE = 0.97
"""Maximum size of a view that is sent without its due summary, as a share of the limit."""
MOST_OVER = 1.04
"""Maximum of `most_without_summary` as a multiple of `Budget.room`: the operator may set the cap to limit the price."""
REMEMBERED_SHARE = 0.5
"""Minimum size of a request that counts for `RequestRate`, as a share of `background_threshold`."""
LEAST_KEPT = 0.5
"""Minimum share of target and tail that remains when Steno subtracts the expected growth, which is uncertain."""


class Window(Struct, frozen=True):
    """Tokens that a model accepts."""

    context: int
    """Maximum tokens of prompt and completion together."""
    source: WindowSource
    max_input: int | None = None
    max_output: int | None = None
    note: str | None = None


class Trigger(Struct, frozen=True):
    """Thresholds above which a compaction is due."""

    tokens: int
    since: int | None = None
    """Maximum tokens of the messages after the last summary, including the current message; None for no maximum."""

    def fires(self, tokens: int, since: int = 0) -> bool:
        return tokens > self.tokens or (self.since is not None and since > self.since)

    @property
    def quiet_tokens(self) -> int:
        """Maximum tokens of a view that never fires the trigger."""
        return self.tokens if self.since is None else min(self.tokens, self.since)


class Shares(Struct, frozen=True):
    """Settings of compaction. Ratios are shares of `Budget.room` unless said otherwise."""

    trigger: float | None = 0.70
    """Share of the limit above which a compaction is due; None for the whole limit."""
    of_window: bool = False
    """True if `trigger` is a share of the window, not of the limit."""
    cap: int | None = CAP
    """Tokens above which a compaction is due in any case; None for no cap."""
    since_checkpoint: float | None = None
    """Share of the window. If the messages after the last summary exceed this share, a compaction is due, too."""
    floor_tokens: int = 4_096
    """Tokens below which no compaction is due."""
    floor: float = 0.85
    """Maximum of `floor_tokens`, as a share of the limit."""
    target: float = 0.50
    tail_turns: int = 3
    """Number of whole turns before the current turn that stay verbatim."""
    tail: float = 0.30
    tail_fill: float = 0.15
    """Older turns also stay verbatim while the tail has at most this share, and at most `most_tail_fill` tokens."""
    most_tail_fill: int = 16_384
    chunk: float = 0.06
    """Maximum share of one summary; `max_summary_tokens` also limits it."""
    max_summary_tokens: int = 2_048
    fold: float = 0.30
    """Share that all summaries together may take. If they take more, Steno folds them."""
    recall: float = 0.05
    """Maximum share of the limit for quotations of omitted messages, for one user message; 0: no quotations."""
    max_recall_tokens: int = 2_048
    reserve: float | None = None
    """Minimum share of the window that is reserved for the completion. None: see `reserve_of`."""

    def for_model(self, cap: int) -> Shares:
        """Return a copy with the model's cap, unless the operator set another cap."""
        return replace(self, cap=cap) if self.cap == CAP else self


class Budget(Struct, frozen=True):
    """Limits of one request, in tokens of the uncalibrated estimate unless said otherwise. `Shares` explains the
    members without a text; `summary` is the maximum of one summary."""

    window: int
    """Context window in the provider's tokens."""
    limit: int
    """Maximum prompt: the window less the reserve."""
    room: int
    """Base of the ratios: the limit, or the cap if that is less."""
    trigger: Trigger
    target: int
    """Maximum size of the view after a compaction."""
    tail_turns: int
    tail: int
    """Maximum size of the verbatim tail. The last unit stays verbatim even if it is larger."""
    tail_fill: int
    summary: int
    fold: int
    reported_limit: int
    """`limit` in the provider's tokens. Like `reported_target`, it does not change while the calibration learns."""
    reported_target: int
    cost_gate_limit: int = 0
    """Largest view for which the cost gate may postpone a compaction; 0 for none, such as after an overflow."""
    line: Line = ONE_TO_ONE
    caution: float = 1.0
    """Factor for trigger and target: see `HEURISTIC_CAUTION`."""
    reserve: int = 0
    """Part of the window reserved for the completion, in the provider's tokens."""
    body_bytes: int = 0
    """Maximum bytes of all messages. If they have more, Steno masks media. 0: no maximum."""
    recall: float = Shares().recall
    max_recall_tokens: int = Shares().max_recall_tokens

    @property
    def words(self) -> int:
        """Maximum tokens of the user's words in all chunks."""
        return int(WORDS_SHARE * self.room)

    @property
    def chunk_words(self) -> int:
        """Maximum tokens of the user's words in one chunk."""
        return min(int(CHUNK_WORDS_SHARE * self.room), int(CHUNK_WORDS_TOKENS / self.line.ratio))

    def recalled(self, factor: int) -> int:
        """Return the maximum tokens of the quotations for one message, with `factor` times the share `recall`."""
        return self.steady_estimate(min(factor * self.recall * self.reported_limit, self.max_recall_tokens))

    def steady_estimate(self, tokens: float) -> int:
        """Convert the provider's tokens to an estimate. The calibration's ratio is rounded, so that its small changes
        have no effect."""
        return int(tokens / (max(1, round(self.line.ratio / RATIO_STEP)) * RATIO_STEP))


def budget_for(
    window: Window,
    output: int | None,
    shares: Shares,
    line: Line = ONE_TO_ONE,
    *,
    thinking: int = 0,
    caution: float = 1.0,
    threshold: int | None = None,
    body_bytes: int = 0,
) -> Budget:
    """Calculate the limits of one request from the model's window and the settings.

    `output`: output cap of the request. `thinking`: its thinking budget, which the cap must exceed. `threshold`:
    trigger that the request sets, in the provider's tokens. It also determines room, target, tail and summaries.

    Steno converts the size of a whole prompt to an estimate by the calibration's ratio and offset. It converts the size
    of a part, such as the tail, by the ratio alone.
    """
    reserve = reserve_of(window, output, shares.reserve)
    limit = limit_of(window, reserve)
    # The output cap must exceed the thinking budget, and such a provider adds the cap to the prompt. So the limit has
    # room for the cap. `CEILING_SHARE` allows for an estimate that is a few percent too low.
    if (least := least_output(window.context, output or 0, thinking)) > reserve:
        limit = min(limit, int(CEILING_SHARE * max(0, window.context - least)))
    room: float = min(limit, shares.cap or limit)
    due = _due(window.context, limit_of(window, reserve), shares)
    if threshold is not None:
        room, due = min(limit, threshold / (shares.trigger or 1.0)), min(limit, threshold)
    since = None
    if shares.since_checkpoint is not None and threshold is None:
        since = int(shares.since_checkpoint * window.context / line.ratio)
    target = min(shares.target * room, due)
    summary = max(MIN_SUMMARY, min(shares.max_summary_tokens, int(shares.chunk * room)))
    # The cost gate must not allow a prompt over the cap, because the cap also protects the quality of answers.
    cost_gate_limit = line.to_estimate(min(COST_GATE_SHARE * limit, room) * caution) if threshold is None else 0
    return Budget(
        window=window.context,
        limit=line.to_estimate(limit),
        room=line.to_estimate(room),
        # Above the limit, a compaction is always due.
        trigger=Trigger(min(line.to_estimate(due * caution), line.to_estimate(limit)), since),
        target=line.to_estimate(target * caution),
        tail_turns=shares.tail_turns,
        tail=int(shares.tail * room / line.ratio),
        # If the trigger lowers the target, the fill shrinks in proportion.
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
        recall=shares.recall,
        max_recall_tokens=shares.max_recall_tokens,
    )


def limit_of(window: Window, reserve: int) -> int:
    """Return the maximum prompt in the provider's tokens."""
    return max(0, min(window.max_input or window.context, window.context - reserve))


def reserve_of(window: Window, output: int | None, least: float | None = None) -> int:
    """Return the tokens reserved for a completion. `output`: the output cap. `least`: minimum share of the window."""
    if output is None and least is None:
        return min(window.context // 20, MAX_RESERVE, window.max_output or MAX_RESERVE)
    return max(min(output or 0, int(MOST_RESERVED * window.context)), round((least or 0.0) * window.context))


def _due(window: int, limit: int, shares: Shares) -> float:
    share = limit if shares.trigger is None else shares.trigger * (window if shares.of_window else limit)
    # If the operator sets the cap below the floor, the cap is the floor.
    floor = min(shares.floor_tokens, shares.floor * limit, shares.cap or limit)
    return max(floor, min(share, shares.cap or share))


def least_output(window: int, cap: int, thinking: int) -> int:
    """Return the minimum of a lowered output cap: a quarter of the window, more than `thinking`, and at most `cap`."""
    return min(cap, max(int(MOST_RESERVED * window), thinking + 1))


def output_cap(budget: Budget, sent: int, cap: int, thinking: int) -> int | None:
    """Return a lower output cap for a provider that adds the cap to the prompt; None if the client's `cap` fits or
    cannot be lowered. `sent`: tokens of the payload, by the estimate."""
    prompt = budget.line.to_provider_tokens(sent)
    if prompt + cap <= budget.window:
        return None
    fitting = budget.window - round((1 + PROMPT_ERROR) * prompt)
    lowered = max(fitting, least_output(budget.window, cap, thinking))
    return lowered if lowered < cap else None


def most_without_summary(budget: Budget) -> int:
    """Return the largest view that may be sent without its due summary."""
    return int(budget.caution * min(WAIT_SHARE * budget.limit, MOST_OVER * budget.room))


def background_threshold(budget: Budget) -> int:
    """Return the view size up to which no background compaction starts, however fast the history grows."""
    soft = max(SOFT_SHARE * budget.caution * budget.room, LEAST_OVER_TARGET * budget.target)
    return min(int(soft), budget.trigger.quiet_tokens)


def latest_start(budget: Budget, growth: int) -> int:
    return max(background_threshold(budget), most_without_summary(budget) - growth)


def background_budget(budget: Budget, growth: int) -> Budget:
    """Return the limits of a background compaction that starts now.

    A request over its trigger is sent without a new summary while it fits, and Steno makes the summary after the
    answer. If the conversation grows fast, or summaries take long, the next requests might not fit and would wait. So
    the background trigger is lower: it fires if the free room is less than `growth`, the history's expected growth
    while Steno makes the summary (see `RequestRate.growth`). The cost gate then no longer postpones the compaction.

    Target and tail are lowered by the growth, so that the view has its planned size when a request uses the summary.
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
"""Minimum tokens of a window. A smaller number in an error is a quota, or not a number of tokens."""
FEW = 16
"""Maximum tokens of an answer that counts as empty, because providers count end tokens."""
FULL_SHARE = 0.95
"""Steno assumes that the window ended an empty answer if prompt and answer fill at least this share of the window."""
PRESSURE = 0.80
"""Share of the window that the estimate of a prompt must reach for an overflow to be plausible."""
CEILING_SHARE = 0.95
MIX_ERROR = 0.05
"""Share by which the ratio of provider tokens to estimate may be higher in the retry, which has other content."""
SENT_SHARE = 0.70
SENT_MEDIA_SHARE = 0.50
"""Share of the refused prompt that Steno tries next if the refusal has no numbers: without media, and with media."""
TARGET_SHARE = 0.60
"""Target of a compaction after an overflow, as a share of the new limit, so that the next turn fits, too."""
LEAST_ROOM = 2_000
LEAST_SHARE = 0.25
"""Minimum tokens of a prompt besides the instructions: `LEAST_ROOM`, or `LEAST_SHARE` of the limit if that is less."""
PAYLOAD_SHARE = 0.9
"""Share of a byte limit that the smaller prompt may use, because tokens and bytes do not shrink in proportion."""


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
    answer. The limit of the overflow is the sum of prompt and answer.
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
    """Return the provider's counts of the prompt and of the output that it added; None if unknown."""
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
    """Return limits for a smaller prompt, and its maximum in the provider's tokens. The limits are None if too little
    of the conversation would be left.

    If the provider counted more tokens than Steno expected, Steno divides the limits by the ratio of the two counts,
    with a margin (`MIX_ERROR`). For a prompt with media, Steno first assumes that the difference comes from pictures it
    cannot mask, and subtracts it. If no room is left, Steno assumes pictures that it can mask, and divides the limits.
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
    """Return limits for a smaller body: less media, then also fewer tokens; None if too little would be left."""
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
    """Return the minimum tokens of a prompt besides the instructions."""
    return max(1, min(LEAST_ROOM, int(LEAST_SHARE * budget.limit)))
