"""SummaryRouting: route and prompts of a request's summaries, as the windows are known when one is due.

In the event loop alone: windows and calibrations are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from app.compaction.budget import limit_of
from app.compaction.policy import SummaryBrief
from app.compaction.request import ChatRequest
from app.compaction.summariser_client import Prefix, Route
from app.compaction.view import View
from app.conversation.secrets import Scrub
from app.http.credentials import for_anybody, keys_alone
from app.http.relayed import Headers, for_summary, with_missing
from app.providers.estimator import Estimator
from app.providers.providers import Provider, Providers

INPUT_SHARE = 0.85
"""Share of the summariser's room that one call may read: the rest is for wrong estimates."""
PART_SHARE = 0.50
VALUES_SHARE = 0.4
"""Share of a summary that exact values, which code copies after it, may take."""


@dataclass(frozen=True, slots=True)
class SummaryRouting:
    providers: Providers
    estimator: Estimator
    base_model: Callable[[str], str]
    """Function from a model to the one that it is counted as."""
    scrub: Scrub
    _routes: WeakKeyDictionary[ChatRequest, tuple[Route, ...]] = field(default_factory=WeakKeyDictionary)

    def brief(self, request: ChatRequest, *, warm: bool) -> SummaryBrief:
        """`warm`: whether the conversation's provider has what was sent last in its cache."""
        rules, wire, budget = request.measure.rules, request.wire, request.budget
        summary = rules.summary
        summariser, provider = summary.model or request.model, self._at(request, summary.upstream)
        format_ = provider.format_for(request.format, request.tenant)
        formula = self.estimator.formula(self.base_model(summariser), format_.token_rules)
        line = provider.calibrations.of(request.tenant, summariser, formula, tools=False).line
        window = provider.windows.window_of(summariser, request.tenant)
        room = line.to_estimate(limit_of(window, budget.summary))
        prompt, style = summary.prompt, summary.style
        alternates = provider.demands_alternation(format_.name, summariser, request.tenant)
        if alternates and not request.policy.alternates:
            style = "transcript"  # The conversation is written for its own provider.
        if style == "auto":
            # Signed thinking may be refused where the prompt ends otherwise.
            is_signed = request.wire.thinks or request.conversation.history.holds_signed_thinking
            reads_it = warm and self.is_by_own_model(request) and not is_signed
            style = "prefix" if reads_it else "transcript"
        return SummaryBrief(
            model=summariser,
            prompt=prompt,
            update_prompt=rules.update_prompt,
            # The prompt stands in a call twice: at four characters a token, half its length.
            input_tokens=max(0, int(INPUT_SHARE * room) - len(prompt + wire.wishes.focus) // 2),
            shown_tokens=max(0, room - len(prompt + wire.wishes.focus) // 2),
            part_tokens=int(PART_SHARE * min(window.context, room)),
            source_tokens=rules.source_tokens and int(rules.source_tokens / budget.line.ratio),
            focus=wire.wishes.focus,
            ratio=line.ratio,
            strategy=rules.policy.strategy,
            # What is shown as it came can be read in its own format alone.
            style=style if format_ is request.format else "transcript",
            alternates=alternates,
            values_share=VALUES_SHARE,
            user_words=rules.policy.user_words,
            folds_in=rules.policy.folds_in,
            failed_results=rules.policy.failed_results,
            scrub=self.scrub,
        )

    def routes(self, request: ChatRequest) -> tuple[Route, ...]:
        """Summarisers to ask, the first choice first. An upstream with a key of its own adds that itself."""
        if (known := self._routes.get(request)) is not None:
            return known
        summary, headers = request.measure.rules.summary, for_summary(request.headers)
        asked = ((summary.model, summary.upstream), *((other.model, other.upstream) for other in summary.fallbacks))
        routes = self._routes[request] = tuple(
            self._route(request, model or request.model, self._at(request, upstream), headers)
            for model, upstream in asked
        )
        return routes

    def prefix(self, request: ChatRequest, view: View) -> Prefix:
        """The conversation itself, for a summariser that reads that."""
        routing = dict([request.wire.cache_key] if request.wire.cache_key else ())
        tokens = request.budget.line.to_provider_tokens(view.tokens)
        return Prefix(tuple(request.rendered(view)), request.wire.cached, tokens, routing)

    def is_by_own_model(self, request: ChatRequest) -> bool:
        """True if the conversation's own model is asked first, whose provider has just read it."""
        summary = request.measure.rules.summary
        return summary.model in (None, request.model) and self._at(request, summary.upstream) is request.provider

    def _route(self, request: ChatRequest, model: str, provider: Provider, headers: Headers) -> Route:
        format_, is_own = provider.format_for(request.format, request.tenant), provider is request.provider
        shown = headers if is_own else for_anybody(headers)  # A key is for the conversation's own provider alone.
        return Route(
            model,
            provider.upstream,
            format_.summaries,
            with_missing(shown, format_.summaries.headers),
            provider.name,
            provider.host,
            provider.windows.window_of(model, request.tenant).context,
            is_own=is_own and format_ is request.format,
            continues=format_ is request.format,
            missing=partial(provider.lacks, format_.name, request.tenant),
            alternates=partial(provider.learn_alternation, format_.name, model, request.tenant),
            query=keys_alone(request.query) if is_own else b"",
        )

    def _at(self, request: ChatRequest, upstream: str | None) -> Provider:
        return self.providers.named(upstream) if upstream else request.provider
