"""`create_app(settings)`: the only place that picks concrete parts."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from app import __version__
from app.compaction.compactor import Compactor
from app.compaction.quotas import Quotas
from app.compaction.summariser import Summariser
from app.core.history.identity import Identity
from app.errors import InvalidRequest, MethodNotAllowed, StenoError, StorageUnavailable, UnknownPath
from app.headers.hops import new_instance
from app.memory.repeats import Repeats
from app.memory.sightings import Sightings
from app.providers.calibrations import Calibrations
from app.providers.checks import Finding, check_settings, judge_upstream, secret_beside
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
from app.proxy.record import LONGEST_PATH, REQUEST
from app.proxy.services import Services
from app.proxy.tenants import Tenants
from app.rest import compact, context, pins, search, tenant, usage
from app.rest.health import health_router
from app.rest.schema import methods_of, schema_of
from app.settings import DEFAULT_UPSTREAM, ConfigurationError, Settings, UpstreamSettings, problems_in
from app.settings.policies import Policies
from app.store import DatabaseUnusable, Store, StoreUnavailable
from app.store.database import read_url
from app.store.files import make_folder
from app.tasks.owned import OwnedTasks
from app.tasks.threads import Work
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer
from app.wire.chat_completions import Bounds, MessageReader

log = structlog.get_logger("steno")

SECRET_BYTES = 32


def create_app(settings: Settings) -> FastAPI:
    """The application. Raises `ConfigurationError` or `DatabaseURLError` for settings that cannot work together."""
    tokenizer = Tokenizer(settings.tokenizer.directory)
    _refuse_fatal(check_settings(settings, tokenizer.missing))
    identity = Identity(server_secret(settings))
    store = open_store(settings)
    instance = new_instance()
    providers = open_providers(settings, store, instance)
    tasks, ledger, work = OwnedTasks(), Ledger(store, settings.price_of), Work()
    summary, limits = settings.summary, settings.limits
    summariser = Summariser(summary.timeout_seconds, summary.reasoning_allowance, summary.parameters)
    quotas = Quotas(limits.compactions_per_tenant, limits.forced_compactions_per_minute, limits.summary_tokens_per_hour)
    services = Services(
        providers=providers,
        policies=policies_of(settings),
        store=store,
        identity=identity,
        reader=MessageReader(identity, settings.identity.ignore),
        estimator=Estimator(tokenizer),
        compactor=Compactor(store, summariser, tasks, work, ledger, quotas, holder=secrets.token_hex(8)),
        ledger=ledger,
        conversations=Conversations(store, identity),
        tasks=tasks,
        tenants=Tenants(identity, settings.server.allow_unauthenticated, settings.server.trusted_proxies),
        repeats=Repeats(),
        quotas=quotas,
        in_flight=BytesInFlight(limits.in_flight_bytes),
        work=work,
        bounds=Bounds(limits.values, limits.messages),
        limits=limits,
        naming=settings.identity,
        events=settings.events,
        calibration=settings.calibration,
        base_model=settings.base_model,
        overflow_retries=settings.compaction.overflow_retries,
    )
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
    for module in (compact, pins, search, tenant, usage, context):
        app.include_router(module.router)
    _add_error_handlers(app)
    chat, passthrough = ChatEndpoint(services), PassthroughEndpoint(services)
    app.add_middleware(
        Gate,
        chat=chat,
        passthrough=passthrough,
        instance=instance,
        door=Door(settings.server.host, settings.server.allowed_hosts, settings.server.allowed_origins),
        header_count=limits.header_count,
        header_bytes=limits.header_bytes,
    )
    app.state.services = services
    app.state.failure = None  # Why it could not start.
    return app


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
        windows = Windows(settings, at, upstream, store)
        usage: Sightings[str, StreamedUsage]
        usage = Sightings(STREAMED_USAGE_SECONDS, counts=windows.answered.__contains__)
        return Provider(name, at, upstream, windows, Calibrations(store, at.base_url), usage)

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


def server_secret(settings: Settings) -> bytes:
    """The key of all digests: as set, or made once beside the SQLite file. Raises `ConfigurationError`."""
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    address = read_url(settings.storage.url.get_secret_value())
    return _kept_secret(secret_beside(address.path)) if address.path else secrets.token_bytes(SECRET_BYTES)


def _kept_secret(path: Path) -> bytes:
    """Made once, readable by the owner only. Of two processes that start together one makes it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        with open(fresh, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(fresh, path)  # Fails if it is there already: never overwritten, never seen half written.
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"The server secret {path} cannot be made or read: {error.strerror}.") from error


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


def _no_route(app: FastAPI, request: Request) -> StenoError:
    path, method = request.scope["path"][:LONGEST_PATH], request.method
    if allowed := methods_of(app, request.scope):
        return MethodNotAllowed(f"{path} has no {method}; it has {', '.join(allowed)}.", allowed)
    return UnknownPath(f"Steno has no {path}; see /openapi.json for what it has.")


def _add_error_handlers(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, StenoError):
            shown = error
        elif isinstance(error, StoreUnavailable):
            shown = StorageUnavailable(f"The database cannot be used: {error.reason}.")
        elif isinstance(error, RequestValidationError):
            first = error.errors()[0]
            shown = InvalidRequest(f"{first['loc'][-1]}: {first['msg']}.", str(first["loc"][-1]))
        else:
            shown = _no_route(app, request)
        request.scope[REQUEST].failed(shown)
        headers = {name.decode(): value.decode() for name, value in shown.headers}
        return Response(shown.envelope, shown.status, headers)

    for kind in (StenoError, StoreUnavailable, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refuse)
