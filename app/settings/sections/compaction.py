"""Compaction: what happens to a history, and how much of it stays as it is.

What core decides by has its default there: a setting takes it over, so that no number stands twice.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from app.core.history.blocks import mark_of
from app.core.limits.ahead import AheadShares
from app.core.limits.budget import MOST_TOKENS, Shares
from app.core.recall.policy import RecallPolicy
from app.core.stages.policy import Policy, Strategy
from app.core.stages.position_pruning import PositionPruning
from app.core.stages.session_pruning import SessionPruning
from app.core.tokens.economy import CostGate
from app.core.view.mask import MaskPolicy
from app.settings.sections.trigger import TriggerSettings
from app.settings.types import OFF, Part, Preset, Ratio, Seconds, Section

_POLICY, _SHARES, _MASK = Policy(), Shares(), MaskPolicy()
_AHEAD = AheadShares()
_SESSION, _POSITION, _GATE = SessionPruning(), PositionPruning(), CostGate()
_RECALL = RecallPolicy()


def _is_mark(written: str) -> str:
    mark_of(written)
    return written


ClientMark = Annotated[str, Field(max_length=300), AfterValidator(_is_mark)]
"""As `mark_of` reads it."""


class TailSettings(Section):
    turns: int = Field(_SHARES.tail_turns, ge=0, le=100)
    """How many whole turns before the current one stay verbatim with it; fewer where they do not fit."""
    fill_ratio: float = Field(_SHARES.tail_fill, ge=0, le=1)
    """More turns stay while all of them take at most this share of the limit; 0 for none."""
    fill_tokens: int = Field(_SHARES.most_tail_fill, ge=0, le=MOST_TOKENS)
    """The same, but at most this many tokens."""
    max_ratio: Ratio = _SHARES.tail
    """Share of the limit that the verbatim tail may take."""


class MaskSettings(Section):
    enabled: bool = True
    """Mask tool results that the assistant has answered, before anything is summarised."""
    characters: int = Field(_MASK.characters, ge=50, le=100_000)
    """What is left of a masked text: 70 % of it head, 30 % tail."""
    allow: tuple[str, ...] = ()
    """Tools whose results are masked, as globs such as `search_*`; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked; stronger than `allow`."""
    pressure: Ratio | None = _MASK.pressure
    """Share of the limit, taken by messages alone, from which on all is masked; null: as the trigger says."""
    minimum_gain: float = Field(_MASK.minimum_gain, ge=0, le=1)
    """Share of the prompt that a new mask must free: each one changes bytes that the provider may have cached."""


class WindowSettings(Section):
    turns: int | None = Field(None, ge=0, le=100_000)
    """With strategy window: how many whole turns before the current one are sent with it."""
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """With strategy window: the latest messages are sent that fit into this many tokens, instructions included."""


class SessionPruningSettings(Section):
    mode: Annotated[Literal["off", "adaptive", "aggressive"], OFF] = "off"
    """Whether old tool results are trimmed and cleared as the window fills (adaptive), or all cleared (aggressive)."""
    keep_last_assistants: int = Field(_SESSION.keep_last_assistants, ge=0, le=1_000)
    """Results that follow this many of the assistant's latest messages are left alone; with fewer messages all are."""
    soft_trim_ratio: Ratio = _SESSION.soft_trim_ratio
    """Fill of the window, in characters / 4, from which on large results are trimmed."""
    soft_trim_max_chars: int = Field(_SESSION.soft_trim_max_chars, ge=0)
    """Results of more characters are large."""
    soft_trim_head_chars: int = Field(_SESSION.soft_trim_head_chars, ge=0)
    """Characters that stay of a trimmed result's beginning."""
    soft_trim_tail_chars: int = Field(_SESSION.soft_trim_tail_chars, ge=0)
    """Characters that stay of its end."""
    hard_clear: bool = _SESSION.hard_clear
    """Clear results where trimming is not enough."""
    hard_clear_ratio: Ratio = _SESSION.hard_clear_ratio
    """Fill of the window from which on results are cleared, the oldest first."""
    hard_clear_placeholder: str = Field(_SESSION.hard_clear_placeholder, min_length=1, max_length=1_000)
    """What stands in place of a cleared result."""
    min_prunable_tool_chars: int = Field(_SESSION.min_prunable_tool_chars, ge=0)
    """Characters that all results together must have before any is cleared."""
    allow: tuple[str, ...] = ()
    """Tools whose results are pruned, as globs; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never pruned; stronger than `allow`."""


class PositionPruningSettings(Section):
    enabled: bool = False
    """Trim and clear large tool results by their age in the conversation, whatever the window's fill."""
    keep_last_assistants: int = Field(_POSITION.keep_last_assistants, ge=0, le=1_000)
    """The last turns of the assistant that are left alone: runs of its messages and their results."""
    soft_trim_ratio: Ratio = _POSITION.soft_trim_ratio
    """Age, from 0 (newest) to 1 (oldest), from which on a large result is trimmed."""
    hard_clear_ratio: Ratio = _POSITION.hard_clear_ratio
    """Age from which on it is cleared."""
    min_prunable_tool_chars: int = Field(_POSITION.min_prunable_tool_chars, ge=0)
    """Results of at least this many characters are large."""


