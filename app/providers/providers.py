"""Providers: every upstream with the facts that Steno has learnt about it, and the choice of a request's upstream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

import structlog

from app.errors import FormatNotSpoken, UnknownUpstream
from app.formats.format import WireFormat
from app.http.upstream import Upstream
from app.providers.calibrations import Calibrations
from app.providers.windows import Windows
from app.runtime.caches import TenantFacts
from app.settings import DEFAULT_UPSTREAM, NamedUpstreamSettings, UpstreamSettings
from app.tokens.counting_rules import LONGEST_MODEL

log = structlog.get_logger("steno.upstreams")

LEARNT_SECONDS = 24 * 3600.0
"""Seconds for which Steno remembers a model's refusals, and how the model's streams report usage."""
UNSPOKEN_SECONDS = 3600.0
"""Seconds for which Steno remembers that a provider lacks a format's path. A newer server may have the path."""

LARGEST_BODIES = {"amazonaws.com": 20_000_000, "aiplatform.googleapis.com": 30_000_000}
"""Maximum bytes of a request, by the end of the host's name, for hosts that accept less than the models' vendors."""


class StreamedUsage(Enum):
    """Condition under which a model's streams report their usage."""

    UNASKED = "unasked"
    WHEN_ASKED = "when asked"
    REFUSED = "refused"
    """The model refuses the option that asks for usage."""


class Provider:
    """One upstream, with facts about its models. Another upstream may serve the same model with other limits."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        upstream: Upstream,
        formats: tuple[WireFormat, ...],
        windows: Windows,
        calibrations: Calibrations,
    ) -> None:
        """`formats`: the wire formats that both the provider and Steno speak."""
        self.name = name
        self.settings = settings
        self.upstream = upstream
        self.formats = formats
        self.windows = windows
        self.calibrations = calibrations
        self.host = settings.host
        """Host of the base URL. The rules for counting a prompt's tokens depend on the host."""
        known = (size for ending, size in LARGEST_BODIES.items() if self.host.endswith(ending))
        self._largest_body = min(known, default=None)
        self.speaks, self.is_meant_for = settings.speaks, settings.is_meant_for
        counts = windows.answered_tenants.__contains__
        self.streamed_usage: TenantFacts[tuple[str, str], StreamedUsage] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """How streams report their usage, by format and model."""
        self.adds_output: TenantFacts[tuple[str, str], bool] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Formats and models for which prompt and output cap together must fit the window."""
        self._alternating: TenantFacts[tuple[str, str], bool] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Formats and models that refused two messages of one role in a row."""
        self._refused_thinking: TenantFacts[tuple[str, str, bytes], int] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Number of leading messages whose thinking the model refused, by format, model, and digest of the turn's
        beginning (empty: any turn)."""
        self._unspoken: TenantFacts[str, bool] = TenantFacts(UNSPOKEN_SECONDS, counts=counts)
        """Formats whose path the provider does not have."""

    def demands_alternation(self, format_: str, model: str, tenant: str) -> bool:
        return self._alternating.find(tenant, (format_, model)) is not None

    def learn_alternation(self, format_: str, model: str, tenant: str) -> None:
        if len(model) > LONGEST_MODEL:
            return
        if not self.demands_alternation(format_, model, tenant):
            log.info("upstream refuses two messages of one role in a row", upstream=self.name, model=model)
        self._alternating.learn(tenant, (format_, model), True)

    def thinking_from(self, tenant: str, format_: str, model: str, turn: bytes) -> int:
        """Return the number of leading messages whose thinking the model refused in `turn` (empty: in any turn)."""
        return self._refused_thinking.own(tenant, (format_, model, turn)) or 0

    def learn_refused_thinking(self, tenant: str, format_: str, model: str, turn: bytes, messages: int) -> None:
        if len(model) <= LONGEST_MODEL:
            self._refused_thinking.learn(tenant, (format_, model, turn), messages)
            self._refused_thinking.learn(tenant, (format_, model, b""), messages)

    def may_speak(self, format_: str, tenant: str) -> bool:
        """True if the settings allow the format, and no recent answer showed that the format's path is missing."""
        return format_ in self.speaks and self._unspoken.find(tenant, format_) is None

    def lacks(self, format_: str, tenant: str) -> None:
        if self._unspoken.own(tenant, format_) is None:
            log.warning("upstream does not speak a format", upstream=self.name, format=format_)
        self._unspoken.learn(tenant, format_, True)

    def format_for(self, own: WireFormat, tenant: str) -> WireFormat:
        """Return the format of summary calls: `own`, the conversation's, if the provider speaks it, else another."""
        able = [each for each in self.formats if self.may_speak(each.name, tenant)]
        return own if own in able else next(iter(able), own)

    def largest_body(self, format_: WireFormat) -> int:
        return self._largest_body or format_.spec.largest_body

    def serves(self, model: str) -> bool:
        """True if a glob pattern in the upstream's settings matches the model. The default upstream has no patterns."""
        return isinstance(self.settings, NamedUpstreamSettings) and self.settings.fits(model)


