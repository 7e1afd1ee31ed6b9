"""Logs: one line for each decision, as JSON or text on standard output; never a message's text, never a key."""

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
"""Pattern of the lines of a traceback that say where an error came from and what kind it is."""


Shape = Literal["auto", "json", "text"]


def is_readable(shape: Shape) -> bool:
    """True if lines are written for people; if the setting leaves it open, on a terminal."""
    return shape == "text" or (shape == "auto" and sys.stdout.isatty())


def configure_logging(level: str, shape: Shape, file: TextIO | None = None) -> None:
    """Send structlog and the standard library's loggers to standard output, or into a file for people."""
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
    # The HTTP client's own lines name every request; at info they would be most of the log.
    for name in ("httpx2", "httpcore2", "sqlalchemy", "alembic", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # Says for each batch what `app.telemetry` says once.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # What the server says of its start is in the banner.
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING) if readable else logging.NOTSET)


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


COLUMNS = 120
EVENT_WIDTH = 28
"""Columns of an event's name, so that what follows stands in one column for most of them."""
_COLORS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}
"""ANSI codes, by level."""
_DIM, _BOLD = "2", "1"
_LAST = ("reason", "remedy", "conversation_id", "request_id")
"""Fields that come last: explanations after what happened, then ids."""
_LEFT_OUT = ("event", "level", "logger", "timestamp", "exception")


class Line:
    """Renders an event for a terminal of 120 columns; what has no value is left out.

    Fields that do not fit its line stand on the next one, below its name. An error's places follow, a line each.
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
    # Quoted where it could be taken for more than one value, or would move the terminal's cursor.
    if " " not in text and '"' not in text and text.isprintable():
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
