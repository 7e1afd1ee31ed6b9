"""What the documentation names of the wire exists, and all there is is named: headers, members, statuses, codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from app.api import schema
from app.compaction.decision import Status
from app.conversation.reasons import Code
from app.formats.requests import OPTIONS
from app.formats.sse import EVENT_SHAPES
from tests.shown_examples import shown
from tests.unit.test_docs import PAGES, REST, every_error

STREAMS = Path(__file__).parents[2] / "docs" / "streams"
INTERNAL = {"x-context-call"}
"""On summary calls, to the provider."""


def section(heading: str) -> str:
    return re.split(r"^##+ ", REST.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def first_column(heading: str) -> set[str]:
    """The words in code in the first cell of each row of the section's table, but for its head."""
    rows = re.findall(r"^\| (`[^|]+?) +\|", section(heading).partition("|---|")[2], re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_headers_of_steno_that_pages_name_exist(page: Path) -> None:
    named = set(re.findall(r"\b(x-context-[a-z-]*[a-z])", page.read_text()))
    assert named <= schema.HEADERS.keys() | schema.PARAMETERS.keys() | INTERNAL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_error_codes_and_reasons_that_pages_name_exist(page: Path) -> None:
    known = {error.code for error in every_error()} | {shown(code).rstrip(". :") for code in Code}
    named = re.findall(r"\b(?:codes?|error|reason|refused with \d+)\s+\(?`([a-z]+(?:_[a-z]+)+)`", page.read_text())
    assert set(named) <= known


def test_every_answer_header_is_listed_and_seen_in_a_recording() -> None:
    assert first_column("Headers") == schema.HEADERS.keys()
    answered = "".join(file.read_text().partition("\n\nHTTP/1.1 ")[2] for file in STREAMS.rglob("*.txt"))
    seen = set(re.findall(r"^(x-context-[a-z-]+): ", answered, re.MULTILINE))
    assert schema.HEADERS.keys() - seen == {"x-context-reason"}  # A stream that begins early has it in its events.
    assert seen < schema.HEADERS.keys()


def test_every_option_and_request_header_is_listed() -> None:
    listed = section("Options of a request")
    assert set(re.findall(r'"context": \{"(\w+)"', listed)) == set(OPTIONS)
    assert set(re.findall(r"`(x-context-[a-z-]*[a-z])", listed)) == schema.PARAMETERS.keys()


def test_every_status_is_listed() -> None:
    assert first_column("Statuses") == {*get_args(Status), "pending", "bypassed"}


def test_every_shape_is_listed() -> None:
    assert first_column("Shapes") == set(EVENT_SHAPES)


def test_members_stand_where_the_reference_says() -> None:
    first = {"chat-completions": '"delta":{"role"', "messages": '"message_start"', "responses": '"response.created"'}
    last = {
        "chat-completions": '"finish_reason":"stop"',
        "messages": '"message_delta"',
        "responses": '"response.completed"',
    }
    for folder, mark in first.items():
        frames = (STREAMS / folder / "full.txt").read_text().partition("\n\nHTTP/1.1 ")[2].split("\n\n")
        told = [frame for frame in frames if '"context_status"' in frame]
        assert [mark in told[0], last[folder] in told[1], len(told)] == [True, True, 2]
        assert ['"context":{' in frame for frame in told] == [False, True]
