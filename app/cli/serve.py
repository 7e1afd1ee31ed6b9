"""`steno serve`: binds the port, then serves with one process, or with several under uvicorn's supervisor."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from threading import Thread
from types import FrameType
from typing import Annotated

import structlog
import typer
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE
from uvicorn.server import ServerState
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app import __version__
from app.cli import ports
from app.cli.command import Config, DatabaseURL, Upstream, commands, fail, settings_of
from app.cli.logs import configure_logging, is_readable
from app.cli.ports import Taken
from app.http.protocol import protocol_within
from app.main import create_app
from app.proxy.exchange import Services
from app.settings import ConfigurationError, Settings
from app.store import StoreError
from app.telemetry.metrics import FOLDER

log = structlog.get_logger("steno")

SPARE_FILES = 200
"""Open files in addition to connections: the database, logs, and connections above the limit."""
LET_IN = 0.2
"""Share of `server.drain_seconds` for which a stopping process accepts new requests at most."""
QUIET_SECONDS = 0.25
"""Seconds without new requests after which a stopping process closes its listener."""
SWITCH_SECONDS = 0.0005
"""Maximum seconds that a worker thread keeps the interpreter while the event loop waits for it. With Python's default
of 5 ms, requests took twice as long while a thread was busy."""

cli = commands()


@cli.command()
def serve(
    upstream: Upstream = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (8080).")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that serve there (1).")] = None,
    config: Config = None,
    database_url: DatabaseURL = None,
) -> None:
    """Start the proxy."""
    settings = settings_of(
        config,
        server={"host": host, "port": port, "workers": workers},
        upstream={"base_url": upstream},
        storage={"url": database_url},
    )
    configure_logging(settings.log.level, settings.log.format)
    try:
        taken = ports.take_all(settings.server)
    except OSError as error:
        fail(ports.cannot_listen(settings, error))
    settings = settings.model_copy(update={"limits": settings.limits.of_each(settings.server.workers)})
    _allow_files(settings.limits.connections)
    on_terminal = is_readable(settings.log.format) and sys.stdout.isatty()
    settings, password = with_password(settings) if on_terminal else (settings, None)
    try:
        if settings.server.workers > 1:
            problem = serve_in_workers(settings, taken, password)
        else:
            problem = Server(settings, taken, password).run_until_stopped()
    except (ConfigurationError, StoreError) as error:
        problem = str(error)
    if problem is not None:
        fail(problem)


def _allow_files(connections: int) -> None:
    """Raise the limit of open files: each request has two connections, and the usual limit is 1,024 files."""
    wanted = 2 * connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "too few open files for limits.connections",
            connections=connections,
            allowed=allowed,
            wanted=wanted,
            remedy="Raise the limit of open files (ulimit -Hn), or lower limits.connections.",
        )


def with_password(settings: Settings) -> tuple[Settings, str | None]:
    """Return settings with an inspector password, and the password if it was generated here, to show the operator."""
    if settings.inspector.password is not None or not settings.inspector.enabled:
        return settings, None
    made = token_urlsafe(12)
    inspector = settings.inspector.model_copy(update={"password": SecretStr(made)})
    return settings.model_copy(update={"inspector": inspector}), made


def _config_of(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's configuration for one listener. Each listener has its own limit of connections."""
    config = uvicorn.Config(
        app,
        # Not h11, which accepts a length beside chunks: that allows request smuggling.
        http=protocol_within(settings.limits.receive_seconds, settings.limits.connections),
        # Not FORWARDED_ALLOW_IPS in the environment, but server.trusted_proxies decides whose headers are trusted.
        proxy_headers=False,
        log_config=None,
        access_log=False,
        # The provider's headers are kept; the router adds missing ones.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_seconds)),
        lifespan="on",
    )
    config.load()
    return config


