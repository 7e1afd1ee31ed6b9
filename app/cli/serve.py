"""Serving: the port is taken, then one process serves there, or several under uvicorn's supervisor."""

from __future__ import annotations

import resource
import sys

import structlog

from app.cli import ports, server, workers
from app.cli.logs import configure_logging, is_readable
from app.settings import Settings

log = structlog.get_logger("steno")

SPARE_FILES = 200
"""Open files beside connections: the database, logs, connections that get the answer that there are too many."""


def serve(settings: Settings) -> str | None:
    """Serve until stopped. Return the reason why it did not start, or None; a worker prints its own, and this exits."""
    configure_logging(settings.log.level, settings.log.format)
    try:
        taken = ports.take_all(settings.server)
    except OSError as error:
        return server.cannot_listen(settings, error)
    settings = settings.model_copy(update={"limits": settings.limits.of_each(settings.server.workers)})
    _allow_files(settings.limits.connections)
    on_terminal = is_readable(settings.log.format) and sys.stdout.isatty()
    settings, password = server.with_password(settings) if on_terminal else (settings, None)
    run = workers.run if settings.server.workers > 1 else server.run
    try:
        return run(settings, taken, password)
    finally:
        ports.remove_files(settings.server)


def _allow_files(connections: int) -> None:
    """Raise the limit of open files: a request has two connections, and the usual limit of a process is 1,024 files."""
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
