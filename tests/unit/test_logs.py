"""The log: what its page says of it is so, and errors are shown without their words."""

from __future__ import annotations

import ast
import asyncio
import gc
import io
import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from app.cli.logs import configure_logging

APP = Path(__file__).parents[2] / "app"
PAGE = (APP.parent / "docs" / "logs.md").read_text()


OF_A_REQUEST = frozenset({"request_id", "conversation_id"})
"""Fields of a fault that a request outlives (`tolerated`)."""


@cache
def logged() -> list[tuple[str, frozenset[str]]]:
    """Each event in the code with its fields."""
    found = []
    for path in APP.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "tolerated":
                found += [(event, OF_A_REQUEST) for event in _texts(call.args[0])]
            elif isinstance(call, ast.Call) and _logs(call.func) and not isinstance(call.args[0], ast.Attribute):
                assert all(keyword.arg for keyword in call.keywords), f"{path}: fields are named one by one"
                fields = frozenset(str(keyword.arg) for keyword in call.keywords)
                found += [(event, fields) for event in _texts(call.args[0])]
    return found


def _logs(function: ast.expr) -> bool:
    if isinstance(function, ast.Name):
        return function.id == "tell"  # log.info or log.warning
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "log"


def _texts(event: ast.expr) -> list[str]:
    if isinstance(event, ast.IfExp):
        return [*_texts(event.body), *_texts(event.orelse)]
    assert isinstance(event, ast.Constant), ast.dump(event)
    return [str(event.value)]


def described() -> dict[str, set[str]]:
    """What the page says: each event with its fields."""
    found: dict[str, set[str]] = {}
    before: set[str] = set()
    for events, fields, _ in re.findall(r"^\| (`.*?) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE):
        before = before if fields.startswith("the same") else set(re.findall(r"`(\w+)`", fields))
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", events), before)
    return found


def test_page_knows_every_event_and_no_other() -> None:
    assert {event for event, _ in logged()} == described().keys()


@pytest.mark.parametrize("event", sorted(described()))
def test_page_names_the_fields_of_each_event(event: str) -> None:
    assert described()[event] == set().union(*(fields for name, fields in logged() if name == event))


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What `serve` writes."""
    gc.collect()  # What another test left is not told of here.
    written = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    monkeypatch.setattr(sys, "stdout", written)
    configure_logging("info", "json")
    yield written
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def fail(words: str) -> None:
    try:
        raise KeyError(words)
    except KeyError as error:
        raise ExceptionGroup(words, [ValueError(words)]) from error


@pytest.mark.parametrize("logger", [structlog.get_logger("steno.test"), logging.getLogger("some.library")])
def test_an_unexpected_error_is_shown_by_its_kind_and_its_place(configured: io.StringIO, logger: Any) -> None:
    """Its own words may be those of a message: a library quotes what it could not read."""
    try:
        fail("canary words")
    except ExceptionGroup:
        logger.exception("something went wrong")
    line = json.loads(configured.getvalue())
    assert (line["event"], line["level"]) == ("something went wrong", "error")
    for shown in ("in fail", "builtins.KeyError", "builtins.ExceptionGroup", "builtins.ValueError"):
        assert shown in line["exception"]
    assert "canary words" not in line["exception"].replace('fail("canary words")', "")


def told(configured: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in configured.getvalue().splitlines()]


def test_an_error_that_nobody_waited_for_is_shown_without_its_words(configured: io.StringIO) -> None:
    """asyncio writes the error into the text of the line."""

    async def failing() -> None:
        fail("canary words")

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(partial(fail, "canary words"))
        task = asyncio.ensure_future(failing())
        await asyncio.wait({task})
        del task
        gc.collect()

    asyncio.run(run())
    lines = told(configured)
    assert [line["event"] for line in lines] == ["Exception in callback fail", "Task exception was never retrieved"]
    assert all("builtins.KeyError" in line["exception"] for line in lines)
    assert "canary words" not in configured.getvalue().replace('fail(\\"canary words\\")', "")


def test_a_start_that_failed_is_shown_by_the_kinds_and_places_of_its_errors(configured: io.StringIO) -> None:
    """Starlette hands it to the server as text."""
    try:
        fail("canary words\nold words")
    except ExceptionGroup:
        logging.getLogger("uvicorn.error").log(logging.ERROR, traceback.format_exc())
    [line] = told(configured)
    assert all(shown in line["event"] for shown in ("in fail", "KeyError", "ExceptionGroup"))
    assert "words" not in line["event"]


def test_lines_of_a_request_on_a_terminal_have_at_most_120_columns(configured: io.StringIO) -> None:
    configure_logging("info", "text", configured)
    sizes = {"tokens_before": 8_470, "tokens_after": 5_305, "window": 8_000}
    structlog.get_logger("steno.test").warning("payload changed", remedy="Words. " * 30, context_status="full", **sizes)
    assert max(map(len, configured.getvalue().splitlines())) in range(110, 121)
    line = " ".join(configured.getvalue().split())
    assert line.endswith(f"payload changed remedy='{'Words. ' * 30}' tokens='8470->5305 of 8000'")
