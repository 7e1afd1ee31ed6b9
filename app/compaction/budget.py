"""Budget: the token limits of a request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from app.tokens.calibration import ONE_TO_ONE, Line

WindowSource = str
"""Origin of a window's size: config, provider, learnt, bundled or default."""
MAX_RESERVE = 8_192
CAP = 160_000
"""Default of `Shares.cap`, in tokens. Longer prompts lower the quality and raise the cost of answers."""
MOST_RESERVED = 0.25
"""Maximum share of the window that is reserved for an output cap. Many clients set `max_tokens` to the maximum, but
their answers are far shorter."""
MIN_SUMMARY = 256
TARGET = 0.50
WIDE_RECALL = 3
"""If the view has room, the quotations for a question may take this multiple of `Shares.recall`."""
WORDS_SHARE, WIDE_WORDS_SHARE = 0.12, 0.20
"""Maximum share of `Budget.room` for the user's words in all chunks. `WIDE_WORDS_SHARE` applies if the view
has room below its target."""
CHUNK_WORDS_SHARE, CHUNK_WORDS_TOKENS = 0.06, 4_096
"""Maximum share of `Budget.room`, and maximum tokens, for the user's words in one chunk."""
CONTEXT_SHARE = 0.10
"""Maximum share of the limit for the note that repeats client context."""
CEILING_SHARE = 0.95
COST_GATE_SHARE = 0.95
"""Above this share of the limit, the cost gate postpones no compaction. The remaining 5 % cover estimation errors."""
RATIO_STEP = 0.25
HEURISTIC_CAUTION = 0.85
"""Factor for trigger and target if tokens are estimated from bytes alone."""
PROMPT_ERROR = 0.02
"""Share of a prompt by which its estimate may be too low."""
SOFT_SHARE = 0.55
"""Steno starts no background compaction for a view below this share of `Budget.room`."""
LEAST_OVER_TARGET = 1.10
"""Steno starts no background compaction for a view below this multiple of the target: it gains too little."""
WAIT_SHARE = 0.97
"""Maximum size of a view that is sent without its due summary, as a share of the limit."""
MOST_OVER = 1.04
"""Maximum of `most_without_summary`, as a multiple of `Budget.room`: a payload far above the cap is expensive."""
REMEMBERED_SHARE = 0.5
"""`RequestRate` ignores requests with a history below this share of `background_threshold`."""
LEAST_KEPT = 0.5
"""A background compaction lowers target and tail by the expected growth, but not below this share of each."""
LEAST_ROOM = 2_000
LEAST_SHARE = 0.25
"""Minimum room, in tokens, that a prompt must leave for everything but its instructions: `LEAST_ROOM`, or the share
`LEAST_SHARE` of the limit if that is less."""


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
        """Number of tokens up to which no view fires the trigger."""
        return self.tokens if self.since is None else min(self.tokens, self.since)


class Shares(Struct, frozen=True, kw_only=True):
    """Settings of compaction. `settings/compaction.py` has the defaults that are missing here. Ratios are shares of
    `Budget.room` unless said otherwise."""

    trigger: float | None
    """Share of the limit above which a compaction is due; None for the whole limit."""
    of_window: bool = False
    """True if `trigger` is a share of the window, not of the limit."""
    cap: int | None = CAP
    """Tokens above which a compaction is due in any case; None for no cap."""
    since_checkpoint: float | None = None
    """If the messages after the last summary exceed this share of the window, a compaction is due."""
    floor_tokens: int = 4_096
    """Tokens below which no compaction is due."""
    floor: float = 0.85
    """Maximum of `floor_tokens`, as a share of the limit."""
    target: float = TARGET
    tail_turns: int
    """Number of whole turns before the current turn that stay verbatim."""
    tail: float = 0.30
    tail_fill: float = 0.15
    """The tail also takes older turns up to this share of `Budget.room`, but at most `most_tail_fill` tokens."""
    most_tail_fill: int = 16_384
    chunk: float = 0.06
    """Maximum size of one summary, as a share of `Budget.room`; `max_summary_tokens` also limits it."""
    max_summary_tokens: int
    fold: float = 0.30
    """Share of `Budget.room` that all summaries together may take. If they take more, Steno folds them."""
    recall: float
    """Maximum size of the quotations that Steno adds for one user message, as a share of the limit; 0: none."""
    max_recall_tokens: int = 2_048
    reserve: float | None = None
    """Minimum share of the window that is reserved for the completion. None: see `reserve_of`."""

    def for_model(self, cap: int) -> Shares:
        """Return a copy with the model's cap, unless the operator set another cap."""
        return self if self.cap != CAP or cap == CAP else replace(self, cap=cap)


