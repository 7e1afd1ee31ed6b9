"""A text becomes a chunk only if everything holds."""

import pytest

from app.core.summary.gate import Ending, SummaryAnswer, objection
from app.wire.chat_completions.summaries import ENDINGS
from tests.unit.conversations import count, words


def judged(text: str, finish: str = "stop", *, calls: bool = False, at_most: int = 100, replaces: int = 1_000) -> str:
    ending = Ending.CALLED if calls else ENDINGS.get(finish, Ending.OTHER)
    found = objection(SummaryAnswer(text, ending, finish), count(text), at_most, replaces)
    return found.text if found else "accepted"


def test_notes_of_a_fitting_size_are_accepted() -> None:
    assert judged(words(30)) == "accepted"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "summary_empty"),
        ("   \n", "summary_empty"),
        ("<think>only thoughts</think>", "summary_empty"),
        (words(19), "summary_too_short"),
        (words(126), "summary_too_long"),
        ("I'm sorry, but I can't help with that. " + words(30), "summary_refused"),
        ("I cannot summarise this conversation. " + words(30), "summary_refused"),
        ("As an AI language model, " + words(30), "summary_refused"),
        ("There is no conversation to summarize here. " + words(30), "summary_refused"),
        ("The transcript is empty, so " + words(30), "summary_refused"),
        ("Please provide the conversation that you want to have summarised. " + words(30), "summary_refused"),
    ],
)
def test_bad_answers_are_refused_with_the_reason(text: str, reason: str) -> None:
    assert judged(text) == reason


def test_an_unfinished_answer_is_refused() -> None:
    assert judged(words(30), "length") == "summary_not_finished:length"
    assert judged(words(30), "content_filter") == "summary_not_finished:content_filter"


def test_a_tool_call_is_no_summary() -> None:
    assert judged(words(30), "tool_calls", calls=True) == "summary_is_a_tool_call"


def test_a_summary_must_be_clearly_smaller_than_what_it_replaces() -> None:
    assert judged(words(70), replaces=100) == "accepted"
    assert judged(words(71), replaces=100) == "summary_not_smaller"


def test_a_refusal_that_is_quoted_later_is_not_one() -> None:
    assert judged("The user was told: I'm sorry, but I can't help with that. " + words(30)) == "accepted"


def test_long_notes_that_begin_with_somebodys_regret_are_no_refusal() -> None:
    assert judged("I'm sorry, I do not have my user id with me. " + words(100), at_most=200) == "accepted"