class Server(uvicorn.Server):
    """uvicorn's server with up to two listeners, a start message, and a readiness check that fails while it stops."""

    def __init__(self, settings: Settings, taken: Taken, password: str | None = None, *, reports: bool = True) -> None:
        """`reports`: print the start message, and log problems of the settings. Raises `ConfigurationError` and
        `StoreError`."""
        sys.setswitchinterval(SWITCH_SECONDS)
        app = create_app(settings, reports=reports)
        super().__init__(_config_of(settings, app))
        self._settings = settings
        self._taken = taken
        self._password = password
        self._reports = reports
        self._app = app
        self._services: Services = app.state.services
        self._operators_config = _config_of(settings, app.operators_entry)
        self._operators_state = ServerState()
        """Connections of the operator's listener, counted apart from those of callers."""
        self._operators_state.tasks = self.server_state.tasks
        self._failure: str | None = None

    def run_until_stopped(self) -> str | None:
        """Serve until stopped. Return the reason for a failed start, or None."""
        # After a shutdown uvicorn raises the signal again, which would end the process with a failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        with suppress(SystemExit):  # Raised by uvicorn after a failed start.
            self.run(self._taken.callers)
        if self.started:
            return None
        failure: str | None = self._app.state.failure
        return failure or self._failure or "The start failed; the log says why."

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.tasks.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
            self.servers += [await self._listen_for_operators(each) for each in self._taken.operator]
        except OSError as error:  # Another program has begun to listen since the socket was bound.
            self._failure = ports.cannot_listen(self._settings, error)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        if self._reports:
            self._announce()

    async def _listen_for_operators(self, listener: socket.socket) -> asyncio.base_events.Server:
        loop, config = asyncio.get_running_loop(), self._operators_config

        def protocol() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(  # type: ignore[call-arg] # as uvicorn calls it
                config=config, server_state=self._operators_state, app_state=self.lifespan.state
            )
            return made

        return await loop.create_server(protocol, sock=listener, backlog=config.backlog)

    def _announce(self) -> None:
        """Report addresses, providers, database and other facts: in one log line, or as the banner for people."""
        settings, services, workers = self._settings, self._services, self._settings.server.workers
        loop = type(asyncio.get_running_loop()).__module__.partition(".")[0]
        http = self.config.http_protocol_class.__name__
        callers, operator = self._taken
        admin = ports.url_of(operator[0], nearby=True) if operator else None
        if is_readable(settings.log.format):
            url = ports.url_of(callers[0], nearby=True)
            runs_on = f"{workers} {'worker' if workers == 1 else 'workers'}, {loop}, {http}"
            missing = tuple(services.estimator.heuristics)
            sys.stdout.write(banner(settings, url, services.store.place, runs_on, missing, self._password, admin))
            sys.stdout.flush()
            return
        log.info(
            "serving",
            version=__version__,
            url=f"{ports.url_of(callers[0])}/v1",
            admin=admin,
            upstream=settings.upstream.base_url,
            database=services.store.place,
            workers=workers,
            loop=loop,
            http=http,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self._operators_state.connections):
            connection.shutdown()
        await self._let_in()
        await super().shutdown(sockets)

    async def _let_in(self) -> None:
        """Serve new requests until none arrive. A load balancer needs seconds to notice that this process stops, and
        cannot repeat requests that it sends to a closed listener."""
        state, began = self.server_state, time.monotonic()
        while time.monotonic() < began + self._settings.server.drain_seconds * LET_IN:
            seen = state.total_requests, set(state.connections)
            await asyncio.sleep(QUIET_SECONDS)
            if seen == (state.total_requests, set(state.connections)):
                break
        left = self._settings.server.drain_seconds - (time.monotonic() - began)
        self.config.timeout_graceful_shutdown = max(1, round(left))


# Several processes at one address, under uvicorn's supervisor, with these changes: each worker is a `Server` with two
# listeners. The first worker starts alone, so that an error of settings or database is reported once. A worker that
# ends later is replaced, whatever its exit status. Workers stop if their supervisor is killed.


def serve_in_workers(settings: Settings, taken: Taken, password: str | None) -> str | None:
    """Serve until stopped. Return the reason for a failed start, or None. Exit with status 1 if the first worker could
    not start; the worker has printed the reason."""
    if ports.SPREADS:
        ports.share((*taken.callers, *taken.operator))
    supervisor = Supervisor(settings, taken, password)
    try:
        folder = TemporaryDirectory(prefix="steno-metrics-")
    except OSError as error:
        return f"Several workers need a folder for their metrics: {error.strerror}. Set TMPDIR to a writable one."
    with folder as path:
        os.environ[FOLDER] = path
        supervisor.run()
    if supervisor.has_failed:
        sys.exit(1)
    return None


