"""`create_app(settings)`: the only place that picks concrete parts."""

from __future__ import annotations

import asyncio
import gc
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import structlog
from fastapi import FastAPI
from pydantic import ValidationError

from app import __version__
from app.compaction.background import Background, BackgroundLimits
from app.compaction.compactor import Compactor
from app.compaction.paces import Paces
from app.compaction.quotas import Quotas
from app.compaction.summariser import Summariser
from app.core.history.identity import Identity
from app.headers.hops import new_instance
from app.memory.repeats import Repeats
from app.memory.sightings import Sightings
from app.providers.calibrations import Calibrations
from app.providers.diagnosis import judge_upstream
from app.providers.ledger import Ledger
from app.providers.providers import STREAMED_USAGE_SECONDS, Provider, Providers, StreamedUsage
from app.providers.upstream import HttpxUpstream
from app.providers.windows import Windows
from app.proxy.conversations import Conversations
from app.proxy.exchange import ChatEndpoint
from app.proxy.gate import Gate
from app.proxy.in_flight import BytesInFlight
from app.proxy.origins import Door
from app.proxy.passthrough import PassthroughEndpoint
from app.proxy.services import Services
from app.proxy.tenants import Tenants
from app.rest.error_handlers import add_error_handlers
from app.rest.health import health_router
from app.rest.routes import ROUTERS
from app.rest.schema import schema_of
from app.settings import DEFAULT_UPSTREAM, ConfigurationError, Settings, UpstreamSettings, problems_in
from app.settings.checks import Finding, check_settings
from app.settings.policies import Policies
from app.settings.secret import server_secret
from app.store import DatabaseUnusable, Store
from app.tasks.owned import OwnedTasks
from app.tasks.threads import Work
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer
from app.wire.format import BodyBounds
from app.wire.formats import FORMATS
from app.wire.reader import MessageReader

log = structlog.get_logger("steno")


def create_app(settings: Settings) -> FastAPI:
    """The application. Raises `ConfigurationError` or `DatabaseURLError` for settings that cannot work together."""
    instance = new_instance()
    services = open_services(settings, instance)
    app = FastAPI(
        title="Steno",
        version=__version__,
        summary="Keeps long conversations inside the model's context window.",
        docs_url=None,  # Its assets would come from a public CDN.
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_lifespan(services, settings.server.drain_seconds),
    )
    app.openapi = partial(schema_of, app)  # type: ignore[method-assign] # as FastAPI has it done
    app.include_router(health_router(services))
    for router in ROUTERS:
        app.include_router(router)
    add_error_handlers(app)
    chat, passthrough = ChatEndpoint(services), PassthroughEndpoint(services)
    app.add_middleware(
        Gate,
        chat=chat,
        passthrough=passthrough,
        formats=FORMATS,
        instance=instance,
        door=Door(settings.server.host, settings.server.allowed_hosts, settings.server.allowed_origins),
        header_count=settings.limits.header_count,
        header_bytes=settings.limits.header_bytes,
    )
    app.state.services = services
    app.state.failure = None  # Why it could not start.
    return app


def open_services(settings: Settings, instance: bytes) -> Services:
    """What the routes work with. Raises `ConfigurationError` or `DatabaseURLError`."""
    tokenizer = Tokenizer(settings.tokenizer.directory)
    _refuse_fatal(check_settings(settings, tokenizer.missing))
    identity = Identity(server_secret(settings))
    store = open_store(settings)
    providers = open_providers(settings, store, instance)
    tasks, ledger, work = OwnedTasks(), Ledger(store, settings.price_of), Work()
    summary, limits = settings.summary, settings.limits
    summariser = Summariser(summary.timeout_seconds, summary.reasoning_allowance, summary.parameters)
    quotas = Quotas(limits.compactions_per_tenant, limits.forced_compactions_per_minute, limits.summary_tokens_per_hour)
    paces = Paces()
    compactor = Compactor(store, summariser, tasks, work, ledger, quotas, paces, holder=secrets.token_hex(8))
    at_most = limits.background_compactions, limits.background_compactions_per_tenant, limits.background_bytes
    return Services(
        providers=providers,
        policies=policies_of(settings),
        store=store,
        identity=identity,
        formats=FORMATS,
        readers={each.name: MessageReader(identity, each.message, settings.identity.ignore) for each in FORMATS},
        estimator=Estimator(tokenizer),
        compactor=compactor,
        background=Background(compactor, paces, tasks, BackgroundLimits(*at_most)),
        ledger=ledger,
        conversations=Conversations(store, identity),
        tasks=tasks,
        tenants=Tenants(identity, settings.server.allow_unauthenticated, settings.server.trusted_proxies),
        repeats=Repeats(),
        quotas=quotas,
        in_flight=BytesInFlight(limits.in_flight_bytes),
        work=work,
        bounds=BodyBounds(limits.values, limits.messages),
        limits=limits,
        naming=settings.identity,
        events=settings.events,
        calibration=settings.calibration,
        base_model=settings.base_model,
        overflow_retries=settings.compaction.overflow_retries,
    )


