"""Summaries: who writes them, and how they are asked for."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from app.core.limits.budget import MIN_SUMMARY, MOST_TOKENS, Shares
from app.core.summary.prompts import SUMMARY_PROMPT
from app.settings.patterns import MOST_PATTERNS, pattern
from app.settings.types import Seconds, Section, fits
from app.wire.formats import FORMATS

SAID_BY_STENO = frozenset[str]().union(*(format_.summaries.own_members for format_ in FORMATS))
"""Members of a summary call, in some format, that are not the operator's to set."""


class FallbackSettings(Section):
    model: str | None = Field(None, min_length=1)
    """Model that is asked; null means the conversation's own."""
    upstream: str | None = None
    """Upstream that is asked; null means the conversation's own."""

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.model is None and self.upstream is None:
            raise ValueError("a model is needed, or an upstream, or both")
        return self


class PromptSettings(Section):
    prompt: str = Field(min_length=1)
    """Instructions in place of `summary.prompt`."""
    update_prompt: str | None = Field(None, min_length=1)
    """Instructions for updating an earlier summary; null means the same."""
    model: str | None = Field(None, min_length=1)
    """For conversations with this model, a name or a glob; null means all."""
    tenant: str | None = Field(None, min_length=1)
    """For this tenant, by the id that GET /context/tenant shows; null means all."""
    pinned_text: str | None = Field(None, max_length=20_000)
    """In place of `compaction.pinned_text`; null means the same."""

    def is_for(self, model: str, tenant: str) -> bool:
        return (self.model is None or fits(model, self.model)) and self.tenant in (None, tenant)


class RuleSettings(Section):
    enabled: bool = True
    """Sentences in which the user sets a rule for what follows stand word for word beside the summaries."""
    share: float = Field(0.01, gt=0, le=0.1)
    """They take at most this share of the window; older ones that go over it are left out."""
    patterns: tuple[str, ...] = Field((), max_length=MOST_PATTERNS)
    """Regular expressions that make a sentence of the user such a rule, in any case, in addition to Steno's own."""

    @field_validator("patterns")
    @classmethod
    def _can_be_searched(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for text in patterns:
            pattern(text)
        return patterns


class SummarySettings(Section):
    model: str | None = None
    """Model that writes the summaries; null means the conversation's own."""
    upstream: str | None = None
    """Upstream that is asked for them; null means the conversation's own."""
    fallbacks: tuple[FallbackSettings, ...] = Field((), max_length=5)
    """Other models, or the same at other upstreams, that are asked in turn where the first gives no answer."""
    max_tokens: int = Field(Shares().max_summary_tokens, ge=MIN_SUMMARY)
    """Largest summary chunk; small windows use less (0.06 of the limit, at least 256)."""
    source_tokens: int | None = Field(16_384, ge=1_024, le=MOST_TOKENS)
    """One summary stands for at most this many tokens: a larger range becomes several, made side by side; null: any."""
    timeout_seconds: Seconds = 120.0
    """Time for one summary call."""
    style: Literal["transcript", "prefix"] = "transcript"
    """What the summariser reads: quoted text, or the conversation itself, which its provider may have in its cache."""
    prompt: str = SUMMARY_PROMPT
    """Instructions for the summariser."""
    update_prompt: str | None = None
    """Instructions for updating an earlier summary (full, checkpoint, rolling); null means the same."""
    prompts: tuple[PromptSettings, ...] = ()
    """Prompts for certain models or tenants; the first that fits counts."""
    failed_results: int = Field(0, ge=0, le=100)
    """Latest failed tool calls that are appended to a summary as they are, 240 characters each."""
    values: float = Field(0.2, ge=0, le=0.5)
    """Exact values (ids, paths, dates, ...) that code copies after a summary: at most this share of it; 0: none."""
    rules: RuleSettings = RuleSettings()
    reasoning_allowance: int = Field(8_192, ge=0)
    """Tokens a reasoning model may think before it writes a summary."""
    parameters: dict[str, JsonValue] = Field({}, max_length=20)
    """Further members of each summary call, such as `temperature`; what a provider refuses it is asked without."""

    @field_validator("parameters")
    @classmethod
    def _are_not_stenos_own(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(given.keys() & SAID_BY_STENO):
            raise ValueError(
                f"{', '.join(taken)} cannot be set there: Steno decides it (summary.model, summary.max_tokens)"
            )
        return given
