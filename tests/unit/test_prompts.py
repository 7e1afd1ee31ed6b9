"""What the summariser is shown, and how a summary stands in a payload."""

import pytest
from msgspec.structs import replace

from app.compaction.chunks import UserWords
from app.compaction.prompts import (
    LONGEST_FAILURE,
    chunk_text,
    failed_results,
    quote_messages,
    summary_request,
)
from app.compaction.view import Verbatim, View
from app.conversation.messages import History, Media
from app.conversation.quoting import fence_of
from tests.unit.conversations import chunk, conversation, message, turns

FENCE = "0badcafe"


def test_each_message_stands_under_its_number_and_speaker() -> None:
    messages = [
        message("user", "what is 2+2?"),
        message("assistant", "let me see", calls=["c1"]),
        message("tool", "4", answers="c1"),
    ]
    assert quote_messages(History(messages), 10, (), FENCE) == (
        f"<{FENCE} 11 user>\nwhat is 2+2?\n"
        f'<{FENCE} 12 assistant>\nlet me see\n[calls tool_c1 with {{"a": 1}}]\n'
        f"<{FENCE} 13 tool tool_c1>\n4\n"
        f"<{FENCE} end>"
    )


def test_each_result_of_a_message_stands_by_itself() -> None:
    asked = message("assistant", calls=["c1", "c2"])
    texts = ("4", "Error: no", "and more", "Go on.")
    results = replace(message("tool"), texts=texts, answers=("c1", "c2"), owners=(0, 1, 1, -1))
    talk = History([asked, results])
    quoted = quote_messages(talk, 0, (), FENCE)
    assert "\n[result 1 of 2]\n4\n[result 2 of 2]\nError: no\nand more\nGo on.\n" in quoted
    assert failed_results(talk, 8).endswith("\n- tool_c2: Error: no and more")
    assert "[result" not in quote_messages(
        [message("assistant", calls=["c1"]), message("tool", "4", answers="c1")], 0, (), FENCE
    )


def test_media_are_described_and_not_shown() -> None:
    picture = replace(message("user", "look"), media=(Media("image", 4_000, "high"),))
    assert "[image of 4000 characters, not shown]" in quote_messages([picture], 0, (), FENCE)


def test_a_result_without_its_call_and_a_named_speaker_are_quoted_too() -> None:
    named = replace(message("user", "hi"), name="ann")
    quoted = quote_messages([message("tool", "r", answers="gone"), named], 0, (), FENCE)
    assert f"<{FENCE} 1 tool>" in quoted
    assert f"<{FENCE} 2 user ann>" in quoted


def test_values_and_the_users_words_stand_after_the_notes_each_in_marks_of_their_own() -> None:
    made = chunk(conversation(*turns(2)), 0, 2)
    fence = fence_of(made.through_digest)
    with_both = replace(made, values=("ORD-1", "a.py"), user_words=(UserWords(3, "Never push."),))
    assert chunk_text(with_both) == (
        f"{chunk_text(made)}\n"
        "[The user said, quoted letter by letter behind the number of the turn;"
        " later statements hold over earlier ones:]\n"
        f"<words {fence}>\nturn 3: Never push.\n</words {fence}>\n"
        "[Exact values from these messages, copied by code:]\n"
        f"<values {fence}>\nORD-1\na.py\n</values {fence}>"
    )


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


def test_the_rules_stand_before_the_transcript_and_after_it() -> None:
    request = summary_request("Keep all ids.", "the transcript", 100, 200, ("a hint",))
    assert request.max_tokens == 200
    assert "at most 50 words" in request.instructions
    assert request.transcript.startswith("the transcript")
    assert request.transcript.endswith(request.instructions)
    assert "a hint" in request.instructions


def test_recent_messages_are_marked_from_an_offset_on() -> None:
    quoted = quote_messages([message("user", "a"), message("assistant", "b")], 4, (1,), FENCE, recent_from=1)
    assert f"<{FENCE} 5 user>" in quoted
    assert f"<{FENCE} 6 assistant, stays in the conversation, shown as context, recent>" in quoted
    assert "recent" not in quote_messages([message("user", "a")], 4, (), FENCE)


def test_the_conversation_itself_has_rules_of_its_own_and_the_transcript_for_those_who_do_not_take_it() -> None:
    shown = View((Verbatim(0, 2),), 100)
    request = summary_request("Keep all ids.", "the transcript", 100, 200, ("a hint",), shown, ("Notes so far.",))
    assert request.shown == shown
    assert request.closing.startswith("Keep all ids.\na hint\nNotes so far.\nUse at most 50 words.")
    assert "call no tool" in request.closing
    quoted = summary_request("Keep all ids.", "the transcript", 100, 200, ("a hint",))
    assert (request.instructions, request.transcript) == (quoted.instructions, quoted.transcript)


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


def test_a_failure_without_its_call_has_the_name_of_the_result() -> None:
    result = replace(message("tool", "Error: x", answers="gone"), name="look")
    assert failed_results([result], 8).endswith("\n- look: Error: x")
