"""Policies: the compaction rules of a request, from the settings, its model and its own choice of a preset."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import CAP, Shares
from app.compaction.mask import MaskPolicy
from app.compaction.policy import Policy
from app.compaction.recall import RecallPolicy
from app.settings import CompactionSettings, Settings, SummarySettings, entry_of
from app.settings.presets import PRESET_NAMES, PRESETS, Preset, PresetName

REACHED_BY = ("model", "upstream", "fallbacks", "timeout_seconds", "parameters")
"""Settings of `summary` that hold for all presets: the models that write summaries, and the options of their calls."""


class AppliedPolicy(Struct, frozen=True):
    """Settings and policy of one request."""

    compaction: CompactionSettings
    summary: SummarySettings
    policy: Policy
    shares: Shares
    preset: Preset
    """Preset, with its constants."""
    update_prompt: str
    """Instructions to update an earlier summary; empty for `summary.prompt`, always so if the operator set that."""


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
        """Return the policy of the request's preset, or else of its model's preset, or else of the operator's."""
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