class PruneSettings(Section):
    enabled: bool = _POLICY.prune
    """Leave out the oldest messages where nothing else makes the prompt fit; the answer says which."""
    stub: bool = _POLICY.stub
    """Put a note where messages are left out, that says how many and whose."""


class CostGateSettings(Section):
    enabled: bool = True
    """Put off a compaction or a mask that would cost more than it saves, where prices are known and there is room."""
    requests: int = Field(_GATE.requests, ge=1, le=10_000)
    """Requests that a conversation is expected to go on for at least, this one too, whatever it was like so far."""


class BackgroundSettings(Section):
    enabled: bool = True
    """Make summaries after an answer, for the requests to come, so that these need not wait."""
    ratio: Ratio = _AHEAD.soft
    """Share of the limit below which none is made before it is due."""
    wait_ratio: Ratio = _AHEAD.wait
    """Share of the limit up to which a request goes on without the summary that is due."""
    shorten: bool = True
    """Shorten a larger one, most of all tool results that were answered, where it would wait otherwise."""
    requests: int = Field(3, ge=1, le=10_000)
    """Only for conversations of which this many requests were seen."""
    tokens_per_hour: int = Field(10_000, ge=0, le=MOST_TOKENS)
    """Only for conversations that send this many tokens in an hour, at the pace of their latest requests."""

    @property
    def shares(self) -> AheadShares:
        return AheadShares(self.ratio, self.wait_ratio)

    @model_validator(mode="after")
    def _begins_before_it_waits(self) -> Self:
        if self.ratio > self.wait_ratio:
            raise ValueError(f"ratio ({self.ratio}) must not be above wait_ratio ({self.wait_ratio})")
        return self


class RecallSettings(Section):
    enabled: bool = True
    """Quote what the last user message is about, where it stands in messages that are left out or shortened."""
    max_ratio: Ratio = _RECALL.max_ratio
    """Share of the limit that the quotations for one message may take."""
    max_tokens: int = Field(_RECALL.max_tokens, ge=0, le=MOST_TOKENS)
    """And at most this many tokens."""
    history_tokens: int = Field(_RECALL.history_tokens, ge=0, le=MOST_TOKENS)
    """Nothing is recalled of a history with more tokens than this; the answer says so."""


class CompactionSettings(Section):
    enabled: bool = True
    """Compact at all."""
    preset: Preset = "default"
    """Bundle of settings to begin with; settings next to it win."""
    strategy: Strategy = _POLICY.strategy
    """How summaries are made: additive, full, checkpoint or rolling; window or none for none at all."""
    mask: MaskSettings = MaskSettings()
    trigger: TriggerSettings = TriggerSettings()
    floor_tokens: int = Field(_SHARES.floor_tokens, ge=0)
    """No compaction below this many tokens, or 0.85 of the limit where that is less."""
    target_ratio: Ratio = _SHARES.target
    """A compaction brings the prompt to at most this share of the limit."""
    tail: TailSettings = TailSettings()
    window: WindowSettings = WindowSettings()
    session_pruning: SessionPruningSettings = SessionPruningSettings()
    position_pruning: PositionPruningSettings = PositionPruningSettings()
    fade: bool = _POLICY.fade
    """Shorten tool results, the oldest most, as messages take 0.80, 0.85, 0.90 and 0.99 of the limit."""
    fit: bool = _POLICY.fit
    """Cut single messages that are too large for the limit, head and tail."""
    prune: PruneSettings = PruneSettings()
    cost_gate: CostGateSettings = CostGateSettings()
    emergency: bool = _POLICY.emergency
    """Truncate every tool result where even pruning does not make the prompt fit."""
    client_instructions: tuple[ClientMark, ...] = Field((), max_length=50)
    """Marks of what clients put into user messages for good, beside those that Steno knows, as `beginning*end`."""
    pinned_text: str = Field("", max_length=20_000)
    """Text that stands after the pinned messages wherever summaries stand for messages."""
    reserve_ratio: Part | None = _SHARES.reserve
    """Share of the window that the prompt leaves free, also where the client asks for less; null: as it asks."""
    default_window: int = Field(128_000, ge=1, le=MOST_TOKENS)
    """Context window of a model that nobody knows."""
    background: BackgroundSettings = BackgroundSettings()
    recall: RecallSettings = RecallSettings()
    wait_seconds: Seconds = 60.0
    """How long a request waits for a compaction before it goes on without."""
    overflow_retries: int = Field(1, ge=0, le=2)
    """How often a request that the provider refused for its size is made smaller and sent again."""

    @model_validator(mode="after")
    def _target_is_below_trigger(self) -> Self:
        ratios = [entry.token_ratio for entry in self.trigger.alternatives if entry.token_ratio is not None]
        if ratios and self.target_ratio >= min(ratios):
            raise ValueError(
                f"target_ratio ({self.target_ratio}) must be below trigger.token_ratio ({min(ratios)}),"
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
