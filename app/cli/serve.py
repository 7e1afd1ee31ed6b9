"""`steno serve`: binds its sockets, then serves with one process, or with several under uvicorn's supervisor."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from secrets import token_urlsafe
from tempfile import TemporaryDirectory
from threading import Thread
from types import FrameType
from typing import Annotated, NamedTuple

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
from app.cli.command import Config, DatabaseURL, Upstream, fail, settings_of
from app.cli.logs import configure_logging, is_readable
from app.http.protocol import protocol_within
from app.main import create_app
from app.proxy.exchange import Services
from app.settings import ConfigurationError, Settings
from app.settings.server import ServerSettings
from app.store import StoreError
from app.telemetry.metrics import FOLDER

log = structlog.get_logger("steno")

SPARE_FILES = 200
"""Number of open files beyond two for each connection: for the database, logs, and connections above the limit."""
LET_IN = 0.2
"""Share of `server.drain_seconds`. A stopping process still accepts new requests for at most this time."""
QUIET_SECONDS = 0.25
"""Seconds without new requests after which a stopping process closes its listener."""
SWITCH_SECONDS = 0.0005
"""Maximum seconds that a worker thread keeps the interpreter while the event loop waits for it. With Python's default
of 5 ms, requests took twice as long while a thread was busy."""
SPREADS = sys.platform == "linux"
"""True if the kernel distributes connections over all sockets that listen at one address. Each worker then gets its own
socket. With a shared socket, one process would accept most connections of a burst."""

NEARBY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104 - not listened to here
"""Addresses at which this machine reaches a server, by the wildcard address at which the server listens."""

cli = typer.Typer(rich_markup_mode="markdown")


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
        callers, operator = bind_all(settings.server)
    except OSError as error:
        fail(cannot_listen(settings, error))
    settings = settings.model_copy(update={"limits": settings.limits.of_each(settings.server.workers)})
    _allow_files(settings.limits.connections)
    on_terminal = is_readable(settings.log.format) and sys.stdout.isatty()
    settings, password = with_password(settings) if on_terminal else (settings, None)
    arguments = ServeArguments(settings, callers, operator, password)
    try:
        problem = serve_in_workers(arguments) if settings.server.workers > 1 else Server(arguments).run_until_stopped()
    except (ConfigurationError, StoreError) as error:
        problem = str(error)
    if problem is not None:
        fail(problem)


class ServeArguments(NamedTuple):
    """Arguments of a server, or of each of its workers."""

    settings: Settings
    callers: list[socket.socket]
    operator: list[socket.socket]
    """Sockets of `server.admin`; empty if callers and the operator use the same address."""
    password: str | None
    """Inspector password, if it was generated for this run."""
    reports: bool = True
    """Whether to print the start message, and to log problems of the settings."""


def _allow_files(connections: int) -> None:
    """Raise the limit of open files: each request uses two connections, and the usual limit is 1,024 files."""
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
    """Return settings with an inspector password, and this password if it was generated here, else None."""
    if settings.inspector.password is not None or not settings.inspector.enabled:
        return settings, None
    made = token_urlsafe(12)
    inspector = settings.inspector.model_copy(update={"password": SecretStr(made)})
    return settings.model_copy(update={"inspector": inspector}), made


def _config_of(settings: Settings, app: ASGIApp) -> uvicorn.Config:
    """Return uvicorn's configuration for one listener. Each listener has its own limit of connections."""
    config = uvicorn.Config(
        app,
        # Not h11: it accepts a content length together with chunks, which allows request smuggling.
        http=protocol_within(settings.limits.receive_seconds, settings.limits.connections),
        # server.trusted_proxies decides whose headers are trusted, not FORWARDED_ALLOW_IPS in the environment.
        proxy_headers=False,
        log_config=None,
        access_log=False,
        # The provider's headers are kept; the router adds missing headers.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_seconds)),
        lifespan="on",
    )
    config.load()
    return config


