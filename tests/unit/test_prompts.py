"""What the summariser is shown, and how a summary stands in a payload."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from app.compaction.chunk_builder import objection, visible_text
from app.compaction.chunks import UserWords
from app.compaction.prompts import LONGEST_FAILURE, SUMMARY_PROMPT, chunk_text, failed_results
from app.conversation.messages import History
from app.formats.spec import Ending, SummaryAnswer
from tests.unit.conversations import chunk, conversation, count, message, turns, words


@pytest.mark.parametrize(
    ("line", "is_shown"),
    [
        ("budget: $800", False), ("ticket OPS-12", False),
        ("budget: $80", True), ("fee: $0.5", True), ("rate: $3", True),
        ("budget: $800 (before turn 2: $500)", True), ("ticket OPS-12: owner ada@example.org", True),
    ],
)  # fmt: skip
def test_a_single_value_that_the_users_words_hold_is_not_listed_again(line: str, is_shown: bool) -> None:
    said = UserWords(3, "My budget is $800 for OPS-12, at $0.50 a page or $3,000.")
    made = replace(chunk(conversation(*turns(2)), 0, 2), values=(line,), user_words=(said,))
    assert (line in chunk_text(made)) == is_shown


# Failed results


@pytest.mark.parametrize(
    "text",
    [
        "Error: no such file",
        "  failed to connect",
        "[ERROR] disk full",
        "Traceback (most recent call last)",
        "Exception in thread",
        '{"error": "not found"}',
        ' {"isError": true, "content": []}',
        '{"is_error": 1}',
    ],
)
def test_a_result_that_tells_of_an_error_is_listed(text: str) -> None:
    listed = failed_results(History([message("assistant", calls=["c1"]), message("tool", text, answers="c1")]), 8)
    assert listed == f"\n\nTool calls that failed:\n- tool_c1: {text}"


@pytest.mark.parametrize(
    "text",
    [
        "There was no error.",
        "errors: 0",
        '{"error": null, "rows": 4}',
        '{"rows": ["error"]}',
        '{"error": ',
        '{"a":' * 100_000,
        '["error"]',
        "",
    ],
)
def test_any_other_result_is_not(text: str) -> None:
    assert failed_results([message("tool", text, answers="c1")], 8) == ""


def test_the_latest_failures_are_listed_once_for_each_call_and_cut() -> None:
    results = [message("tool", f"Error {number} {'x' * 300}", answers=f"c{number % 10}") for number in range(20)]
    calls = message("assistant", calls=[f"c{number}" for number in range(10)])
    lines = failed_results(History([calls, *results]), 8).splitlines()[3:]
    assert [line[:19] for line in lines] == [f"- tool_c{number - 10}: Error {number}" for number in range(12, 20)]
    assert {len(line) for line in lines} == {len("- tool_c1: ") + LONGEST_FAILURE}


# Answers that become a chunk

ASKED = f"{SUMMARY_PROMPT}\nUse at most 300 words."

ANSWERS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("gate.yaml").read_text("utf-8"))


def judged(text: str, replaces: int = 1_000) -> str:
    found = objection(SummaryAnswer(text, Ending.FINISHED, "stop"), count(text), 100, replaces, ASKED)
    return found.text if found else "accepted"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *ANSWERS["refused"],
        (words(19), "summary_too_short"),
        (words(126), "summary_too_long"),
        ("Instructions: " + ASKED[:300], "summary_refused"),
        ("<!DOCTYPE html>\n<title>502 Bad Gateway</title> " + words(110), "summariser_error_frame"),
    ],
)
def test_bad_answers_are_refused_with_the_reason(text: str, reason: str) -> None:
    assert judged(text.replace("{notes}", words(30)).replace("{asked}", ASKED)) == reason


def test_a_summary_must_be_clearly_smaller_than_what_it_replaces() -> None:
    assert judged(words(70), replaces=100) == "accepted"
    assert judged(words(71), replaces=100) == "summary_not_smaller"


@pytest.mark.parametrize("text", ANSWERS["taken"])
def test_a_summary_may_speak_of_what_would_be_no_summary(text: str) -> None:
    assert judged(text + words(30)) == "accepted"
    assert visible_text(text) == text.strip()


def test_what_stands_before_the_end_of_reasoning_is_no_part_of_the_summary() -> None:
    assert visible_text("Okay, the user wants notes: a < b.\n</think>\n\nThe user asked.") == "The user asked."
    assert visible_text("<think>Notes, then.</think>\n\nThe user asked.") == "The user asked."


@pytest.mark.parametrize("asked", ["", "Summary"])
def test_instructions_of_a_few_words_may_stand_in_a_summary(asked: str) -> None:
    text = "Summary: the customer wants a refund for ORD-0001 by Friday, and the clerk has asked the warehouse for it."
    answer = SummaryAnswer(text, Ending.FINISHED, "stop")
    assert objection(answer, 30, 100, 1_000, asked) is None
