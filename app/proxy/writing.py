"""Writing: who writes a conversation's summaries, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass

from app.compaction.summariser import Route
from app.core.limits.budget import Budget, limit_of
from app.core.summary.plan import SummarySettings
from app.headers.credentials import for_anybody
from app.headers.relayed import Headers
from app.providers.providers import Provider
from app.proxy.services import Services
from app.settings import PromptSettings
from app.settings.policies import Rules

INPUT_SHARE = 0.85
"""Of what the summariser has room for, what one call may read: the rest is for wrong estimates."""
PART_SHARE = 0.50


@dataclass(frozen=True, slots=True)
class Writing:
    """Who writes a conversation's summaries, and what they are told."""

    rules: Rules
    provider: Provider
    """Where the conversation itself goes."""
    model: str
    tenant: str
    focus: str

    def settings(self, services: Services, budget: Budget) -> SummarySettings:
        """As the windows are known now."""
        summary, own = self.rules.summary, self._own
        summariser, provider = summary.model or self.model, self._at(services, summary.upstream)
        formula = services.estimator.formula(services.base_model(summariser))
        line = provider.calibrations.of(self.tenant, summariser, formula, tools=False).line
        window = provider.windows.of(summariser, self.tenant)
        room = line.estimate(limit_of(window, budget.summary))
        prompt = own.prompt if own else summary.prompt
        return SummarySettings(
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
            style=summary.style,
            failed_results=summary.failed_results,
        )

    def routes(self, services: Services, headers: Headers) -> tuple[Route, ...]:
        """Whom to ask, the first choice first. An upstream with a key of its own adds that itself."""
        summary = self.rules.summary
        asked = ((summary.model, summary.upstream), *((other.model, other.upstream) for other in summary.fallbacks))
        reached = ((model or self.model, self._at(services, upstream)) for model, upstream in asked)
        return tuple(
            Route(model, provider.upstream, provider.summaries, self._shown_to(provider, headers), provider.name)
            for model, provider in reached
        )

    def _shown_to(self, provider: Provider, headers: Headers) -> Headers:
        """What else the caller sends is meant for the conversation's own upstream and for no other, such as a key."""
        return headers if provider is self.provider else for_anybody(headers)

    @property
    def pinned_text(self) -> str:
        own = self._own
        return own.pinned_text if own and own.pinned_text is not None else self.rules.compaction.pinned_text

    @property
    def _own(self) -> PromptSettings | None:
        """The operator's prompts for this model or this tenant."""
        return next((entry for entry in self.rules.summary.prompts if entry.is_for(self.model, self.tenant)), None)

    def _at(self, services: Services, upstream: str | None) -> Provider:
        return services.providers.named(upstream) if upstream else self.provider
