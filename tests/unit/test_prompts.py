"""What the summariser is shown, and how a summary stands in a payload."""

import pytest
from msgspec.structs import replace

from app.compaction.chunks import UserWords
from app.compaction.prompts import (
    LONGEST_FAILURE,
    chunk_text,
    failed_results,
)
from app.conversation.messages import History
from tests.unit.conversations import chunk, conversation, message, turns


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
