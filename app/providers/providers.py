"""Providers: every upstream with what is known of it, and which of them a request goes to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import Enum

import structlog

from app.errors import FormatNotSpoken, LoopDetected, StenoError, UnknownUpstream, UpstreamUnreachable
from app.formats.format import WireFormat
from app.formats.refusals import says_no_such_path
from app.http.upstream import Upstream
from app.providers.calibrations import Calibrations
from app.providers.model_listings import ListingOutcome, ListingRefused, ModelListing
from app.providers.windows import Windows
from app.runtime.tenant_facts import TenantFacts
from app.settings import DEFAULT_UPSTREAM, NamedUpstreamSettings, UpstreamSettings
from app.settings.checks import POINT_AT_PROVIDER, Finding
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


PROBE_SECONDS = 5.0
"""Longest wait for the answer to an empty request, which shows whether a path is there."""


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
        self.streamed_usage: TenantFacts[tuple[str, str], StreamedUsage] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """How each model's streams in a format report their usage."""
        self.adds_output: TenantFacts[tuple[str, str], bool] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Formats and models whose output cap counts against the window beside the prompt."""
        self._alternating: TenantFacts[tuple[str, str], bool] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Formats and models that refused two messages of one role in a row."""
        self._refused_thinking: TenantFacts[tuple[str, str, bytes], int] = TenantFacts(LEARNT_SECONDS, counts=counts)
        """Number of messages up to which thinking was refused, by format, model and digest of the turn's beginning,
        which is empty for any turn."""
        self._unspoken: TenantFacts[str, bool] = TenantFacts(UNSPOKEN_SECONDS, counts=counts)
        """Formats whose path was missing."""

    def demands_alternation(self, format_: str, model: str, tenant: str) -> bool:
        return self._alternating.find(tenant, (format_, model)) is not None

    def learn_alternation(self, format_: str, model: str, tenant: str) -> None:
        if len(model) > LONGEST_MODEL:
            return
        if not self.demands_alternation(format_, model, tenant):
            log.info("upstream refuses two messages of one role in a row", upstream=self.name, model=model)
        self._alternating.learn(tenant, (format_, model), True)

    def thinking_from(self, tenant: str, format_: str, model: str, turn: bytes) -> int:
        """Position from which on a model was not yet seen to refuse the thinking of a turn, or of any turn."""
        return self._refused_thinking.own(tenant, (format_, model, turn)) or 0

    def learn_refused_thinking(self, tenant: str, format_: str, model: str, turn: bytes, messages: int) -> None:
        if len(model) <= LONGEST_MODEL:
            self._refused_thinking.learn(tenant, (format_, model, turn), messages)
            self._refused_thinking.learn(tenant, (format_, model, b""), messages)

    def may_speak(self, format_: str, tenant: str) -> bool:
        """True if the settings and all answers so far allow that the provider speaks the format."""
        return format_ in self.settings.speaks and self._unspoken.find(tenant, format_) is None

    def lacks(self, format_: str, tenant: str) -> None:
        if self._unspoken.own(tenant, format_) is None:
            log.warning("upstream does not speak a format", upstream=self.name, format=format_)
        self._unspoken.learn(tenant, format_, True)

    def format_for(self, own: WireFormat, tenant: str) -> WireFormat:
        """The format in which it is asked for summaries of conversations in `own`: the same, where it speaks that."""
        able = [each for each in self.formats if self.may_speak(each.name, tenant)]
        return own if own in able else next(iter(able), own)

    def largest_body(self, format_: WireFormat) -> int:
        known = [size for ending, size in LARGEST_BODIES.items() if self.host.endswith(ending)]
        return min(known, default=format_.spec.largest_body)

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
        for among in (believed, able):
            for provider in among:
                if model is not None and provider.serves(model):
                    return provider
            if self.default in among:
                return self.default
            for provider in among:
                if format_ in provider.settings.is_meant_for:
                    return provider
        raise self._not_spoken(format_, f"No upstream speaks {format_}" + (f" for {model!r:.100}" if model else ""))

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
        """Models by name that a tenant used or upstreams list, each with the upstreams that know or serve it."""
        used = list(used)
        found: dict[str, list[Provider]] = {}
        for provider in self.all:
            windows, listed = provider.windows, provider.windows.listings.names_for(tenant)
            for name in windows.names_for(tenant, used):
                learnt = windows.window_of(name, tenant).source == "learnt"
                serving = next((each for each in self.all if each.serves(name)), self.default)
                if name in listed or learnt or serving is provider:
                    found.setdefault(name, []).append(provider)
        return found

    def in_force(self, stored: StoredCalibration) -> Calibration:
        """The calibration in use: the stored one, or with the line that tenants agree on."""
        at = (provider for provider in self.all if provider.settings.base_url == stored.key.upstream)
        provider = next(at, None)  # None: it is in the settings no more.
        return provider.calibrations.in_force(stored.key, stored.calibration) if provider else stored.calibration

    async def start(self) -> None:
        """Begin to ask the providers for their windows, and load calibrations."""
        for provider in self.all:
            provider.windows.start()
        await asyncio.gather(*(provider.calibrations.start() for provider in self.all))

    async def flush(self) -> None:
        """Store the waiting calibration samples. Raises `StoreUnavailable`."""
        for provider in self.all:
            await provider.calibrations.flush()

    async def forget(self, tenant: str) -> None:
        """Forget what the tenant's answers taught; nothing of it is stored any more."""
        for provider in self.all:
            await provider.calibrations.forget(tenant)

    async def stop(self) -> None:
        """End the background tasks. Call it before the store is closed."""
        for provider in self.all:
            await provider.windows.stop()
        await asyncio.gather(*(provider.calibrations.stop() for provider in self.all))

    async def close(self) -> None:
        for provider in self.all:
            await provider.upstream.close()


