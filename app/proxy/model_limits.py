"""Model limits: the provider of a request, and how large its prompt may be there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

import structlog

from app.compaction.budget import CAP, HEURISTIC_CAUTION, Budget, Window, budget_for
from app.compaction.request import Measure
from app.errors import InvalidRequest
from app.formats.format import WireFormat
from app.formats.requests import WireRequest
from app.http import own_headers
from app.providers.providers import Provider, Providers
from app.providers.registry import cap_of
from app.proxy.caller import Caller
from app.runtime.bounded import BoundedMap
from app.settings.policies import Policies
from app.settings.presets import PRESET_NAMES, PresetName
from app.tokens.estimate import Count
from app.tokens.estimator import Estimator
from app.tokens.rules import LONGEST_MODEL

log = structlog.get_logger("steno.windows")

MOST_REMEMBERED = 4_096
MOST_GUESSED = 100
"""Maximum number of models reported to have an unknown window: callers can make up any number of names."""
BODY_SHARE = 0.8
"""Share of the largest body that a provider takes over which pictures give way."""
SECONDS = 1.0
"""Seconds for which a measure is kept though nothing was learnt: a learnt limit ends by the clock."""


class ModelLimits:
    def __init__(
        self, providers: Providers, policies: Policies, estimator: Estimator, base_model: Callable[[str], str]
    ) -> None:
        self._providers = providers
        self._policies = policies
        self._estimator = estimator
        self._base_model = base_model
        self._measures: BoundedMap[Hashable, tuple[Measure, int, float]] = BoundedMap(MOST_REMEMBERED)
        """Measures, each with the provider's revision and the time until which it is used."""
        self._guessed: set[tuple[str, str]] = set()

    async def measure(self, wire: WireRequest, caller: Caller, *, remember: bool) -> Measure:
        """Measure a request. Waits a moment for the provider's windows if they are still asked for.

        `remember=False` is for a dry run, which has no provider asked. Raises `UnknownUpstream`, and `InvalidRequest`
        for a preset that is none.
        """
        key = _key(wire, caller)
        known = None if key is None else self._measures.get(key)
        if known is not None and (known[1] != known[0].provider.revision or known[2] <= monotonic()):
            known = None  # It may even go elsewhere now.
        if known is not None:
            provider = known[0].provider
        else:
            provider = self._providers.of(wire.model, caller.format.name, caller.tenant, caller.upstream)
        await provider.windows.wait_for_listing(wire.model, caller.tenant, caller.headers if remember else ())
        if known is not None and known[1] == provider.revision:
            return known[0]
        measure = self._measure(provider, wire, caller)
        if key is not None:
            self._measures.keep(key, (measure, provider.revision, monotonic() + SECONDS))
        return measure

    def for_summaries(self, model: str, tenant: str, format_: WireFormat) -> tuple[Count, Budget]:
        """Measure a model's summaries without a request. Raises `UnknownUpstream` and `FormatNotSpoken`."""
        provider = self._providers.of(model, format_.name, tenant)
        counted_as = self._base_model(model)
        token_rules = format_.token_rules(counted_as, provider.host)
        formula = self._estimator.formula(token_rules)
        rules = self._policies.of(model)
        window = provider.windows.window_of(model, tenant, rules.guessed_window)
        line = provider.calibrations.of(tenant, model, formula, tools=False).line
        count = self._estimator.counter(token_rules.encoding)
        shares = rules.shares.for_model(cap_of(counted_as, CAP))
        return count, budget_for(window, None, shares, line)

    def _measure(self, provider: Provider, wire: WireRequest, caller: Caller) -> Measure:
        estimator, model, tenant = self._estimator, wire.model, caller.tenant
        counted_as = self._base_model(model)
        token_rules = caller.format.token_rules(counted_as, provider.host)
        formula = estimator.formula(token_rules)
        tools = wire.has_tools and not (wire.forbids_tools and token_rules.hides_tools)
        line = provider.calibrations.of(tenant, model, formula, tools).line
        caution = HEURISTIC_CAUTION if token_rules.encoding in estimator.heuristics else 1.0
        in_body, header = read_preset(wire.wishes.options.get("preset")), own_headers.PRESET
        rules = self._policies.of(model, in_body or read_preset(caller.header(header), header.decode()))
        asked = caller.window_asked
        window = provider.windows.window_of(model, tenant, rules.guessed_window, asked)
        if window.source == "default":
            self._log_guess(provider, model, window)
        shares = rules.shares.for_model(cap_of(counted_as, CAP))
        budget = budget_for(
            window,
            wire.answer.output,
            shares,
            line,
            caution=caution,
            threshold=wire.wishes.threshold,
            body_bytes=int(BODY_SHARE * provider.largest_body(caller.format)),
        )
        scale = provider.calibrations.picture_scale(tenant, model, formula)
        quiet = rules.policy.quiet_tokens(budget)
        pinned = rules.compaction.pinned_text
        return Measure(provider, counted_as, formula, tools, window, asked, rules, budget, quiet, scale, pinned)

    def _log_guess(self, provider: Provider, model: str, window: Window) -> None:
        """Log a guessed window, once for each model."""
        if (provider.name, model) not in self._guessed and len(self._guessed) < MOST_GUESSED:
            self._guessed.add((provider.name, model))
            log.warning(
                "a model's window is a guess",
                upstream=provider.name,
                model=model[:LONGEST_MODEL],
                window=window.context,
                remedy="Set `context_window` for it in `models`, or `base_model` to one that it is like.",
            )


def read_preset(name: object, param: str = "context.preset") -> PresetName | None:
    """Preset that a request names; None if it names none. Raises `InvalidRequest`, which says where (`param`)."""
    if name is None:
        return None
    for known in PRESET_NAMES:
        if name == known:
            return known
    raise InvalidRequest(f"There is no preset {name!r:.100}. Known: {', '.join(PRESET_NAMES)}.", param)


def _key(wire: WireRequest, caller: Caller) -> Hashable | None:
    """Key that is equal for requests with the same limits. None for one that is like hardly any other."""
    if len(wire.model) > LONGEST_MODEL:
        return None
    preset = wire.wishes.options.get("preset") or caller.header(own_headers.PRESET)
    if preset is not None and not isinstance(preset, str):
        return None
    tools = wire.has_tools, wire.forbids_tools
    where = caller.format.name, caller.window_asked, caller.upstream
    sizes = wire.answer.output, wire.wishes.threshold
    return wire.model, caller.tenant, where, tools, sizes, preset
