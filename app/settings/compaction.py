"""Settings of compaction: trigger, tail, masks, recall, and the models that write summaries. `Policies` combines them
with the presets.

Numbers that are no settings are in `compaction/budget.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, JsonValue, field_validator, model_validator

from app.compaction.budget import CAP, MIN_SUMMARY, TARGET, Shares
from app.compaction.mask import MaskPolicy
from app.compaction.planning_state import Policy
from app.compaction.prompts import SUMMARY_PROMPT
from app.formats.paths import FORMATS
from app.settings.presets import PRESET_NAMES, PRESETS, Preset, PresetName
from app.settings.types import ChosenPreset, Ratio, Seconds, Section
from app.settings.upstreams import entry_of
from app.tokens.costs import MOST_TOKENS

if TYPE_CHECKING:
    from app.settings.settings import Settings


class TriggerSettings(Section):
    """Sizes of the prompt. If it exceeds one of them, a compaction is due."""

    token_ratio: Ratio | None = 0.70
    """Share of the limit. A compaction is due if the estimated prompt exceeds this share. Null: the limit itself.

    The limit is the window minus the request's output cap (at most a quarter of the window). Without a cap, Steno
    subtracts 5 % of the window, at most 8,192 tokens. With a share above 0.9 the provider may refuse a prompt
    before Steno compacts it, because estimates are inexact.
    """
    tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """Tokens above which a compaction is due, however large the window is; 0: no such cap.

    Target and tail are shares of the limit, or of this number if this number is smaller. Null: 160,000; [more for
    a few models](policies.md#default), and less if the list price rises at a smaller prompt.
    """


class TailSettings(Section):
    """The latest messages, which stay verbatim."""

    turns: int = Field(3, ge=0, le=100_000)
    """Number of whole turns before the current turn that stay verbatim; fewer if they do not fit.

    The preset `sliding-window` omits older turns from every request, however small.

    [A turn](policies.md#what-a-turn-is) is a user message and everything until the next user message.
    """


class MaskSettings(Section):
    """Masks, which shorten old tool results."""

    enabled: bool = True
    """Mask tool results that the assistant has used, before Steno makes a summary.

    A mask keeps about 300 characters of a result ([which](policies.md#default)). If masks bring the prompt under the
    target, Steno makes no summary. The summariser reads the unmasked results.
    """
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked or pruned, as globs such as `search_*`."""


class BackgroundSettings(Section):
    """Summaries that Steno makes [in the background](summaries.md), after an answer."""

    enabled: bool = True
    """Make summaries after an answer, so that later requests need not wait.

    Up to 0.97 of the limit, a request [does not wait](summaries.md#in-the-background) for a due summary. A larger
    request waits. With `false`, every request waits for its due summary. This setting also applies to a preset that a
    request or a model chooses, unless that preset switches background summaries off.
    """


class RecallSettings(Section):
    """Recall, which quotes passages of omitted or shortened messages."""

    max_ratio: float = Field(0.05, ge=0, le=1)
    """Maximum share of the limit for quotations of omitted or shortened messages, for one user message; 0: none.

    [Recall](what-is-kept.md#recall) chooses passages by their words. Directly after a compaction, the prompt with its
    quotations has at most 1.1 times the target, later at most the limit. For a question, passages may take three times
    `max_ratio`, and so may the quotations for all messages together. Exact values may take 0.75 of `max_ratio`.
    """


class CompactionSettings(Section):
    """Compaction of a history, and the part that stays verbatim.

    A value that you set, in any source, overrides the preset's value.
    """

    preset: ChosenPreset = "default"
    """Name of a bundle of settings. Your other settings override the bundle's settings. `off`: Steno compacts nothing.

    [Policies](policies.md) describes the presets. A request may choose another preset (`context.preset`,
    `x-context-preset`), and so may an entry in `models`. If they choose
    another preset, its own values apply: of this section, only `background` and `wait_seconds` still apply, and
    `summary.max_tokens` and `summary.prompt` do not. With `off` here, no request can choose another preset, and answers
    still have the headers with the estimate.
    """
    trigger: TriggerSettings = TriggerSettings()
    tail: TailSettings = TailSettings()
    mask: MaskSettings = MaskSettings()
    background: BackgroundSettings = BackgroundSettings()
    recall: RecallSettings = RecallSettings()
    wait_seconds: Seconds = 60.0
    """Maximum seconds that a request waits for a summary. After this time, Steno sends the request without the summary,
    and finishes the summary for later requests.

    While a request without `stream` waits, Steno sends nothing: choose less than the idle timeout of proxies on the
    way. If a client announces its timeout (`x-stainless-read-timeout`), its request waits at most 80 % of that timeout,
    unless Steno keeps its stream alive.
    """

    @property
    def enabled(self) -> bool:
        return self.preset != "off"

    @model_validator(mode="after")
    def _trigger_is_above_target(self) -> Self:
        ratio, target = self.trigger.token_ratio, PRESETS[self.preset].shares.get("target", TARGET)
        if ratio is not None and ratio <= target:
            raise ValueError(
                f"trigger.token_ratio ({ratio}) must be above {target:g}, the share that a compaction leaves,"
                " or every turn would be compacted"
            )
        return self


SAID_BY_STENO = frozenset[str]().union(*(format_.summaries.spec.summary.own_members for format_ in FORMATS))
"""Members of summary requests, in all formats, that the operator cannot set in `parameters`."""


class FallbackSettings(Section):
    model: str | None = Field(None, min_length=1)
    """Model that Steno asks; null: the conversation's own model, not `summary.model`."""
    upstream: str | None = None
    """Upstream that Steno asks; null: the conversation's own upstream."""

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.model is None and self.upstream is None:
            raise ValueError("a model is needed, or an upstream, or both")
        return self


class SummarySettings(Section):
    """Models that write summaries, and their instructions."""

    model: str | None = None
    """Model that writes the summaries; null: the conversation's own model.

    Steno calls the model with the caller's key, which must have access to it, unless the upstream has `api_key_env`.
    """
    upstream: str | None = None
    """Upstream that Steno asks for summaries. Null: the conversation's upstream; `default`: the setting `upstream`.

    If you name another upstream, it receives the conversations that it summarises. Set that upstream's `api_key_env`,
    and a `summary.model` that it serves.
    """
    fallbacks: tuple[FallbackSettings, ...] = Field((), max_length=5)
    """Other models or upstreams that Steno asks in turn if the first model gives no answer.

    At most 5 entries; each names a model, an upstream or both. All calls for one summary together take at most twice
    `summary.timeout_seconds`. For example:

        - {model: "gpt-4o-mini"}
        - {model: "llama-3.3-70b", upstream: "local"}
    """
    max_tokens: int = Field(2_048, ge=MIN_SUMMARY)
    """Maximum tokens of a summary; less in small windows (0.06 of the limit, at least 256)."""
    timeout_seconds: Seconds = 120.0
    """Maximum seconds of one summary call.

    If `timeout_seconds` exceeds `compaction.wait_seconds`, Steno may send a request without its summary.
    """
    prompt: str = SUMMARY_PROMPT
    """Instructions for the summariser. The transcript follows as quoted data, then the instructions again.

    To update an earlier summary (`librechat`, `librechat-checkpoint`, `rolling`), Steno adds a note to the
    instructions. Your instructions also replace `librechat`'s own instructions for updates. Stored summaries stay.
    """
    parameters: dict[str, JsonValue] = Field({}, max_length=20)
    """Further members of each summary request, such as `temperature`. Steno omits a member that a provider refuses.

    At most 20 members. You cannot set Steno's own members, such as `model` and `max_tokens`. For example:

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
    """Instructions to update an earlier summary; empty if `summary.prompt` is used for updates, too."""


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
        """Return the policy of the request's `preset`, or else of the model's preset, or else of the settings."""
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
    mask, tokens = compaction.mask, compaction.trigger.tokens
    fixed = dict(preset.policy)
    if (pruning := fixed.get("session_pruning")) is not None:
        fixed["session_pruning"] = replace(pruning, deny=mask.deny)
    policy = Policy(
        mask=MaskPolicy(deny=mask.deny, **preset.mask) if mask.enabled else None,
        window_turns=compaction.tail.turns if fixed.get("strategy") == "window" else None,
        **fixed,
    )
    settings = {
        "trigger": compaction.trigger.token_ratio,
        "cap": CAP if tokens is None else tokens or None,
        "tail_turns": compaction.tail.turns,
        "recall": compaction.recall.max_ratio,
        "max_summary_tokens": summary.max_tokens,
    }
    update_prompt = preset.update_prompt if summary.prompt == preset.summary.get("prompt") else ""
    return AppliedPolicy(compaction, summary, policy, Shares(**{**settings, **preset.shares}), preset, update_prompt)
