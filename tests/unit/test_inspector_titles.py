"""Titles: the first words that the user himself wrote, in one line."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.inspector.titles import LONGEST, title_in
from app.store import StoredMessage
from app.wire.formats import FORMATS

BY_NAME = {each.name: each for each in FORMATS}
QUESTION = "Where is order ORD-0042?"
REMINDER = "<system-reminder>\nAs you answer, use this context: # claudeMd\nNever push.\n</system-reminder>"
AGENTS = "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\nRun the tests.\n</INSTRUCTIONS>"


def title(content: Any, format_: str = "chat_completions") -> str:
    return title_of(json.dumps({"role": "user", "content": content}), format_)


def title_of(written: str, format_: str = "chat_completions") -> str:
    at = datetime(2026, 11, 22, tzinfo=UTC)
    return title_in(StoredMessage("msg_1", "c", None, 0, "user", "user", format_, written, 7, "req_1", at), BY_NAME)


@pytest.mark.parametrize(
    "content",
    [
        QUESTION,
        "  Where is\n\n order\tORD-0042?  ",
        f"{REMINDER}\n{QUESTION}",
        [{"type": "text", "text": REMINDER}, {"type": "text", "text": QUESTION}],
        f"{AGENTS}\n\n{QUESTION}",
        f"{QUESTION}\n{REMINDER}",
        f"{QUESTION}\n```\nTraceback (most recent call last):\n```",
    ],
)
def test_a_title_is_what_the_user_wrote_and_not_what_a_program_put_beside_it(content: Any) -> None:
    assert title(content) == QUESTION


@pytest.mark.parametrize("format_", ["messages", "responses"])
def test_each_format_has_titles(format_: str) -> None:
    assert title(QUESTION, format_) == QUESTION


@pytest.mark.parametrize("content", [REMINDER, AGENTS, ""])
def test_where_the_user_wrote_nothing_there_is_no_title(content: str) -> None:
    assert title(content) == ""


def test_what_cannot_be_read_has_no_title() -> None:
    assert title_of('{"role": 3') == ""


def test_what_is_of_a_format_of_a_later_release_has_no_title() -> None:
    assert title(QUESTION, "of a later release") == ""


def test_a_long_title_is_cut_behind_a_word() -> None:
    cut = title("what is to be done about it, and by whom? " * 5)
    assert cut == "what is to be done about it, and by whom? what is to be done about it, and by…"
    assert len(title("x" * 500)) == LONGEST + 1
