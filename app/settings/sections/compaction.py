"""Compaction: what happens to a history, and how much of it stays as it is.

What core decides by has its default there: a setting takes it over, so that no number stands twice.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from app.core.history.blocks import mark_of
from app.core.limits.budget import MOST_TOKENS, Shares
from app.core.recall.policy import RecallPolicy
from app.core.stages.policy import Policy, Strategy
from app.core.tokens.economy import CostGate
from app.settings.sections.trigger import TriggerSettings
from app.settings.types import OFF, Preset, Ratio, Seconds, Section

_POLICY, _SHARES, _GATE, _RECALL = Policy(), Shares(), CostGate(), RecallPolicy()


def _is_mark(written: str) -> str:
    mark_of(written)
    return written


ClientMark = Annotated[str, Field(max_length=300), AfterValidator(_is_mark)]
"""Mark as `mark_of` reads it."""


class TailSettings(Section):
    """The latest messages, which stay verbatim."""

    turns: int = Field(_SHARES.tail_turns, ge=0, le=100)
    """Whole turns before the current one that stay verbatim with it; fewer if they do not fit.

    [A turn](policies.md#what-a-turn-is) is a user message and everything until the next one.
    """
    fill_ratio: float = Field(_SHARES.tail_fill, ge=0, le=1)
    """Share of the limit up to which more turns stay, and at most 16,384 tokens; 0 for none.

    A large share means more compactions, because each frees less. A long turn is cut between its steps.
    """
    max_ratio: Ratio = _SHARES.tail
    """Share of the limit that the verbatim tail may take."""


class MaskSettings(Section):
    """Masks: what is left of old tool results."""

    enabled: bool = True
    """Mask tool results that the assistant has used, before anything is summarised.

    About 300 characters are left of each ([which](policies.md#default)). If that brings the prompt under the target, no
    summary is made; the summariser reads the originals.
    """
    allow: tuple[str, ...] = ()
    """Tools whose results are masked or pruned, as globs such as `search_*`; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked or pruned; wins over `allow`."""


class WindowSettings(Section):
    """Bounds of strategy `window`; without that strategy both are refused."""

    turns: int | None = Field(None, ge=0, le=100_000)
    """Whole turns before the current one that are sent with it; only with strategy `window`.

    Older ones are left out of every request, however small. Instructions and pinned messages stay.
    """
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the messages sent may take, instructions included; only with strategy `window`.

    A call stays with its results. Tokens are Steno's own estimate, uncalibrated. With preset `sliding-window` its 20
    turns hold too; `turns: null` lifts them.
    """


class SessionPruningSettings(Section):
    """Old tool results that are trimmed and cleared for one request."""

    mode: Annotated[Literal["off", "adaptive", "aggressive", "position"], OFF] = "off"
    """Trim and clear old tool results: adaptive as the window fills, aggressive all at once, position by their age.

    The first two are OpenClaw's session pruning, `position` is LibreChat's context pruning, with [their
    numbers](policies.md#the-presets). Bytes change that the provider has cached. `compaction.mask.allow` and `.deny`
    apply to the first two.
    """


class PruneSettings(Section):
    """The last resort."""

    enabled: bool = _POLICY.prune
    """Leave out the oldest messages if nothing else makes the prompt fit; the answer says which.

    Instructions, the last user message, pinned messages and the last unit stay. Off, a prompt that is still too large
    goes as the client sent it, and is refused.
    """


class CostGateSettings(Section):
    """[The cost gate](costs.md)."""

    requests: int | None = Field(_GATE.requests, ge=1, le=10_000)
    """Least number of requests, this one included, that a conversation is expected to go on for: a compaction or a mask
    that costs more than it saves within them is put off, if there is room; null: none is.

    There is room up to 0.95 of the limit, and to the cap. [Costs](costs.md) says when this has no effect. A higher
    number makes a compaction earlier ([how many requests](costs.md#how-many-requests)).
    """


class BackgroundSettings(Section):
    """Summaries that are made after an answer: [in the background](summaries.md)."""

    enabled: bool = True
    """Make summaries after an answer, for the requests to come, so that these need not wait.

    [A request goes on](summaries.md#in-the-background) without the summary that is due up to 0.97 of the limit; a
    larger one is shortened or waits. Off, the request that fires the trigger waits. It also holds for a preset that a
    request, a model or an upstream chooses, unless that switches it off.
    """


class RecallSettings(Section):
    """Recall: passages that are quoted again."""

    max_ratio: float = Field(_RECALL.max_ratio, ge=0, le=1)
    """Share of the limit that passages may take which are quoted for one user message, from messages that are left out
    or shortened; 0 for none.

    [Recall](what-is-kept.md#recall) compares words. A client switches it off with `x-context-recall: off`. It is added
    to what the compaction left, at first up to 1.1 times the target, later up to the limit. A question that is matched
    well may take three times as much, so may quotations for earlier messages together, and exact values three quarters.
    """
    max_tokens: int = Field(_RECALL.max_tokens, ge=0, le=MOST_TOKENS)
    """Most tokens of the quotations for one message, whatever the window.

    Both bounds follow the [calibration](calibration.md) in steps of a quarter, and may be exceeded by an eighth.
    """


class CompactionSettings(Section):
    """Compaction of a history, and how much of it stays as it is.

    What is set anywhere wins over the preset, value by value.
    """

    enabled: bool = True
    """Compact at all. Off, everything passes through, and the headers still carry the estimate.

    A client switches it off for one request with `x-context-compaction: off`.
    """
    preset: Preset = "default"
    """Bundle of settings to begin with; settings next to it win. In YAML, put "off" into quotes.

    [Policies](policies.md) describes the presets. A request may choose another preset (`context.preset`,
    `x-context-preset`), else its model, else its upstream. Such a preset keeps of this section only `enabled`,
    `background`, `client_instructions`, `pinned_text` and `wait_seconds`, and of `summary` only `model`, `upstream`,
    `fallbacks`, `timeout_seconds`, `prompts`, `parameters` and `rules`. With `off` here no request can choose another
    one.
    """
    strategy: Strategy = _POLICY.strategy
    """Way in which summaries are made: additive, full, checkpoint or rolling; window or none for no summaries.

    `additive`: one for each range of messages, folded when they take too much. `full`: one over everything before the
    tail, made from the originals each time. `rolling`: one over everything, made from the last one and what came after
    it. `checkpoint`: the same, with more detail on recent messages. `window`: only the latest turns or tokens are sent.
    `none`: single messages are shortened, or the oldest left out.

    A request reads the summaries of its own strategy only. With preset `sliding-window`, another strategy needs
    `window: {turns: null}`.
    """
    trigger: TriggerSettings = TriggerSettings()
    floor_tokens: int = Field(_SHARES.floor_tokens, ge=0)
    """Tokens below which nothing is compacted, or 0.85 of the limit if that is less."""
    target_ratio: Ratio = _SHARES.target
    """Largest share of the limit that the prompt takes after a compaction; the tail shrinks until it does.

    It must lie below the trigger's `token_ratio`; close below, compactions come often, and each costs a summary
    and the provider's prompt cache.
    """
    tail: TailSettings = TailSettings()
    window: WindowSettings = WindowSettings()
    mask: MaskSettings = MaskSettings()
    session_pruning: SessionPruningSettings = SessionPruningSettings()
    prune: PruneSettings = PruneSettings()
    cost_gate: CostGateSettings = CostGateSettings()
    client_instructions: tuple[ClientMark, ...] = Field((), max_length=50)
    """Marks of instructions that clients put into user messages, besides those Steno knows, as `beginning*end`.

    At most 50; a beginning has at least 3 characters. [Those of known
    clients](what-is-kept.md#what-the-client-put-there-for-good) need none. For example:

        ["<team_rules>*</team_rules>"]
    """
    pinned_text: str = Field("", max_length=20_000)
    """Text that stands after the [pinned messages](pins.md) wherever summaries stand for messages.

    For rules that must not get lost, whatever the preset. At most 20,000 characters. `summary.prompts` may set another
    text for a model or a tenant.
    """
    background: BackgroundSettings = BackgroundSettings()
    recall: RecallSettings = RecallSettings()
    wait_seconds: Seconds = 60.0
    """Seconds that a request waits for a compaction before it goes on without; the summary is still finished.

    A plain answer cannot be kept alive meanwhile: stay below the idle timeout of proxies on the way. A client that
    announces its timeout (`x-stainless-read-timeout`) waits at most 80 % of it, unless its stream is kept alive.
    """

    @model_validator(mode="after")
    def _target_is_below_trigger(self) -> Self:
        ratio = self.trigger.token_ratio
        if ratio is not None and self.target_ratio >= ratio:
            raise ValueError(
                f"target_ratio ({self.target_ratio}) must be below trigger.token_ratio ({ratio}),"
                " or every turn would be compacted"
            )
        return self

    @model_validator(mode="after")
    def _window_has_its_strategy(self) -> Self:
        given = [f"window.{name} ({value})" for name, value in self.window if value is not None]
        if self.strategy == "window" and not given:
            raise ValueError("strategy window needs window.turns or window.tokens: how much is kept")
        if self.strategy != "window" and given:
            raise ValueError(f"{' and '.join(given)} is only for strategy window, but strategy is {self.strategy}")
        return self
