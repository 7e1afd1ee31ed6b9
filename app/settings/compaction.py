"""Settings of compaction: trigger, tail, masks, recall, and the models that write summaries. `Policies` combines them
with the presets.

Defaults come from the package `compaction`, so that each number is defined once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, JsonValue, field_validator, model_validator

from app.compaction.budget import CAP, MIN_SUMMARY, Shares
from app.compaction.mask import MaskPolicy
from app.compaction.planning_state import Policy
from app.compaction.prompts import SUMMARY_PROMPT
from app.compaction.recall import RecallPolicy
from app.formats.registry import FORMATS
from app.settings.presets import PRESET_NAMES, PRESETS, Preset, PresetName
from app.settings.types import ChosenPreset, Ratio, Seconds, Section
from app.settings.upstreams import entry_of
from app.tokens.usage import MOST_TOKENS

if TYPE_CHECKING:
    from app.settings.settings import Settings


class TriggerSettings(Section):
    """Size of the prompt over which a compaction is due; one of them is enough."""

    token_ratio: Ratio | None = Shares().trigger
    """Share of the limit. If the estimate of the prompt exceeds it, a compaction is due. Null: the limit itself.

    The limit is the window less the request's output cap, which counts up to a quarter of the window. Without a cap,
    the limit is the window less 5 % of it, at most 8,192 tokens. Above 0.9 the provider may refuse a prompt before
    Steno compacts it: estimates are off by some percent.
    """
    tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """Tokens above which a compaction is due, however large the window is; 0: no such cap.

    Target and tail are shares of at most this number. Null: 160,000; [more for a few models](policies.md#default), and
    less if the list price rises earlier.
    """


_SHARES, _RECALL = Shares(), RecallPolicy()


class TailSettings(Section):
    """The latest messages, which stay verbatim."""

    turns: int = Field(_SHARES.tail_turns, ge=0, le=100_000)
    """Whole turns that stay verbatim before the current turn; fewer if they do not fit.

    The preset `sliding-window` omits older turns from every request, however small.

    [A turn](policies.md#what-a-turn-is) is a user message and everything until the next one.
    """


class MaskSettings(Section):
    """Masks: what is left of old tool results."""

    enabled: bool = True
    """Mask tool results that the assistant has used, before anything is summarised.

    A mask keeps about 300 characters of a result ([which](policies.md#default)). If masks bring the prompt under the
    target, Steno makes no summary. The summariser reads the originals.
    """
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked or pruned, as globs such as `search_*`."""


class BackgroundSettings(Section):
    """Summaries that are made after an answer: [in the background](summaries.md)."""

    enabled: bool = True
    """Make summaries after an answer, so that later requests need not wait.

    Up to 0.97 of the limit, a request [does not wait](summaries.md#in-the-background) for a due summary; a larger one
    is shortened or waits. If this is off, the request that exceeds the trigger waits. The setting also applies to a
    preset that a request or a model chooses, unless that preset switches it off.
    """


class RecallSettings(Section):
    """Recall: passages that are quoted again."""

    max_ratio: float = Field(_RECALL.max_ratio, ge=0, le=1)
    """Share of the limit for passages that Steno quotes for one user message, from messages that it left out or
    shortened; 0: no passages.

    [Recall](what-is-kept.md#recall) compares words. Steno adds the passages to the compacted prompt, at first up to 1.1
    times the target, later up to the limit. For a question, passages may take up to three times this share, and so may
    all quotations together. Exact values may take three quarters of it.
    """


class CompactionSettings(Section):
    """Compaction of a history, and the part that stays verbatim.

    A value that you set in any source wins over the preset's value.
    """

    preset: ChosenPreset = "default"
    """Bundle of settings; a setting of your own wins. `off`: Steno compacts nothing.

    [Policies](policies.md) describes the presets. A request may choose another preset (`context.preset`,
    `x-context-preset`), and so may its entry in `models`. With such a preset, only `background` and `wait_seconds` of
    this section apply, and of `summary` only `model`, `upstream`, `fallbacks`, `timeout_seconds` and `parameters`. With
    `off` here no request can choose another preset; the headers still have the estimate.
    """
    trigger: TriggerSettings = TriggerSettings()
    tail: TailSettings = TailSettings()
    mask: MaskSettings = MaskSettings()
    background: BackgroundSettings = BackgroundSettings()
    recall: RecallSettings = RecallSettings()
    wait_seconds: Seconds = 60.0
    """Seconds that a request waits for a summary. Then Steno sends it without the summary, and still finishes the
    summary.

    Steno cannot keep a plain answer alive meanwhile: stay below the idle timeout of proxies on the way. If a client
    announces its timeout (`x-stainless-read-timeout`), its request waits at most 80 % of that, unless Steno keeps its
    stream alive.
    """

    @property
    def enabled(self) -> bool:
        return self.preset != "off"

    @model_validator(mode="after")
    def _trigger_is_above_target(self) -> Self:
        ratio, target = self.trigger.token_ratio, PRESETS[self.preset].shares.get("target", _SHARES.target)
        if ratio is not None and ratio <= target:
            raise ValueError(
                f"trigger.token_ratio ({ratio}) must be above {target:g}, the share that a compaction leaves,"
                " or every turn would be compacted"
            )
        return self


SAID_BY_STENO = frozenset[str]().union(*(format_.summaries.spec.summary.own_members for format_ in FORMATS))
"""Members of summary calls in all formats that only Steno sets. The operator cannot set them in `parameters`."""


class FallbackSettings(Section):
    model: str | None = Field(None, min_length=1)
    """Model that Steno asks; null means the conversation's own, not `summary.model`."""
    upstream: str | None = None
    """Upstream that Steno asks; null means the conversation's own."""

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.model is None and self.upstream is None:
            raise ValueError("a model is needed, or an upstream, or both")
        return self


class SummarySettings(Section):
    """Models that write summaries, and their instructions."""

    model: str | None = None
    """Model that writes the summaries; null means the conversation's own.

    Steno calls it with the caller's key, which must be allowed to use it, unless its upstream has its own key.
    """
    upstream: str | None = None
    """Upstream that Steno asks for summaries; null: the conversation's own; `default`: the one under `upstream`.

    That provider then gets conversations, too. Set a `summary.model` that it serves, and its own `api_key_env`.
    """
    fallbacks: tuple[FallbackSettings, ...] = Field((), max_length=5)
    """Other models or upstreams that Steno asks in turn if the first model gives no answer.

    At most 5; each names a model, an upstream or both. All calls for one summary together take at most twice
    `summary.timeout_seconds`. For example:

        - {model: "gpt-4o-mini"}
        - {model: "llama-3.3-70b", upstream: "local"}
    """
    max_tokens: int = Field(Shares().max_summary_tokens, ge=MIN_SUMMARY)
    """Maximum tokens of a summary; less in small windows (0.06 of the limit, at least 256)."""
    timeout_seconds: Seconds = 120.0
    """Seconds for one summary call.

    If this exceeds `compaction.wait_seconds`, a request may go on without its summary. The summary is still finished,
    and the next request uses it.
    """
    prompt: str = SUMMARY_PROMPT
    """Instructions for the summariser. The transcript follows as quoted data, then the instructions again.

    If Steno updates an earlier summary (full, checkpoint, rolling), it adds a note about that. The preset `librechat`
    has its own instructions for updates; yours replace these, too. Stored summaries do not change.
    """
    parameters: dict[str, JsonValue] = Field({}, max_length=20)
    """Further members of each summary call, such as `temperature`. Steno omits a member that a provider refuses.

    At most 20, without the members that Steno sets itself, such as `model` and `max_tokens`. For example:

        {temperature: 0, seed: 7}
    """

    @field_validator("parameters")
    @classmethod
    def _are_not_stenos_own(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(given.keys() & SAID_BY_STENO):
            raise ValueError(
                f"{', '.join(taken)} cannot be set there: Steno decides it (summary.model, summary.max_tokens)"
            )
        return given


# Policies

REACHED_BY = ("model", "upstream", "fallbacks", "timeout_seconds", "parameters")
"""Settings of `summary` that hold for all presets: the models that write summaries, and the options of their calls."""


class AppliedPolicy(Struct, frozen=True):
    """Settings and policy of one request."""

    compaction: CompactionSettings
    summary: SummarySettings
    policy: Policy
    shares: Shares
    preset: Preset
    update_prompt: str
    """Instructions to update an earlier summary. Empty: `summary.prompt` is used, as always if the operator set it."""


class Policies:
    """Policies of all presets, computed once."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        chosen = settings.compaction.preset
        own = apply_preset(settings.compaction, settings.summary)
        # If the operator chose `off`, no request can choose another preset.
        self._policies = {
            name: own if chosen in (name, "off") else apply_preset(*self._sections(name)) for name in PRESET_NAMES
        }

    def of(self, model: str, preset: PresetName | None = None) -> AppliedPolicy:
        """Return the policy of the request's `preset`, or else of the model's preset, or else of the operator's."""
        of_model = entry_of(model, self._settings.models)
        return self._policies[preset or (of_model and of_model.preset) or self._settings.compaction.preset]

    def _sections(self, name: PresetName) -> tuple[CompactionSettings, SummarySettings]:
        """Return the settings of a preset, with the operator's settings that hold for all presets."""
        compaction, summary = self._settings.compaction, self._settings.summary
        given = PRESETS[name]
        # The preset can turn background summaries off; otherwise the operator's setting holds.
        background = given.compaction.get("background", compaction.background.model_dump())
        held = {"preset": name, "wait_seconds": compaction.wait_seconds, "background": background}
        reached = {key: getattr(summary, key) for key in REACHED_BY}
        return (
            CompactionSettings.model_validate({**given.compaction, **held}),
            SummarySettings.model_validate({**given.summary, **reached}),
        )


def apply_preset(compaction: CompactionSettings, summary: SummarySettings) -> AppliedPolicy:
    """Build the policy from the settings and the constants of their preset."""
    preset = PRESETS[compaction.preset]
    mask, ratio, tokens = compaction.mask, compaction.recall.max_ratio, compaction.trigger.tokens
    fixed = dict(preset.policy)
    if (pruning := fixed.get("session_pruning")) is not None:
        fixed["session_pruning"] = replace(pruning, deny=mask.deny)
    policy = Policy(
        mask=MaskPolicy(deny=mask.deny, **preset.mask) if mask.enabled else None,
        window_turns=compaction.tail.turns if fixed.get("strategy") == "window" else None,
        recall=RecallPolicy(ratio) if ratio else None,
        **fixed,
    )
    settings = {
        "trigger": compaction.trigger.token_ratio,
        "cap": CAP if tokens is None else tokens or None,
        "tail_turns": compaction.tail.turns,
        "max_summary_tokens": summary.max_tokens,
    }
    update_prompt = preset.update_prompt if summary.prompt == preset.summary.get("prompt") else ""
    return AppliedPolicy(compaction, summary, policy, Shares(**{**settings, **preset.shares}), preset, update_prompt)
