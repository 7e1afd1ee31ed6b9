"""Providers: every upstream with what is known of it, and which of them a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import chain

import structlog

from app.errors import FormatNotSpoken, UnknownUpstream
from app.formats.format import WireFormat
from app.http.upstream import Upstream
from app.providers.calibrations import Calibrations
from app.providers.windows import Windows
from app.runtime.sightings import Sightings
from app.settings import DEFAULT_UPSTREAM, NamedUpstreamSettings, UpstreamSettings
from app.store import StoredCalibration
from app.tokens.calibration import Calibration
from app.tokens.rules import LONGEST_MODEL

log = structlog.get_logger("steno.upstreams")

LEARNT_SECONDS = 24 * 3600.0
"""Time for which it is remembered what a model refuses, and how it reports usage."""
UNSPOKEN_SECONDS = 3600.0
"""Time for which it is remembered that a format's path was missing: the next release of a server may have it."""

LARGEST_BODIES = {"amazonaws.com": 20_000_000, "aiplatform.googleapis.com": 30_000_000}
"""Bytes of a request that hosts of others' models take, by how their names end, where that is less than the vendors
do."""


class StreamedUsage(Enum):
    """Ways in which a model's streams come to report what they cost."""

    UNASKED = "unasked"
    WHEN_ASKED = "when asked"
    REFUSED = "refused"
    """The model does not take the question."""


class Provider:
    """One upstream. What is learnt of a model is learnt of it there: another one may serve it with other limits."""

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        upstream: Upstream,
        formats: tuple[WireFormat, ...],
        windows: Windows,
        calibrations: Calibrations,
    ) -> None:
        """`formats` are those that the provider speaks, of those that Steno knows."""
        self.name = name
        self.settings = settings
        self.upstream = upstream
        self.formats = formats
        self.windows = windows
        self.calibrations = calibrations
        self.host = settings.host
        """Host of its base URL: some hosts put less into a prompt than others."""
        counts = windows.answered_tenants.__contains__
        self.streamed_usage: Sightings[tuple[str, str], StreamedUsage] = Sightings(LEARNT_SECONDS, counts=counts)
        """How each model's streams in a format report their usage."""
        self.adds_output: Sightings[tuple[str, str], bool] = Sightings(LEARNT_SECONDS, counts=counts)
        """Formats and models whose output cap counts against the window beside the prompt."""
        self._alternating: Sightings[tuple[str, str], bool] = Sightings(LEARNT_SECONDS, counts=counts)
        """Formats and models that refused two messages of one role in a row."""
        self._refused_thinking: Sightings[tuple[str, str, bytes | None], int] = Sightings(LEARNT_SECONDS, counts=counts)
        """Number of messages up to which thinking was refused, by format, model and digest of the turn's beginning,
        which is empty for any turn."""
        self._unspoken: Sightings[str, bool] = Sightings(UNSPOKEN_SECONDS, counts=counts)
        """Formats whose path was missing."""
        self._unspoken_revision = 0

    @property
    def revision(self) -> int:
        """Number that rises whenever requests to the provider may be measured differently."""
        return self.windows.revision + self.calibrations.revision + self._unspoken_revision

    def demands_alternation(self, format_: str, model: str, tenant: str) -> bool:
        """Whether it refuses two messages of one role in a row, as it is set or was learnt."""
        return self.settings.alternating_roles or self._alternating.holding(tenant, (format_, model)) is not None

    def learn_alternation(self, format_: str, model: str, tenant: str) -> None:
        """Remember that a model refused two messages of one role in a row."""
        if len(model) > LONGEST_MODEL:
            return
        if not self.demands_alternation(format_, model, tenant):
            log.info("upstream refuses two messages of one role in a row", upstream=self.name, model=model)
        self._alternating.saw(tenant, (format_, model), True)

    def thinking_from(self, tenant: str, format_: str, model: str, turn: bytes | None) -> int:
        """Position from which on a model was not yet seen to refuse the thinking of a turn, or of any turn."""
        return self._refused_thinking.own(tenant, (format_, model, turn)) or 0

    def learn_refused_thinking(self, tenant: str, format_: str, model: str, turn: bytes, messages: int) -> None:
        """Remember that a model refused the thinking of a turn that had come so far."""
        if len(model) <= LONGEST_MODEL:
            self._refused_thinking.saw(tenant, (format_, model, turn), messages)
            self._refused_thinking.saw(tenant, (format_, model, b""), messages)

    def may_speak(self, format_: str, tenant: str) -> bool:
        """True if the settings and all answers so far allow that the provider speaks the format."""
        return format_ in self.settings.speaks and self._unspoken.holding(tenant, format_) is None

    def lacks(self, format_: str, tenant: str) -> None:
        """The path of a format is not there."""
        if self._unspoken.own(tenant, format_) is None:
            log.warning("upstream does not speak a format", upstream=self.name, format=format_)
        self._unspoken.saw(tenant, format_, True)
        self._unspoken_revision += 1

    def format_for(self, own: WireFormat, tenant: str) -> WireFormat:
        """The format in which it is asked for summaries of conversations in `own`: the same, where it speaks that."""
        able = [each for each in self.formats if self.may_speak(each.name, tenant)]
        return own if own in able else next(iter(able), own)

    def largest_body(self, format_: WireFormat) -> int:
        """Bytes of a request in a format that it takes."""
        known = (size for ending, size in LARGEST_BODIES.items() if self.host.endswith(ending))
        return min(known, default=format_.largest_body)

    def serves(self, model: str) -> bool:
        """True if one of the upstream's globs fits the model. The default upstream has none."""
        return isinstance(self.settings, NamedUpstreamSettings) and self.settings.fits(model)


