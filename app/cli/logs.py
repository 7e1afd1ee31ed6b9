"""Logs: one line for each event, as JSON or text. They contain no text of messages and no keys."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TextIO

import structlog

from app.cli.command import may_be_coloured
from app.http.asgi import AbortedAnswer
from app.store import DatabaseUnusable

_PLACE = re.compile(r'File "[^"]*", line \d+, in .*|[\w.]*(Error|Exception|ExceptionGroup)(?=:|$)')
"""Pattern of traceback lines with a place in the code or the kind of an error."""


Shape = Literal["auto", "json", "text"]


def is_readable(shape: Shape) -> bool:
    """True if the log is text for people; with `auto`, if standard output is a terminal."""
    return shape == "text" or (shape == "auto" and sys.stdout.isatty())


def configure_logging(level: str, shape: Shape, file: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to standard output, or to a file as text."""
    number, readable = logging.getLevelNamesMapping()[level.upper()], file is not None or is_readable(shape)
    colors = file is None and may_be_coloured(sys.stdout)
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
    # At info, the HTTP client and others would log every request.
    for name in ("httpx2", "httpcore2", "sqlalchemy", "alembic", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # OpenTelemetry logs each failed batch; `app.telemetry` logs the failure once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # The banner contains the server's messages about the start.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING) if readable else logging.NOTSET)


def _without_words(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Remove error messages and values of calls from a library's log line, because they may quote messages."""
    first, *rest = str(event["event"]).splitlines() or [""]
    if event["logger"] == "asyncio":
        first = first.partition("(")[0]
    places = (line.strip(" |+-") for line in rest)
    event["event"] = "\n".join((first, *(found[0] for line in places if (found := _PLACE.match(line)))))
    return event


def _where(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Show an error as its kind and its place in the code, because its text may quote a message."""
    error = event.pop("exc_info", None)
    error = sys.exc_info() if error is True else error
    error = error[1] if isinstance(error, tuple) else error
    if isinstance(error, BaseException):
        event["exception"] = "\n".join(_places(error))
    return event


def _places(error: BaseException) -> Iterator[str]:
    """Yield the traceback and kind of an error, after those of its cause."""
    origin = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if origin is not None:
        yield from _places(origin)
    yield "".join(traceback.format_tb(error.__traceback__)).rstrip()
    yield f"{type(error).__module__}.{type(error).__qualname__}"
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _places(part)


def _unexpected(record: logging.LogRecord) -> bool:
    """Return False for the server's traceback of a broken answer or a failed start: Steno has reported it already."""
    if record.exc_info and isinstance(record.exc_info[1], AbortedAnswer):
        return False
    # Starlette passes a failed start to the server as text, whose last line names the error.
    is_server = record.name == "uvicorn.error"
    last_line = record.getMessage().rstrip().rpartition("\n")[2] if is_server else ""
    return not last_line.startswith(f"{DatabaseUnusable.__module__}.")


COLUMNS = 120
EVENT_WIDTH = 28
"""Minimum columns of an event's name, so that the fields of most events are aligned."""
_COLORS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}
"""ANSI codes, by level."""
_DIM, _BOLD = "2", "1"
_LAST = ("reason", "remedy", "conversation_id", "request_id")
"""Fields that come last: explanations, then ids."""
_LEFT_OUT = ("event", "level", "logger", "timestamp", "exception")


class Line:
    """Renders an event for a terminal of 120 columns, without empty fields.

    Fields that do not fit the line continue on the next one, below the event's name. An error's traceback follows.
    """

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> str:
        level, exception = str(event.get("level", "info")), event.get("exception")
        timestamp, name = str(event.get("timestamp", "")), f"{event['event']:<{EVENT_WIDTH}}"
        indent = len(f"{timestamp} {level:<7} ")
        line = f"{self._in(_DIM, timestamp)} {self._in(_COLORS.get(level, '0'), f'{level:<7}')} {self._in(_BOLD, name)}"
        width = indent + len(name)
        for field, value in _fields(event):
            width += len(f" {field}={value}")
            if width > COLUMNS:
                line += "\n" + " " * (indent - 1)
                width = indent + len(f"{field}={value}")
            line += f" {self._in(_DIM, field + '=')}{value}"
        return f"{line.rstrip()}\n{exception}" if exception else line.rstrip()

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colors else text


def _fields(event: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    shown = {name: value for name, value in event.items() if name not in _LEFT_OUT and value not in (None, "", [], {})}
    before, after, window = (shown.pop(name, None) for name in ("tokens_before", "tokens_after", "window"))
    if before is not None:
        yield "tokens", f"{before:,}->{after:,} of {window:,}"
    ids = [(name, shown.pop(name)) for name in _LAST if name in shown]
    for name, value in (*shown.items(), *ids):
        yield name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_shown(inner)}" for name, inner in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(_shown, value))
    text = str(value)
    # Quoted if it contains spaces or quotes, or characters that control the terminal.
    if " " not in text and '"' not in text and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
