"""Compaction: what happens to a history, and how much of it stays as it is.

What core decides by has its default there: a setting takes it over, so that no number stands twice.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from app.compaction.budget import Shares
from app.compaction.recall import RecallPolicy
from app.settings.sections.trigger import TriggerSettings
from app.settings.types import Preset, Ratio, Seconds, Section

_SHARES, _RECALL = Shares(), RecallPolicy()


class TailSettings(Section):
    """The latest messages, which stay verbatim."""

    turns: int = Field(_SHARES.tail_turns, ge=0, le=100)
    """Whole turns before the current one that stay verbatim with it; fewer if they do not fit.

    [A turn](policies.md#what-a-turn-is) is a user message and everything until the next one.
    """


class MaskSettings(Section):
    """Masks: what is left of old tool results."""

    enabled: bool = True
    """Mask tool results that the assistant has used, before anything is summarised.

    About 300 characters are left of each ([which](policies.md#default)). If that brings the prompt under the target, no
    summary is made; the summariser reads the originals.
    """
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked or pruned, as globs such as `search_*`."""


class WindowSettings(Section):
    """The bound of preset `sliding-window`; with other presets it is refused."""

    turns: int | None = Field(None, ge=0, le=100_000)
    """Whole turns before the current one that are sent with it; only with preset `sliding-window`.

    Older ones are left out of every request, however small. Instructions and pinned messages stay.
    """


class PruneSettings(Section):
    """The last resort."""

    enabled: bool = True
    """Leave out the oldest messages if nothing else makes the prompt fit; the answer says which.

    Instructions, the last user message, pinned messages and the last unit stay. Off, a prompt that is still too large
    goes as the client sent it, and is refused.
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
    to what the compaction left, at first up to 1.1 times the target, later up to the limit. Passages that match nearly
    as well as the best may take three times as much, so may quotations for earlier messages together, and exact values
    three quarters.
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
    `background`, `pinned_text` and `wait_seconds`, and of `summary` only `model`, `upstream`, `fallbacks`,
    `timeout_seconds` and `parameters`. With `off` here no request can choose another one.
    """
    trigger: TriggerSettings = TriggerSettings()
    target_ratio: Ratio = _SHARES.target
    """Largest share of the limit that the prompt takes after a compaction; the tail shrinks until it does.

    It must lie below the trigger's `token_ratio`; close below, compactions come often, and each costs a summary
    and the provider's prompt cache.
    """
    tail: TailSettings = TailSettings()
    window: WindowSettings = WindowSettings()
    mask: MaskSettings = MaskSettings()
    prune: PruneSettings = PruneSettings()
    pinned_text: str = Field("", max_length=20_000)
    """Text that stands after the [pinned messages](pins.md) wherever summaries stand for messages.

    For rules that must not get lost, whatever the preset. At most 20,000 characters.
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
    def _window_has_its_preset(self) -> Self:
        if self.preset != "sliding-window" and self.window.turns is not None:
            raise ValueError(f"window.turns ({self.window.turns}) is only for preset sliding-window, not {self.preset}")
        if self.preset == "sliding-window" and self.window.turns is None:
            raise ValueError("preset sliding-window needs window.turns: how much is kept")
        return self