class Worker(Process):
    def __init__(
        self, config: uvicorn.Config, settings: Settings, taken: Taken, password: str | None, *, reports: bool
    ) -> None:
        """See `Server` for `password` and `reports`."""
        super().__init__(config, [])
        self._settings = settings
        self._taken = taken
        self._password = password
        self._reports = reports
        self.began = time.monotonic()

    def target(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - `Taken` has the sockets
        self.parent_conn.close()
        configure_logging(self._settings.log.level, self._settings.log.format)
        failure: str | None
        try:
            taken = Taken(*map(ports.beside, self._taken)) if ports.SPREADS else self._taken
            self._server = server = Server(self._settings, taken, self._password, reports=self._reports)
        except OSError as error:
            failure = ports.cannot_listen(self._settings, error)
        except (ConfigurationError, StoreError) as error:
            failure = str(error)
        else:
            Thread(target=self.always_pong, daemon=True).start()
            failure = server.run_until_stopped()
        if failure is not None:
            sys.stderr.write(f"steno: {failure}\n")
            sys.exit(STARTUP_FAILURE)

    def always_pong(self) -> None:
        """Answer the supervisor's health checks; stop the worker once the supervisor has ended."""
        with suppress(EOFError, OSError):
            super().always_pong()
        os.kill(os.getpid(), signal.SIGTERM)


class Supervisor(Multiprocess):
    def __init__(self, settings: Settings, taken: Taken, password: str | None) -> None:
        # The workers create their own configurations.
        super().__init__(uvicorn.Config("app.main:app", workers=settings.server.workers, log_config=None), [])
        self._settings = settings
        self._taken = taken
        self._password = password
        self.workers: list[Worker] = []
        self.processes = self.workers  # type: ignore[assignment] # a list of its base class, in uvicorn
        self.has_failed = False

    # Workers get their settings from the supervisor, which does not read them again: HUP stops it.
    handle_hup = Multiprocess.handle_term
    handle_ttin = handle_ttou = lambda _: None

    def init_processes(self) -> None:
        """Start the first worker, and the other workers once the first one serves."""
        self.workers.append(first := self._begin())
        while first.process.is_alive() and not self.should_exit.is_set():
            if first.wait_until_ready(timeout=1.0):
                self.workers += [self._begin() for _ in range(1, self.processes_num)]
                return
            self.handle_signals()
        self.has_failed = first.exitcode not in (None, 0)
        self.should_exit.set()

    def _begin(self) -> Worker:
        is_first = not self.workers
        worker = Worker(
            self.config, self._settings, self._taken, self._password if is_first else None, reports=is_first
        )
        worker.start()
        return worker

    def keep_subprocess_alive(self) -> None:
        for number, worker in enumerate(self.workers):
            if worker.process.is_alive():
                continue
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            seconds = round(time.monotonic() - worker.began, 1)
            log.warning("worker ended", worker=number, status=worker.exitcode, seconds=seconds)
            self.workers[number] = self._begin()


# The banner

_NAMES = {"chat_completions": "Chat Completions", "messages": "Messages", "responses": "Responses", "gemini": "Gemini"}
WIDTH = 18


def banner(
    settings: Settings,
    url: str,
    database: str,
    server: str,
    missing_tables: tuple[str, ...] = (),
    password: str | None = None,
    admin: str | None = None,
) -> str:
    """Return the start message. `url`: scheme, host and port; `admin`: the same of the operator's listener; `server`:
    workers, event loop and protocol; `password`: the inspector's, if it was generated for this run."""
    estimated = f"no table for {', '.join(missing_tables)}: tokens are estimated by bytes"
    rows = [
        ("Chat Completions", f"OPENAI_BASE_URL={url}/v1"),
        ("Messages", f"ANTHROPIC_BASE_URL={url}"),  # Anthropic's SDKs add /v1 themselves.
        ("Responses", f"OPENAI_BASE_URL={url}/v1"),
        *([("Inspector", f"{admin or url}/ui")] if settings.inspector.enabled else []),
        *([("Password", f"{password} (shows all tenants, until Steno stops)")] if password else []),
        ("Metrics", f"{admin or url}/metrics"),
        ("", ""),
        *_upstreams(settings),
        ("Database", database),
        ("Tokenizer", estimated if missing_tables else "tiktoken's tables"),
        ("Server", server),
    ]
    lines = (f"  {name:<{WIDTH}}{value}".rstrip() for name, value in rows)
    return "\n".join(("", f"Steno {__version__}", "", *lines, "", "Stop it with Ctrl-C.", "", ""))


def _upstreams(settings: Settings) -> Iterator[tuple[str, str]]:
    for number, (name, upstream) in enumerate(settings.all_upstreams.items()):
        spoken = ", ".join(shown for each, shown in _NAMES.items() if each in upstream.speaks)
        yield "" if number else "Upstreams", f"{name}: {upstream.base_url} ({spoken})"
