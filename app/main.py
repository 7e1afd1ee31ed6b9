"""`create_app(settings)` builds the application. Only this module creates and connects the application's objects."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from app import __version__
from app.api import compactions, conversations, mcp, models, usage
from app.api.dependencies import add_error_handlers
from app.api.health import health_router
from app.api.openapi import ERRORS, schema_of
from app.checks import Finding, check_database, check_settings, check_upstream, install_command
from app.compaction.background import Background, BackgroundRoom, RequestRates
from app.compaction.caches import ChunkMemory, RecallIndexCache
from app.compaction.compactor import Compactor
from app.compaction.summariser_client import Summariser, SummaryRouting
from app.conversation.identity import Identity
from app.formats.paths import FORMATS, format_at, keeps_version, key_headers, mark_of
from app.formats.reader import MessageReader
from app.http.admission import BytesInFlight, HostPolicy
from app.http.headers import new_instance
from app.http.upstream import CONNECT_SECONDS, Upstream
from app.inspector import conversations as conversation_pages
from app.inspector import overview, sessions, setup
from app.inspector.sessions import Inspector, Sessions
from app.providers.bundled_models import tariff as list_tariff
from app.providers.calibrations import Calibrations
from app.providers.ledger import Ledger
from app.providers.providers import Provider, Providers
from app.providers.windows import Windows
from app.proxy.caller import Authenticator
from app.proxy.conversation_ids import Conversations
from app.proxy.endpoint import ChatEndpoint, CountingEndpoint, PassthroughEndpoint
from app.proxy.exchange import Services
from app.proxy.request import ModelLimits
from app.proxy.router import Router
from app.runtime.caches import Caches, LogThrottle
from app.runtime.tasks import OwnedTasks, WorkerThreads, keep_heap_small, return_freed_memory
from app.settings import ConfigurationError, Settings, UpstreamSettings
from app.settings.compaction import Policies
from app.settings.storage import open_store, server_secret, tables_folder
from app.settings.upstreams import base_model
from app.store import DatabaseUnusable, Store
from app.telemetry.metrics import CACHES, Metrics, Sampler
from app.tokens.costs import Tariff
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from app.telemetry.traces import Tracer

log = structlog.get_logger("steno")

TRACES_EXPORTER = "OTEL_TRACES_EXPORTER"
"""Environment variable of OpenTelemetry: `otlp` switches traces on."""


class Application(FastAPI):
    """FastAPI application with Steno's own routes. Every HTTP request first passes `entry`, Steno's router."""

    entry: Router
    operators_entry: Router
    """Router of requests to the listener in `server.admin`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.entry(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(settings: Settings, *, reports: bool = True) -> Application:
    """Make the application. Raises `ConfigurationError` or `DatabaseURLError` for invalid settings.

    `reports`: whether to log problems of the settings; only the first worker does.
    """
    instance, metrics = new_instance(), Metrics()
    services = open_services(settings, instance, metrics, reports=reports)
    app = Application(
        title="Steno",
        version=__version__,
        summary="Keeps long conversations inside the model's context window.",
        docs_url=None,  # FastAPI's page loads assets from a public CDN; the inspector has its own page.
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        redirect_slashes=False,
        responses=ERRORS,
        lifespan=_lifespan(services, settings.server.drain_seconds, reports=reports),
    )
    app.openapi = partial(schema_of, app)  # type: ignore[method-assign] # FastAPI's documented way
    app.include_router(health_router(services, metrics))
    for part in (conversations, compactions, usage, models, mcp):
        app.include_router(part.router)
    if settings.inspector.enabled:
        add_inspector(app, settings, services)
    add_error_handlers(app)
    chat, counting = ChatEndpoint(services), CountingEndpoint(services)
    ways = super(Application, app).__call__, chat, counting, PassthroughEndpoint(services)
    server, verbose = settings.server, settings.log.level == "debug"
    hosts = HostPolicy(server.host, server.allowed_hosts, server.allowed_origins)
    through = partial(Router, *ways, formats=FORMATS, instance=instance, hosts=hosts, metrics=metrics, verbose=verbose)
    app.entry = through(listener="callers" if server.admin else None)
    app.operators_entry = through(listener="operator")
    app.state.services = services
    app.state.failure = None  # Reason if the start failed.
    return app


def add_inspector(app: FastAPI, settings: Settings, services: Services) -> None:
    wrong = [each for each in check_settings(settings, services.estimator.heuristics) if each.state != "ok"]
    password = settings.inspector.password
    signing = Sessions(server_secret(settings), None if password is None else password.get_secret_value())
    app.state.inspector = Inspector(services, signing, tuple(wrong), settings.server.port)
    for subject in (setup, overview, conversation_pages, sessions):
        app.include_router(subject.router)


def open_services(settings: Settings, instance: bytes, metrics: Metrics, *, reports: bool) -> Services:
    """Make the objects that the routes use. Raises `ConfigurationError` or `DatabaseURLError`."""
    tokenizer = Tokenizer(tables_folder())
    _refuse_fatal(check_settings(settings, tokenizer.missing), reports=reports)
    secret = server_secret(settings)
    identity = Identity(secret)
    caches = Caches(settings.limits.cache_bytes)
    store = open_store(settings, metrics.database_seconds.observe, secret)
    providers = open_providers(settings, store, instance)
    tasks, work = OwnedTasks(), WorkerThreads(afterwards=return_freed_memory, waited=metrics.thread_waits.observe)
    ledger = Ledger(store.writes, tariffs_of(settings), metrics)
    summary, limits = settings.summary, settings.limits
    tracer = open_tracer()
    summariser = Summariser(summary.timeout_seconds, summary.parameters, tracer=tracer)
    policies, estimator, rates = Policies(settings), Estimator(tokenizer, caches), RequestRates()
    room = BackgroundRoom()
    base_of = partial(base_model, settings.models)
    routing = SummaryRouting(providers, estimator, base_of)
    memory = ChunkMemory(caches)
    holder = secrets.token_hex(8)
    most = limits.compactions_per_tenant
    used = store, summariser, routing, tasks, work, ledger, metrics, rates, memory, most, holder
    compactor = Compactor(*used, recall_index=RecallIndexCache(work, caches))
    in_flight = BytesInFlight(limits.in_flight_bytes)
    readers = {
        each.name: MessageReader(identity, each.message, settings.identity.ignore, caches, mark=mark_of(each))
        for each in FORMATS
    }
    return Services(
        providers=providers,
        model_limits=ModelLimits(providers, policies, estimator, base_of),
        store=store,
        identity=identity,
        formats=FORMATS,
        readers=readers,
        estimator=estimator,
        compactor=compactor,
        background=Background(compactor.make_ahead, routing, rates, room, tasks),
        ledger=ledger,
        conversations=Conversations(store, identity, caches),
        tasks=tasks,
        authenticator=authenticator_of(settings, identity),
        throttle=LogThrottle(),
        in_flight=in_flight,
        work=work,
        limits=limits,
        events=settings.events,
        base_model=base_of,
        keeps_messages=settings.storage.messages,
        tracer=tracer,
        sampler=sampler_of(metrics, store, summariser, in_flight, caches),
    )


def authenticator_of(settings: Settings, identity: Identity) -> Authenticator:
    clients, server = settings.clients, settings.server
    return Authenticator(
        identity,
        server.allow_unauthenticated,
        server.trusted_proxies,
        header=clients.header.encode() if clients.header else None,
        tenant=clients.tenant,
        operator_pays=settings.operator_pays,
    )


def sampler_of(
    metrics: Metrics, store: Store, summariser: Summariser, in_flight: BytesInFlight, caches: Caches
) -> Sampler:
    writes = store.writes
    queues = {"requests": writes.conversations, "usage": writes.usage, "histories": writes.histories}
    return Sampler(
        {
            metrics.database_up: lambda: store.reason is None,
            metrics.database_writable: lambda: store.remedy is None,
            **{metrics.records_waiting[kind]: partial(getattr, queue, "number") for kind, queue in queues.items()},
            metrics.paused: lambda: summariser.paused,
            metrics.in_flight: lambda: in_flight.held_bytes,
            **{metrics.cache_bytes[name]: partial(caches.bytes_of.__getitem__, name) for name in CACHES},
        },
        {metrics.records_dropped[kind]: partial(getattr, queue, "dropped") for kind, queue in queues.items()},
    )


def tariffs_of(settings: Settings) -> Callable[[str, str], Tariff | None]:
    """Return the function that looks up prices: in the setting `prices`, or in the list prices if `prices` is empty."""
    if settings.prices != ():
        return settings.tariff_of
    return lambda *models: list_tariff(*(base_model(settings.models, each) for each in models))


def open_tracer() -> Tracer | None:
    """Make the tracer if traces are switched on. Raises `ConfigurationError` if OpenTelemetry is not installed."""
    if os.environ.get(TRACES_EXPORTER) != "otlp":
        return None
    try:
        from app.telemetry import traces  # noqa: PLC0415 - an extra, imported only if used
    except ImportError as error:
        raise ConfigurationError(
            f"{TRACES_EXPORTER} is otlp, which needs the extra `otel`: {install_command('otel')}."
        ) from error
    return traces.Tracer(format_at)


def open_providers(settings: Settings, store: Store, instance: bytes) -> Providers:
    """Make all upstreams, each with its own connections. No request is sent yet."""
    calibrations = Calibrations(store)

    def provider(name: str, at: UpstreamSettings) -> Provider:
        formats = tuple(format_ for format_ in FORMATS if format_.name in at.speaks)
        upstream, alone = _open_upstream(at, instance, settings.clients.header), len(at.speaks) == len(formats) == 1
        # Headers that an API needs in every request are needed for its list of models, too.
        default_headers = formats[0].summaries.spec.summary.headers if alone else ()
        windows = Windows(settings.models, at, upstream, store, default_headers=default_headers)
        return Provider(name, at, upstream, formats, windows, calibrations)

    return Providers(*(provider(name, at) for name, at in settings.all_upstreams.items()))


def _open_upstream(settings: UpstreamSettings, instance: bytes, callers_header: str | None) -> Upstream:
    key = settings.api_key
    return Upstream(
        settings.base_url,
        connect=CONNECT_SECONDS,
        first_byte=settings.first_byte_seconds,
        between_bytes=settings.between_bytes_seconds,
        instance=instance,
        key=partial(key_headers, key.get_secret_value().encode(), settings.speaks) if key else None,
        withheld=callers_header.encode() if callers_header else None,
        keeps_version=partial(keeps_version, settings.speaks),
    )


def _refuse_fatal(findings: Iterable[Finding], *, reports: bool) -> None:
    """Log problems if `reports`. Raises `ConfigurationError` for the first problem that prevents the start."""
    for finding in findings:
        if finding.state == "fatal":
            raise ConfigurationError(finding.sentence)
        if reports:
            _log_finding(finding)


def _log_finding(finding: Finding) -> None:
    if finding.state != "ok":
        log.warning("check failed", subject=finding.subject, found=finding.text, remedy=finding.remedy)


async def _check_services(services: Services) -> None:
    """Log problems of the database, except an outage, which the store logs. Log problems that an upstream's list of
    models shows, so that the operator sees a wrong base URL before the first chat."""
    if (found := await check_database(services.store)).state == "warning":
        _log_finding(found)
    for provider in services.providers.all:
        if (listed := await provider.windows.listings.first_outcome()) is not None:
            _log_finding(check_upstream(provider, listed, provider.settings.api_key_env))


def _lifespan(
    services: Services, drain_seconds: float, *, reports: bool
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        keep_heap_small()
        try:
            await services.store.start()
        except DatabaseUnusable as error:
            app.state.failure = str(error)
            raise
        await services.providers.start()
        checking = asyncio.ensure_future(_check_services(services)) if reports else None
        sampling = asyncio.ensure_future(services.sampler.run())
        # The objects made so far live until the process ends, so the garbage collector need not scan them again.
        gc.collect()
        return_freed_memory()
        gc.freeze()
        # A pass over 50,000 young objects stops all requests for 8 ms, over 5,000 for under 1 ms. The sum is equal.
        gc.set_threshold(5_000, 50, 50)
        try:
            yield
        finally:
            if checking is not None:
                checking.cancel()
            sampling.cancel()
            await services.tasks.drain(drain_seconds)
            await services.providers.stop()
            await services.providers.close()
            await services.store.close()
            await services.work.stop()
            if services.tracer is not None:
                await asyncio.to_thread(services.tracer.close)

    return lifespan