class Budget(Struct, frozen=True):
    """Limits of one request, in tokens of the uncalibrated estimate unless said otherwise. `Shares` explains the
    members that have no docstring here; `summary` is the maximum size of one summary."""

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
    """Maximum size of the verbatim tail. The last unit (see `Transcript`) stays verbatim even if it is larger."""
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
    recall: float = 0.0
    max_recall_tokens: int = 0

    @property
    def words(self) -> int:
        """Maximum tokens of the user's words in all chunks."""
        return int(WORDS_SHARE * self.room)

    @property
    def chunk_words(self) -> int:
        """Maximum tokens of the user's words in one chunk."""
        return min(int(CHUNK_WORDS_SHARE * self.room), int(CHUNK_WORDS_TOKENS / self.line.ratio))

    def recalled(self, factor: int) -> int:
        """Return the maximum tokens of the quotations for one message: `factor` times the share `recall` of the limit,
        but at most `max_recall_tokens`."""
        return self.steady_estimate(min(factor * self.recall * self.reported_limit, self.max_recall_tokens))

    def steady_estimate(self, tokens: float) -> int:
        """Convert the provider's tokens to an estimate. The ratio is rounded, so small changes of it have no effect."""
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

    `output`: output cap of the request. `thinking`: thinking budget, which the output cap must exceed. `threshold`:
    trigger that the request sets, in the provider's tokens. This trigger determines room, target, tail and summaries.

    Steno converts the size of a whole prompt to an estimate by the calibration's ratio and offset. It converts the size
    of a part, such as the tail, by the ratio alone.
    """
    reserve = reserve_of(window, output, shares.reserve)
    limit = limit_of(window, reserve)
    due = _due(window.context, limit, shares)
    # The output cap must exceed the thinking budget, and such a provider adds the cap to the prompt. So the limit has
    # room for the cap. `CEILING_SHARE` allows for an estimate that is a few percent too low.
    if output and (least := least_output(window.context, output, thinking)) > reserve:
        limit = min(limit, int(CEILING_SHARE * max(0, window.context - least)))
    room: float = min(limit, shares.cap or limit)
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
        trigger=Trigger(line.to_estimate(min(due * caution, limit)), since),
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
    """Return the minimum output cap: the larger of a quarter of the window and `thinking` + 1, but at most `cap`."""
    return min(cap, max(int(MOST_RESERVED * window), thinking + 1))


def output_cap(budget: Budget, sent: int, cap: int, thinking: int) -> int | None:
    """Return a lower output cap, for a provider that refuses a request if prompt and cap together exceed the window.
    Return None if the client's `cap` fits or cannot be lowered. `sent`: tokens of the payload, by the estimate."""
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
    """Return the view size up to which no background compaction starts, unless a request lacked its due summary."""
    soft = max(SOFT_SHARE * budget.caution * budget.room, LEAST_OVER_TARGET * budget.target)
    return min(int(soft), budget.trigger.quiet_tokens)


def latest_start(budget: Budget, growth: int) -> int:
    return max(background_threshold(budget), most_without_summary(budget) - growth)


def background_budget(budget: Budget, growth: int) -> Budget:
    """Return the limits of a background compaction that starts now. `growth`: tokens by which the history is expected
    to grow while Steno makes the summary.

    1. A request waits for a due summary if its view exceeds `most_without_summary`. So the background compaction starts
       earlier, by `growth`: its trigger is at most `latest_start`. Above `latest_start`, the cost gate postpones no
       compaction.
    2. The view grows by `growth` before a request uses the summary. So Steno lowers target and tail by `growth`, but
       not below the share `LEAST_KEPT` of each.
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


def least_room(budget: Budget) -> int:
    """Return the minimum room, in tokens, that a prompt must leave for everything but its instructions."""
    return max(1, min(LEAST_ROOM, int(LEAST_SHARE * budget.limit)))
