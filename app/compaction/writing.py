"""Writing: route and prompts of a conversation's summaries. Worked out when one is due."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec import Struct

from app.compaction.summariser import Prefix, Route
from app.core.limits.budget import Budget, limit_of
from app.core.summary.brief import SummaryBrief
from app.core.view.view import View
from app.edge.credentials import for_anybody, keys_alone
from app.edge.relayed import Headers, for_summary, with_missing
from app.providers.providers import Provider, Providers
from app.settings import PromptSettings
from app.settings.patterns import pattern
from app.settings.policies import AppliedPolicy
from app.tokens.estimator import Estimator
from app.wire.format import WireFormat

INPUT_SHARE = 0.85
"""Share of the summariser's room that one call may read: the rest is for wrong estimates."""
PART_SHARE = 0.50


class Writing(Struct, frozen=True):
    rules: AppliedPolicy
    provider: Provider
    """Provider of the conversation itself."""
    model: str
    tenant: str
    focus: str
    headers: Headers
    """Headers of the caller."""
    query: bytes
    """Query of the caller, for its keys."""
    providers: Providers
    format: WireFormat
    """Format of the conversation."""
    estimator: Estimator
    base_model: Callable[[str], str]
    """Function from a model to the one that it is counted as."""
    prefix: Callable[[View], Prefix]
    """The conversation itself, for a summariser that reads that."""
    inherited_rules: tuple[str, ...] = ()
    """Rules of the user, from a compaction that the history begins with."""

    def settings(self, budget: Budget) -> SummaryBrief:
        """Brief of the summaries, as the windows are known now."""
        summary, own = self.rules.summary, self._own
        summariser, provider = summary.model or self.model, self._at(summary.upstream)
        format_ = provider.format_for(self.format, self.tenant)
        formula = self.estimator.formula(self.base_model(summariser), format_.token_rules)
        line = provider.calibrations.of(self.tenant, summariser, formula, tools=False).line
        window = provider.windows.of(summariser, self.tenant)
        room = line.estimate(limit_of(window, budget.summary))
        prompt = own.prompt if own else summary.prompt
        return SummaryBrief(
            model=summariser,
            prompt=prompt,
            update_prompt=(own.update_prompt if own else summary.update_prompt) or "",
            # The prompt stands in a call twice: at four characters a token, half its length.
            input_tokens=max(0, int(INPUT_SHARE * room) - len(prompt + self.focus) // 2),
            shown_tokens=max(0, room - len(prompt + self.focus) // 2),
            part_tokens=int(PART_SHARE * min(window.context, room)),
            source_tokens=summary.source_tokens and int(summary.source_tokens / budget.line.ratio),
            focus=self.focus,
            ratio=line.ratio,
            strategy=self.rules.policy.strategy,
            # What is shown as it came can be read in its own format alone.
            style=summary.style if format_ is self.format else "transcript",
            values_share=summary.values,
            rule_patterns=tuple(map(pattern, summary.rules.patterns)) if summary.rules.enabled else None,
            inherited_rules=self.inherited_rules,
            failed_results=self.rules.policy.failed_results,
        )

    def routes(self) -> tuple[Route, ...]:
        """Summarisers to ask, the first choice first. An upstream with a key of its own adds that itself."""
        summary, headers = self.rules.summary, for_summary(self.headers)
        asked = ((summary.model, summary.upstream), *((other.model, other.upstream) for other in summary.fallbacks))
        return tuple(self._route(model or self.model, self._at(upstream), headers) for model, upstream in asked)

    def _route(self, model: str, provider: Provider, headers: Headers) -> Route:
        format_ = provider.format_for(self.format, self.tenant)
        return Route(
            model,
            provider.upstream,
            format_.summaries,
            with_missing(self._shown_to(provider, headers), format_.summaries.headers),
            provider.name,
            provider.host,
            is_own=provider is self.provider and format_ is self.format,
            continues=format_ is self.format,
            missing=partial(provider.lacks, format_.name, self.tenant),
            query=keys_alone(self.query) if provider is self.provider else b"",
        )

    def _shown_to(self, provider: Provider, headers: Headers) -> Headers:
        """Headers for this provider: the caller's others, such as a key, are for the conversation's own alone."""
        return headers if provider is self.provider else for_anybody(headers)

    @property
    def is_by_own_model(self) -> bool:
        """True if the conversation's own model is asked first, whose provider has just read it."""
        summary = self.rules.summary
        return summary.model in (None, self.model) and self._at(summary.upstream) is self.provider

    @property
    def pinned_text(self) -> str:
        """Text that the operator puts after pinned messages; empty for nothing."""
        own = self._own
        return own.pinned_text if own and own.pinned_text is not None else self.rules.compaction.pinned_text

    @property
    def _own(self) -> PromptSettings | None:
        """Prompts of the operator for this model or this tenant."""
        return next((entry for entry in self.rules.summary.prompts if entry.is_for(self.model, self.tenant)), None)

    def _at(self, upstream: str | None) -> Provider:
        return self.providers.named(upstream) if upstream else self.provider