class Providers:
    """All upstreams, in the order in which they are asked whether they serve a model."""

    def __init__(self, default: Provider, *others: Provider) -> None:
        self.default = default
        self.all = (default, *others)
        self._by_name = {provider.name: provider for provider in self.all}

    def of(self, model: str | None, format_: str | None, tenant: str, named: str | None = None) -> Provider:
        """The provider of a request: the upstream in its base URL, else by its model among those that speak its format.

        None stands for a model that is not known, and for a path that is no format's. Raises `UnknownUpstream` and
        `FormatNotSpoken`.
        """
        if named is not None or format_ is None:
            provider = self.named(named)
            if format_ is not None and format_ not in provider.settings.speaks:
                raise self._not_spoken(format_, f"The upstream {provider.name!r} does not speak {format_}")
            return provider
        able = [provider for provider in self.all if format_ in provider.settings.speaks]
        believed = [provider for provider in able if provider.may_speak(format_, tenant)]
        found = self._first(model, format_, believed) or self._first(model, format_, able)
        if found is None:
            raise self._not_spoken(format_, f"No upstream speaks {format_}" + (f" for {model!r:.100}" if model else ""))
        return found

    def _by_model(self, model: str) -> Provider:
        """The provider of requests for a model that the default upstream could be sent, too."""
        return next((provider for provider in self.all if provider.serves(model)), self.default)

    def _first(self, model: str | None, format_: str, able: Sequence[Provider]) -> Provider | None:
        """The first that has the model, else the default one, else the first that is there for the format."""
        serving = (provider for provider in able if model is not None and provider.serves(model))
        default = (provider for provider in able if provider is self.default)
        meant = (provider for provider in able if format_ in provider.settings.is_meant_for)
        return next(chain(serving, default, meant), None)

    def _not_spoken(self, format_: str, what: str) -> FormatNotSpoken:
        able = ", ".join(provider.name for provider in self.all if format_ in provider.settings.speaks)
        others = f"Those that do: {able} (/u/{{name}}/v1)." if able else "None does."
        return FormatNotSpoken(f"{what} here (upstream.formats, upstreams.<name>.formats). {others}")

    def named(self, name: str | None) -> Provider:
        """The upstream in a base URL, the default one if it has none. Raises `UnknownUpstream`."""
        provider = self._by_name.get(DEFAULT_UPSTREAM if name is None else name)
        if provider is None:
            known = ", ".join(self._by_name)
            raise UnknownUpstream(f"There is no upstream {name!r} (/u/{{name}}/v1). Known here: {known}.")
        return provider

    def known(self, tenant: str, used: Iterable[str]) -> Mapping[str, list[Provider]]:
        """The models known by name to a tenant who used these, each with the upstreams that have something to tell."""
        used = list(used)
        found: dict[str, list[Provider]] = {}
        for provider in self.all:
            windows, listed = provider.windows, provider.windows.listings.names_for(tenant)
            for name in windows.names_for(tenant, used):
                learnt = windows.window_of(name, tenant).source == "learnt"
                if name in listed or learnt or self._by_model(name) is provider:
                    found.setdefault(name, []).append(provider)
        return found

    def in_force(self, stored: StoredCalibration) -> Calibration:
        """The correction of a tenant's estimates, as far as it is stored."""
        at = (provider for provider in self.all if provider.settings.base_url == stored.key.upstream)
        provider = next(at, None)  # None: it is in the settings no more.
        return provider.calibrations.in_force(stored.key, stored.calibration) if provider else stored.calibration

    async def start(self, calibrate: bool) -> None:
        """Begins to ask the providers for their windows; loads calibrations, if they are to be used."""
        for provider in self.all:
            provider.windows.start()
        if calibrate:
            await asyncio.gather(*(provider.calibrations.start() for provider in self.all))

    async def flush(self) -> None:
        """Stores what was learnt of all models. Raises `StoreUnavailable`."""
        for provider in self.all:
            await provider.calibrations.flush()

    async def forget(self, tenant: str) -> None:
        """Nothing that the tenant's answers taught before is stored any more."""
        for provider in self.all:
            await provider.calibrations.forget(tenant)

    async def stop(self) -> None:
        """Ends what runs beside the requests. Comes before the store is closed."""
        for provider in self.all:
            await provider.windows.stop()
        await asyncio.gather(*(provider.calibrations.stop() for provider in self.all))

    async def close(self) -> None:
        """Closes the connections."""
        for provider in self.all:
            await provider.upstream.close()