def policies_of(settings: Settings) -> Policies:
    """Raises `ConfigurationError` where a preset and the settings beside it do not agree."""
    try:
        return Policies(settings)
    except ValidationError as error:
        raise ConfigurationError(f"Settings that cannot be used: {problems_in(error)}.") from error


def open_store(settings: Settings) -> Store:
    """Raises `DatabaseURLError`."""
    storage = settings.storage
    return Store.open(
        storage.url.get_secret_value(),
        timeout=storage.timeout_seconds,
        statement_cache=storage.statement_cache,
        retention_days=storage.retention_days,
        listen_notify=storage.listen_notify == "auto",
    )


def open_providers(settings: Settings, store: Store, instance: bytes) -> Providers:
    """Every upstream with connections of its own, to be asked as this instance; nothing is asked of it yet."""

    def provider(name: str, at: UpstreamSettings) -> Provider:
        upstream = _open_upstream(at, instance)
        windows = Windows(settings.models, settings.compaction.default_window, at, upstream, store)
        usage: Sightings[str, StreamedUsage]
        usage = Sightings(STREAMED_USAGE_SECONDS, counts=windows.answered.__contains__)
        return Provider(name, at, upstream, FORMATS[0].summaries, windows, Calibrations(store, at.base_url), usage)

    named = (provider(name, at) for name, at in settings.upstreams.items())
    return Providers(provider(DEFAULT_UPSTREAM, settings.upstream), *named)


def _open_upstream(settings: UpstreamSettings, instance: bytes) -> HttpxUpstream:
    key = settings.api_key
    return HttpxUpstream(
        settings.base_url,
        connect=settings.connect_seconds,
        first_byte=settings.first_byte_seconds,
        between_bytes=settings.between_bytes_seconds,
        instance=instance,
        key=key.get_secret_value() if key else None,
    )


def _refuse_fatal(findings: Iterable[Finding]) -> None:
    """Logs what is wrong. Raises `ConfigurationError` for the first thing that Steno does not start with."""
    for finding in findings:
        if finding.state == "fatal":
            raise ConfigurationError(finding.sentence)
        _log_finding(finding)


def _log_finding(finding: Finding) -> None:
    if finding.state != "ok":
        log.warning("check failed", subject=finding.subject, found=finding.text, remedy=finding.remedy)


async def _check_upstreams(providers: Providers) -> None:
    """How each answered the question for its models: a wrong base URL shows at once, and not with the first chat."""
    for provider in providers.all:
        if (told := await provider.windows.first_told()) is not None:
            _log_finding(await judge_upstream(provider, told, provider.settings.api_key_env))


def _lifespan(services: Services, drain_seconds: float) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await services.store.start()
        except DatabaseUnusable as error:
            app.state.failure = str(error)
            raise
        services.estimator.make_ready("gpt-4o")  # What most models are counted with.
        await services.providers.start(calibrate=services.calibration.enabled)
        checking = asyncio.ensure_future(_check_upstreams(services.providers))
        # What was made so far stays: the collector need not look at it again on every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        try:
            yield
        finally:
            checking.cancel()
            await services.tasks.drain(drain_seconds)
            await services.providers.stop()
            await services.providers.close()
            await services.store.close()
            await services.work.stop()

    return lifespan
