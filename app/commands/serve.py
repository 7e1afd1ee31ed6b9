"""Serving: uvicorn with what Steno needs of it, and one line that says what is in force."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

import structlog
import uvicorn

from app import __version__
from app.commands.logs import configure_logging
from app.main import create_app
from app.proxy.protocol import protocol_within
from app.proxy.services import Services
from app.settings import ConfigurationError, Settings
from app.store import StoreError

log = structlog.get_logger("steno")

SPARE_FILES = 200
"""Open files beside connections: the database, logs, connections to be told that there are too many."""
SWITCH_SECONDS = 0.0005
"""How long a worker thread keeps the interpreter when the event loop wants it, which is after each system call. With
Python's own 5 ms a request waited twice as long beside a busy thread."""


def serve(settings: Settings) -> str | None:
    """Serves until it is stopped. What kept it from starting, or None."""
    configure_logging(settings.log.level, settings.log.format)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        app = create_app(settings)
    except (ConfigurationError, StoreError) as error:
        return str(error)
    _allow_files(settings.limits.connections)
    config = uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        # httptools: h11 accepts a length beside chunks, which smuggles requests.
        http=protocol_within(settings.limits),
        # FORWARDED_ALLOW_IPS in the environment would let callers say where they are: server.trusted_proxies does.
        proxy_headers=False,
        log_config=None,
        access_log=False,
        # The provider's own pass; `api.gate` adds what an answer of ours lacks.
        date_header=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.server.drain_seconds)),
        lifespan="on",
    )
    server = _Server(config, settings, app.state.services)
    # Once it has drained, uvicorn raises the signal again: a stop that was asked for would end as a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _ignore)
    with suppress(SystemExit):  # uvicorn's own, when the start failed.
        server.run()
    if server.started:
        return None
    failure: str | None = app.state.failure
    return failure or server.failure or "The start failed; the log says why."


def _allow_files(connections: int) -> None:
    """A request has two connections, and the usual limit of a process is 1,024 files."""
    wanted = 2 * connections + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning(
            "too few open files for limits.connections", connections=connections, allowed=allowed, wanted=wanted
        )


def _ignore(number: int, frame: FrameType | None) -> None:
    """A signal that was obeyed already."""


class _Server(uvicorn.Server):
    """Says what is in force once it listens, and is not ready any more as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, settings: Settings, services: Services) -> None:
        super().__init__(config)
        self._settings = settings
        self._services = services
        self.failure: str | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._services.tasks.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as end:
            if isinstance(end.__context__, OSError):  # What uvicorn logs before it gives up the address.
                why = (end.__context__.strerror or "").rpartition(": ")[2]
                server = self._settings.server
                self.failure = (
                    f"Steno cannot listen on {server.host}:{server.port}: {why}."
                    " Choose another port: `make run PORT=8081`, or `steno serve --port 8081`."
                )
            raise
        if self.started:
            address = self.servers[0].sockets[0].getsockname()
            log.info(
                "serving",
                version=__version__,
                url=f"http://{address[0]}:{address[1]}/v1",
                upstream=self._settings.upstream.base_url,
                database=self._services.store.place,
                loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
                http=self.config.http_protocol_class.__name__,
            )
