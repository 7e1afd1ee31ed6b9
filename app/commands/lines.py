"""Lines: log events as people read them in a terminal. Everything of a line is there, what matters most comes first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import structlog

EVENT_WIDTH = 28
"""Columns of an event's name, so that what follows stands in one column for most of them."""
_COLORS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}
"""ANSI codes, by level."""
_DIM, _BOLD = "2", "1"
_LAST = ("reason", "remedy", "conversation_id", "request_id")
"""Fields that come last: explanations after what happened, then ids."""
_LEFT_OUT = ("event", "level", "logger", "timestamp", "exception")


class Line:
    """Renders an event as one line; what has no value is left out. An error's places follow, a line each."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: object, _method: str, event: structlog.typing.EventDict) -> str:
        level, exception = str(event.get("level", "info")), event.get("exception")
        head = (
            self._in(_DIM, str(event.get("timestamp", ""))),
            self._in(_COLORS.get(level, "0"), f"{level:<7}"),
            self._in(_BOLD, f"{event['event']:<{EVENT_WIDTH}}"),
        )
        fields = " ".join(f"{self._in(_DIM, name + '=')}{value}" for name, value in _fields(event))
        line = f"{' '.join(head)} {fields}".rstrip()
        return f"{line}\n{exception}" if exception else line

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
