"""Titles: the first words that the user wrote, in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.conversation.authored_text import LONGEST_TITLE, title_of
from app.formats.registry import FORMATS

BY_NAME = {each.name: each for each in FORMATS}
QUESTION = "Where is order ORD-0042?"
REMINDER = "<system-reminder>\nAs you answer, use this context: # claudeMd\nNever push.\n</system-reminder>"
AGENTS = "# AGENTS.md instructions for /work\n\n<INSTRUCTIONS>\nRun the tests.\n</INSTRUCTIONS>"


def title(content: Any, format_: str = "chat_completions") -> str:
    return title_of([BY_NAME[format_].message(json.dumps({"role": "user", "content": content}).encode()).message])


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


def test_the_first_message_with_words_of_the_user_gives_the_title() -> None:
    read = [
        BY_NAME["chat_completions"].message(json.dumps({"role": "user", "content": content}).encode()).message
        for content in (REMINDER, QUESTION, "Another one?")
    ]
    assert title_of(read) == QUESTION


def test_a_long_title_is_cut_behind_a_word() -> None:
    cut = title("what is to be done about it, and by whom? " * 5)
    assert cut == "what is to be done about it, and by whom? what is to be done about it, and by…"
    assert len(title("x" * 500)) == LONGEST_TITLE + 1