class Server(uvicorn.Server):
    """uvicorn's server with up to two listeners and a start message. `/readyz` answers 503 while the server stops."""

    def __init__(self, arguments: ServeArguments) -> None:
        """Raises `ConfigurationError` and `StoreError`."""
        sys.setswitchinterval(SWITCH_SECONDS)
        self._app = app = create_app(arguments.settings, reports=arguments.reports)
        super().__init__(_config_of(arguments.settings, app))
        self._arguments = arguments
        self._services: Services = app.state.services
        self._operators_config = _config_of(arguments.settings, app.operators_entry)
        self._operators_state = ServerState()
        """Connections of the operator's listener. They do not count towards the limit of callers' connections."""
        self._operators_state.tasks = self.server_state.tasks

    def run_until_stopped(self) -> str | None:
        """Serve until stopped. Return the reason for a failed start, or None."""
        # uvicorn handles signals only while its loop runs, and raises them again after the shutdown. Otherwise an
        # earlier signal would be lost, and a signal raised again would end the process with a failure.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        with suppress(SystemExit):  # Raised by uvicorn after a failed start.
            self.run(self._arguments.callers)
        if self.started:
            return None
        failure: str | None = self._app.state.failure
        return failure or "The start failed; the log says why."

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.tasks.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
            self.servers += [await self._listen_for_operators(each) for each in self._arguments.operator]
        except OSError as error:  # Another program has begun to listen since the socket was bound.
            self._app.state.failure = cannot_listen(self._arguments.settings, error)
            await self.lifespan.shutdown()
            sys.exit(STARTUP_FAILURE)
        if self._arguments.reports:
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
        """Report addresses, providers and database: in one log line, or as the banner for people."""
        settings, callers, operator, password, _ = self._arguments
        database = self._services.store.database.address.place
        admin = url_of(operator[0], nearby=True) if operator else None
        if is_readable(settings.log.format):
            sys.stdout.write(banner(settings, url_of(callers[0], nearby=True), database, password, admin))
            sys.stdout.flush()
            return
        log.info(
            "serving",
            version=__version__,
            url=f"{url_of(callers[0])}/v1",
            admin=admin,
            upstream=settings.upstream.base_url,
            database=database,
            workers=settings.server.workers,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
            http=self.config.http_protocol_class.__name__,
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for connection in list(self._operators_state.connections):
            connection.shutdown()
        await self._let_in()
        await super().shutdown(sockets)

    async def _let_in(self) -> None:
        """Serve new requests until no more arrive. A load balancer needs seconds to notice that this process stops.
        Meanwhile it sends requests, and cannot repeat them if the listener is closed."""
        state, began, seconds = self.server_state, time.monotonic(), self._arguments.settings.server.drain_seconds
        while time.monotonic() < began + seconds * LET_IN:
            seen = state.total_requests, set(state.connections)
            await asyncio.sleep(QUIET_SECONDS)
            if seen == (state.total_requests, set(state.connections)):
                break
        self.config.timeout_graceful_shutdown = max(1, round(seconds - (time.monotonic() - began)))


# Several processes at one address, under uvicorn's supervisor, with these changes: each worker is a `Server` with two
# listeners. The first worker starts alone, so that an error of settings or database is reported once. A worker that
# ends later is replaced, whatever its exit status. Workers stop if their supervisor is killed.


def serve_in_workers(arguments: ServeArguments) -> str | None:
    """Serve until stopped. Return the reason for a failed start, or None. Exit with status 1 if the first worker could
    not start; the worker has printed the reason."""
    if SPREADS:
        for each in (*arguments.callers, *arguments.operator):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    supervisor = Supervisor(arguments)
    try:
        folder = TemporaryDirectory(prefix="steno-metrics-")
    except OSError as error:
        return f"Several workers need a folder for their metrics: {error.strerror}. Set TMPDIR to a writable one."
    with folder as path:
        os.environ[FOLDER] = path
        supervisor.run()
    if len(supervisor.processes) == 1 and (supervisor.processes[0].exitcode or 0) > 0:  # Below 0: ended by a signal.
        sys.exit(1)
    return None


class Worker(Process):
    def __init__(self, config: uvicorn.Config, arguments: ServeArguments) -> None:
        super().__init__(config, [])
        self._arguments = arguments
        self.began = time.monotonic()

    def target(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - `ServeArguments` has the sockets
        self.parent_conn.close()
        arguments = self._arguments
        configure_logging(arguments.settings.log.level, arguments.settings.log.format)
        failure: str | None
        try:
            if SPREADS:
                callers, operator = bind_again(arguments.callers), bind_again(arguments.operator)
                arguments = arguments._replace(callers=callers, operator=operator)
            self._server = server = Server(arguments)
        except OSError as error:
            failure = cannot_listen(arguments.settings, error)
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
    processes: list[Worker]  # type: ignore[assignment] # a list of its base class, in uvicorn

    def __init__(self, arguments: ServeArguments) -> None:
        # The workers create their own configurations.
        super().__init__(uvicorn.Config("app.main:app", workers=arguments.settings.server.workers, log_config=None), [])
        self._arguments = arguments

    # Workers get their settings from the supervisor, which does not read them again. HUP therefore stops Steno.
    handle_hup = Multiprocess.handle_term
    handle_ttin = handle_ttou = lambda _: None

    def init_processes(self) -> None:
        """Start the first worker. When it serves, start the other workers."""
        self.processes.append(first := self._begin())
        while first.process.is_alive() and not self.should_exit.is_set():
            if first.wait_until_ready(timeout=1.0):
                self.processes += [self._begin() for _ in range(1, self.processes_num)]
                return
            self.handle_signals()
        self.should_exit.set()

    def _begin(self) -> Worker:
        worker = Worker(self.config, self._arguments._replace(reports=not self.processes))
        worker.start()
        return worker

    def keep_subprocess_alive(self) -> None:
        for number, worker in enumerate(self.processes):
            if worker.process.is_alive():
                continue
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            seconds = round(time.monotonic() - worker.began, 1)
            log.warning("worker ended", worker=number, status=worker.exitcode, seconds=seconds)
            self.processes[number] = self._begin()


# Sockets


def url_of(listener: socket.socket, *, nearby: bool = False) -> str:
    """Return the URL of a listening server. `nearby`: use an address that this machine can reach."""
    host, port = listener.getsockname()[:2]
    host = NEARBY.get(host, host) if nearby else host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def bind_all(server: ServerSettings) -> tuple[list[socket.socket], list[socket.socket]]:
    """Bind and return the sockets for callers, and the sockets for `server.admin` if it is set. Raises `OSError`, with
    `server.admin` as `filename` if the error is about that address."""
    callers = bind(server.host, server.port)
    if server.admin is None:
        return callers, []
    host, _, port = server.admin.rpartition(":")
    try:
        return callers, bind(host.strip("[]"), int(port))
    except OSError as error:
        error.filename = server.admin
        raise


def bind(host: str, port: int) -> list[socket.socket]:
    """Reserve the port: bind a socket at each address of the host, without listening. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [_bound(family, address) for family, _, _, _, address in dict.fromkeys(found)]


def bind_again(sockets: Iterable[socket.socket]) -> list[socket.socket]:
    """Return further sockets that are bound to the same addresses, for one worker process."""
    return [_bound(each.family, each.getsockname(), is_shared=True) for each in sockets]


def _bound(family: int, address: tuple[object, ...], *, is_shared: bool = False) -> socket.socket:
    """Return a bound socket. `is_shared`: other sockets may have the same address, even sockets of another program."""
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)
    return made


def cannot_listen(settings: Settings, error: OSError) -> str:
    why = (error.strerror or str(error)).rpartition(": ")[2].lower()
    if settings.server.admin is not None and error.filename == settings.server.admin:
        return f"Steno cannot listen on {error.filename}: {why}. Choose another address for server.admin."
    host, port = settings.server.host, settings.server.port
    at = f"Steno cannot listen on {host}:{port}: {why}"
    if error.errno != errno.EADDRINUSE:
        return f"{at}. Choose another address with --host and --port."
    return f"{at}. Stop what listens there, or choose another port: `make run PORT={port + 1}`."


# The banner


def banner(settings: Settings, url: str, database: str, password: str | None = None, admin: str | None = None) -> str:
    """Return the start message. `url` and `admin`: scheme, host and port for callers and for the operator. `password`:
    the inspector's, if it was generated for this run."""
    rows = [
        ("OpenAI's clients", f"OPENAI_BASE_URL={url}/v1"),
        ("Anthropic's", f"ANTHROPIC_BASE_URL={url}"),  # Anthropic's SDKs add /v1 themselves.
        *([("Inspector", f"{admin or url}/ui")] if settings.inspector.enabled else []),
        *([("Password", f"{password} (shows all tenants, until Steno stops)")] if password else []),
        *((f"Upstream {name}", upstream.base_url) for name, upstream in settings.all_upstreams.items()),
        ("Database", database),
    ]
    lines = (f"  {name:<18}{value}" for name, value in rows)
    return "\n".join(("", f"Steno {__version__}", "", *lines, "", "Stop it with Ctrl-C.", "", ""))
