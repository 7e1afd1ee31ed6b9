"""Summaries: who writes them, and how they are asked for."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from app.compaction.budget import MIN_SUMMARY, Shares
from app.compaction.prompts import SUMMARY_PROMPT
from app.formats.registry import FORMATS
from app.settings.types import Seconds, Section

SAID_BY_STENO = frozenset[str]().union(*(format_.summaries.own_members for format_ in FORMATS))
"""Members of a summary call, in some format, that are not the operator's to set."""


class FallbackSettings(Section):
    """Another summariser."""

    model: str | None = Field(None, min_length=1)
    """Model that is asked; null means the conversation's own, not `summary.model`."""
    upstream: str | None = None
    """Upstream that is asked; null means the conversation's own."""

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.model is None and self.upstream is None:
            raise ValueError("a model is needed, or an upstream, or both")
        return self


class SummarySettings(Section):
    """Models that write summaries, and what they are asked."""

    model: str | None = None
    """Model that writes the summaries; null means the conversation's own.

    It is called with the caller's key, which must be allowed to use it, unless its upstream has a key of its own.
    """
    upstream: str | None = None
    """Upstream that is asked for summaries; null means the conversation's own, `default` the one under `upstream`.

    Conversations then go to that provider too: set a `summary.model` that it serves, and its own `api_key_env`.
    """
    fallbacks: tuple[FallbackSettings, ...] = Field((), max_length=5)
    """Other models, or the same at other upstreams, that are asked in turn if the first gives no answer.

    At most 5; each names a model, an upstream or both. All calls for one summary together take at most twice
    `summary.timeout_seconds`. For example:

        - {model: "gpt-4o-mini"}
        - {model: "llama-3.3-70b", upstream: "local"}
    """
    max_tokens: int = Field(Shares().max_summary_tokens, ge=MIN_SUMMARY)
    """Tokens of the largest summary; less in small windows (0.06 of the limit, at least 256)."""
    timeout_seconds: Seconds = 120.0
    """Seconds for one summary call.

    Above `compaction.wait_seconds` the summary serves the next request.
    """
    style: Literal["auto", "transcript", "prefix"] = "auto"
    """Text that the summariser reads: a transcript, or the prefix that its provider may have in its cache.

    `transcript`: the messages as quoted text. `prefix`: the conversation itself with its tools, and the task as the
    last user message, for the conversation's own model. `auto`: prefix where that has the conversation in its cache.
    [What the summariser reads](summaries.md#what-the-summariser-reads) says more.
    """
    prompt: str = SUMMARY_PROMPT
    """Instructions for the summariser. The transcript follows as quoted data, then the instructions again.

    Where an earlier summary is updated (full, checkpoint, rolling), a note that says so follows them; preset
    `librechat` has instructions for that, which give way to yours, too. Stored summaries stay as they are.
    """
    parameters: dict[str, JsonValue] = Field({}, max_length=20)
    """Further members of each summary call, such as `temperature`; one that a provider refuses is left out.

    At most 20, and not what Steno decides itself, such as `model` and `max_tokens`. For example:

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
