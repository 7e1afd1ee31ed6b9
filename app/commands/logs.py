"""Logs: one line for each decision, as JSON or text on standard output; never a message's text, never a key."""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Literal, TextIO

import structlog

from app.commands.lines import Line
from app.proxy.asgi import AbortedAnswer
from app.store import DatabaseUnusable

_PLACE = re.compile(r'File "[^"]*", line \d+, in .*|[\w.]*(Error|Exception|ExceptionGroup)(?=:|$)')
"""Pattern of the lines of a traceback that say where an error came from and what kind it is."""


Shape = Literal["auto", "json", "text"]


def is_readable(shape: Shape) -> bool:
    """True if lines are written for people; if the setting leaves it open, on a terminal."""
    return shape == "text" or (shape == "auto" and sys.stdout.isatty())


def configure_logging(level: str, shape: Shape, file: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to standard output, or into a file for people."""
    number, readable = logging.getLevelNamesMapping()[level.upper()], file is not None or is_readable(shape)
    colors = file is None and _may_be_colored()
    render = Line(colors=colors) if readable else structlog.processors.JSONRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if readable else "iso", utc=not readable),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(file or sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _without_words],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _where,
                render,
            ],
        )
    )
    handler.addFilter(_unexpected)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # The HTTP client's own lines name every request; at info they would be most of the log.
    for name in ("httpx2", "httpcore2", "sqlalchemy", "alembic", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # Says for each batch what `app.tracing` says once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # What the server says of its start is in the banner.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING) if readable else logging.NOTSET)


def _may_be_colored() -> bool:
    """True if https://no-color.org and the terminal allow colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _without_words(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Keep a library's event, without the words of an error or the values of a call that it put into its text."""
    first, *rest = str(event["event"]).splitlines() or [""]
    if event["logger"] == "asyncio":
        first = first.partition("(")[0]
    places = (line.strip(" |+-") for line in rest)
    event["event"] = "\n".join((first, *(found[0] for line in places if (found := _PLACE.match(line)))))
    return event


def _where(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show an error as its kind and its place in the code: its own words may be those of a message."""
    error = event.pop("exc_info", None)
    error = sys.exc_info() if error is True else error
    error = error[1] if isinstance(error, tuple) else error
    if isinstance(error, BaseException):
        event["exception"] = "\n".join(_places(error))
    return event


def _places(error: BaseException) -> Iterator[str]:
    """Places of an error, its origin first, as in a traceback."""
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is not None:
        yield from _places(origin)
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _places(part)


def _unexpected(record: logging.LogRecord) -> bool:
    """Drop the server's traceback of what was reported where it was decided: a broken answer, a failed start."""
    if record.exc_info and isinstance(record.exc_info[1], AbortedAnswer):
        return False
    # Starlette hands the failed start to the server as text; its last line names the error.
    is_server = record.name == "uvicorn.error"
    last_line = record.getMessage().rstrip().rpartition("\n")[2] if is_server else ""
    return not last_line.startswith(f"{DatabaseUnusable.__module__}.")
