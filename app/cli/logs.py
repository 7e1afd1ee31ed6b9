"""Logs: one line for each event, as JSON or text. They contain no text of messages and no keys."""

from __future__ import annotations

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from typing import IO, Any, Literal

import structlog

from app.cli.main import are_colors_off
from app.http.asgi import AbortedAnswer
from app.settings import DEFAULT_UPSTREAM
from app.store import DatabaseUnusable

_PLACE = re.compile(r'File "[^"]*", line \d+, in .*|[\w.]*(Error|Exception|ExceptionGroup)(?=:|$)')
"""Pattern of traceback lines with a place in the code or the kind of an error."""
_COLOR = re.compile(r"\x1b\[[\d;]*m")
COLUMNS, INDENT = 120, 21
"""Maximum columns of a line of text, and number of spaces at the beginning of a continuation line."""


Shape = Literal["auto", "json", "text"]


def is_readable(shape: Shape) -> bool:
    """True if the log is text for people; with `auto`, if standard output is a terminal."""
    return shape == "text" or (shape == "auto" and sys.stdout.isatty())


def configure_logging(level: str, shape: Shape, file: IO[str] | None = None) -> None:
    """Send structlog and the standard library's loggers to standard output, or to a file as text."""
    number, readable = logging.getLevelNamesMapping()[level.upper()], file is not None or is_readable(shape)
    colors = file is None and sys.stdout.isatty() and not are_colors_off()
    render: list[structlog.typing.Processor] = [structlog.processors.JSONRenderer()]
    if readable:
        # repr_native_str: escapes values, so that they cannot imitate a log line or control the terminal.
        console = structlog.dev.ConsoleRenderer(20, colors=colors, repr_native_str=True, sort_keys=False)
        render = [_shorten, console, _wrap]
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _where, *render],
        )
    )
    handler.addFilter(_unexpected)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # At info, these libraries would log every request.
    for name in ("httpx2", "httpcore2", "sqlalchemy", "alembic", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # OpenTelemetry logs each failed batch; `app.telemetry` logs the failure once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # The banner replaces the server's messages about the start.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING) if readable else logging.NOTSET)


def _without_words(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove error messages and arguments from a library's log line: they may quote messages of conversations."""
    first, *rest = str(event["event"]).splitlines() or [""]
    if event["logger"] == "asyncio":
        first = first.partition("(")[0]
    places = (line.strip(" |+-") for line in rest)
    event["event"] = "\n".join((first, *(found[0] for line in places if (found := _PLACE.match(line)))))
    return event


def _where(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Replace an error by its class and traceback, because the error's text may quote messages of conversations."""
    error = event.pop("exc_info", None)
    error = sys.exc_info() if error is True else error
    error = error[1] if isinstance(error, tuple) else error
    if isinstance(error, BaseException):
        event["exception"] = "\n".join(_places(error))
    return event


def _shorten(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove empty fields, the logger, the default upstream, and the status, which the actions imply. Join a request's
    token counts."""
    if "tokens_before" in event:
        event["tokens"] = "{tokens_before}->{tokens_after} of {window}".format_map(event)
    left_out = ("logger", "context_status", *(("tokens_before", "tokens_after", "window") if "tokens" in event else ()))
    empty: tuple[object, ...] = (None, "", [], {}, DEFAULT_UPSTREAM)
    return {name: value for name, value in event.items() if name not in left_out and value not in empty}


def _wrap(_logger: object, _method: str, text: Any) -> str:
    """Break the event's line after at most `COLUMNS` columns. Leave a traceback below the line unchanged."""
    line, *below = str(text).split("\n", 1)
    wrapped, width = "", 0
    for word in re.findall(r"\S+ *", line):
        shown = _COLOR.sub("", word)
        if width + len(shown.rstrip()) > COLUMNS:
            wrapped, width = f"{wrapped.rstrip()}\n{' ' * INDENT}", INDENT
        wrapped, width = wrapped + word, width + len(shown)
    return "\n".join([wrapped.rstrip(), *below])


def _places(error: BaseException) -> Iterator[str]:
    """Yield traceback and class of each error in the chain of causes, the first cause first."""
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is not None:
        yield from _places(origin)
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _places(part)


def _unexpected(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's traceback of a broken answer or a failed start, which Steno has logged already."""
    if record.exc_info and isinstance(record.exc_info[1], AbortedAnswer):
        return False
    # Starlette passes a failed start to the server as text, whose last line names the error.
    is_server = record.name == "uvicorn.error"
    last_line = record.getMessage().rstrip().rpartition("\n")[2] if is_server else ""
    return not last_line.startswith(f"{DatabaseUnusable.__module__}.")