# What a provider's answer to the question for its models says about how it is set


async def judge_upstream(provider: Provider, listed: ListingOutcome, key_in: str | None) -> Finding:
    """Any answer shows that the provider is there; only some list its models.

    `key_in` is the variable whose key it was asked with. An API that is not at the base URL is looked for.
    """
    subject = f"upstream{suffix(provider)} {provider.settings.base_url}"
    section = "upstream" if provider.name == DEFAULT_UPSTREAM else f"upstreams.{provider.name}"
    address, found = f"{section}.base_url", "lists no models"
    match listed:
        case StenoError():
            why = f" ({listed.__cause__})" if listed.__cause__ and str(listed.__cause__) else ""
            what = listed.what if isinstance(listed, UpstreamUnreachable) else listed.message
            remedy = f"Check {address}, and that this machine may connect to it."
            return Finding("problem", subject, f"{what}{why}", remedy)
        case ModelListing(models=models) if models:
            return Finding("ok", subject, f"reachable, lists {len(models)} models")
        case ListingRefused(status=LoopDetected.status):
            text = f"leads back to a Steno that the request went through already ({listed.status})"
            return Finding("problem", subject, text, POINT_AT_PROVIDER)
        case ListingRefused(wants_key=True) if key_in is None:
            return Finding("ok", subject, f"reachable; without a key it does not list its models ({listed.status})")
        case ListingRefused(wants_key=True):
            return Finding(
                "warning", subject, f"reachable, but refuses the key in {key_in} ({listed.status})", "Check it."
            )
        case ListingRefused(status=200 | 404 | 405 as status):
            found = f"has no list of models at /models ({'no JSON' if status == 200 else status})"
        case ListingRefused(status=status):
            return Finding("warning", subject, f"reachable, but answers with status {status}", "Ask the provider.")
    return await _judge_path(provider, listed, subject, address, found)


async def _judge_path(provider: Provider, listed: object, subject: str, address: str, found: str) -> Finding:
    """Judge a base URL below which there is no list of models, or an empty one: the path of `address` may be wrong."""
    if (elsewhere := await provider.windows.listings.find_base_url()) is not None:
        text = f"{found}, but there is one at {elsewhere}"
        return Finding("problem", subject, text, f"Set {address} to {elsewhere}.")
    if isinstance(listed, ListingRefused) and listed.status == 200:
        remedy = f"Check {address}: it is the API's address, with its path (most end in /v1), not a web site's."
        return Finding("problem", subject, f"reachable, but {found}", remedy)
    if isinstance(listed, ListingRefused) and (paths := await _missing_paths(provider)):
        remedy = f"Check the path of {address}: most end in /v1."
        return Finding("problem", subject, f"reachable, but {found}, and nothing at {' or '.join(paths)}", remedy)
    remedy = f"Check the path of {address} (most end in /v1); some providers have no list of models."
    return Finding("warning", subject, f"reachable, but {found}", remedy)


async def _missing_paths(provider: Provider) -> list[str]:
    """Paths of its formats, below the base URL, if none of them is there; otherwise nothing.

    An empty request is sent to each: it costs nothing, and is refused in another way where there is such a path.
    """
    headers = [(b"content-type", b"application/json")]
    paths = [format_.path for format_ in provider.formats if format_.spec.address is None]
    for path in paths:
        try:
            answer = await provider.upstream.ask(path, headers, PROBE_SECONDS, b"{}")
        except StenoError:
            return []
        if not says_no_such_path(answer.status, answer.body):
            return []
    return [path.decode().removeprefix("/v1") for path in paths]


def suffix(provider: Provider) -> str:
    """Ending of the names of an upstream's findings; empty for the default one."""
    return "" if provider.name == DEFAULT_UPSTREAM else f" {provider.name}"