class Providers:
    """All upstreams, in the order in which their glob patterns are compared with a model."""

    def __init__(self, default: Provider, *others: Provider) -> None:
        self.default = default
        self.calibrations = default.calibrations
        self.all = (default, *others)
        self._by_name = {provider.name: provider for provider in self.all}

    def of(self, model: str | None, format_: str | None, tenant: str, named: str | None = None) -> Provider:
        """Return the provider of a request: the upstream `named` in the base URL, or one chosen by model and format.

        `model` is None if unknown. `format_` is None if the path belongs to no format. Raises `UnknownUpstream` and
        `FormatNotSpoken`.
        """
        if named is not None or format_ is None:
            provider = self.named(named)
            if format_ is not None and format_ not in provider.speaks:
                raise self._not_spoken(format_, f"The upstream {provider.name!r} does not speak {format_}")
            return provider
        able = [provider for provider in self.all if format_ in provider.speaks]
        believed = [provider for provider in able if provider.may_speak(format_, tenant)]
        for among in (believed, able):
            for provider in among:
                if model is not None and provider.serves(model):
                    return provider
            if self.default in among:
                return self.default
            for provider in among:
                if format_ in provider.is_meant_for:
                    return provider
        raise self._not_spoken(format_, f"No upstream speaks {format_}" + (f" for {model!r:.100}" if model else ""))

    def _not_spoken(self, format_: str, what: str) -> FormatNotSpoken:
        able = ", ".join(provider.name for provider in self.all if format_ in provider.speaks)
        others = f"Those that do: {able} (/u/{{name}}/v1)." if able else "None does."
        return FormatNotSpoken(f"{what} here (upstream.formats, upstreams.<name>.formats). {others}")

    def named(self, name: str | None) -> Provider:
        """Return the upstream with this name, or for None the default upstream. Raises `UnknownUpstream`."""
        provider = self._by_name.get(DEFAULT_UPSTREAM if name is None else name)
        if provider is None:
            known = ", ".join(self._by_name)
            raise UnknownUpstream(name, known)
        return provider

    def known(self, tenant: str, used: Iterable[str]) -> Mapping[str, list[Provider]]:
        """Return the models that the tenant used or an upstream lists, each with the upstreams that serve it."""
        used = list(used)
        found: dict[str, list[Provider]] = {}
        for provider in self.all:
            windows, listed = provider.windows, provider.windows.listings.open_names
            for name in windows.names(used):
                learnt = windows.window_of(name, tenant).source == "learnt"
                serving = next((each for each in self.all if each.serves(name)), self.default)
                if name in listed or learnt or serving is provider:
                    found.setdefault(name, []).append(provider)
        return found

    async def start(self) -> None:
        """Load the calibrations, and start to ask the providers for their windows."""
        for provider in self.all:
            provider.windows.start()
        await self.calibrations.start()

    async def stop(self) -> None:
        """End the background tasks. Call this method before the store closes."""
        for provider in self.all:
            await provider.windows.stop()
        await self.calibrations.stop()

    async def close(self) -> None:
        for provider in self.all:
            await provider.upstream.close()
