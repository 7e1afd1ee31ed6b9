"""Providers: every upstream with what is known of it, and which of them a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlsplit

from app.core.tokens.calibration import Calibration
from app.errors import UnknownUpstream
from app.memory.sightings import Sightings
from app.providers.calibrations import Calibrations
from app.providers.upstream import Upstream
from app.providers.windows import Windows
from app.settings import DEFAULT_UPSTREAM, NamedUpstreamSettings, UpstreamSettings
from app.store import StoredCalibration
from app.wire.format import SummaryDialect

STREAMED_USAGE_SECONDS = 24 * 3600.0
"""So long it is remembered how a model's streams tell their usage."""


class StreamedUsage(Enum):
    """How a model's streams come to tell what they cost."""

    UNASKED = "unasked"
    WHEN_ASKED = "when asked"
    REFUSED = "refused"
    """It does not take the question."""


@dataclass(frozen=True, slots=True, eq=False)
class Provider:
    """One upstream. What is learnt of a model is learnt of it there: another one may serve it with other limits."""

    name: str
    settings: UpstreamSettings
    upstream: Upstream
    summaries: SummaryDialect
    """How it is asked for one."""
    windows: Windows
    calibrations: Calibrations
    streamed_usage: Sightings[str, StreamedUsage]
    """How each model's streams tell their usage, as far as it was seen."""

    host: str = field(init=False)
    """Where it is: some hosts put less into a prompt than others."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "host", urlsplit(self.settings.base_url).hostname or "")

    @property
    def revision(self) -> int:
        """Rises whenever a request to it may be measured otherwise than before."""
        return self.windows.revision + self.calibrations.revision

    def serves(self, model: str) -> bool:
        """Whether one of its globs is about the model. The default one has none."""
        return isinstance(self.settings, NamedUpstreamSettings) and self.settings.fits(model)


class Providers:
    """All of them, in the order in which they are asked whether they serve a model."""

    def __init__(self, default: Provider, *others: Provider) -> None:
        self.default = default
        self.all = (default, *others)
        self._by_name = {provider.name: provider for provider in self.all}

    def of(self, model: str, named: str | None = None) -> Provider:
        """Where a chat goes: to the upstream in its base URL, else by its model. Raises `UnknownUpstream`."""
        if named is not None:
            return self.named(named)
        return next((provider for provider in self.all if provider.serves(model)), self.default)

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
            windows = provider.windows
            for name in windows.names_for(tenant, used):
                learnt = windows.of(name, tenant).source == "learnt"
                if windows.listed(name, tenant) or learnt or self.of(name) is provider:
                    found.setdefault(name, []).append(provider)
        return found

    def in_force(self, stored: StoredCalibration) -> Calibration:
        """What a tenant's estimates are corrected by, as far as it is stored."""
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

    async def stop(self) -> None:
        """Ends what runs beside the requests. Comes before the store is closed."""
        for provider in self.all:
            await provider.windows.stop()
        await asyncio.gather(*(provider.calibrations.stop() for provider in self.all))

    async def close(self) -> None:
        """Closes the connections."""
        for provider in self.all:
            await provider.upstream.close()
