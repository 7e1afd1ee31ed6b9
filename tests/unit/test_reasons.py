"""Reasons, as people are told: the cause first."""

import pytest

from app.conversation.reasons import PROBLEMS, Code, Reason, because, joined

STORAGE = Reason(Code.STORAGE)
FAILED_LATELY = Reason(Code.SUMMARY_FAILED_LATELY)


def test_each_reason_is_told_once_and_the_cause_first() -> None:
    cause = Reason(Code.SUMMARISER_STATUS, "503")
    assert joined((cause, FAILED_LATELY)) == "summariser_status_503, summary_failed_lately"
    assert joined((STORAGE, STORAGE)) == "storage"


def test_without_a_reason_none_is_told() -> None:
    assert joined(()) is None


def test_what_is_wrong_with_the_payload_comes_after_a_colon() -> None:
    wrong = Reason(Code.TOOL_PAIR_SPLIT), Reason(Code.OVER_THE_LIMIT)
    assert joined(wrong) == "tool_pair_split, over_the_limit"
    assert joined((STORAGE, FAILED_LATELY, *wrong)) == (
        "storage, summary_failed_lately: tool_pair_split, over_the_limit"
    )


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (because(Code.SUMMARISER_STATUS, "500"), "summariser_status_500"),
        (because(Code.SUMMARY_NOT_FINISHED, "length"), "summary_not_finished:length"),
        (because(Code.FLOOR_EXCEEDS_LIMIT, "the instructions take 9"), "floor_exceeds_limit: the instructions take 9"),
    ],
)
def test_a_detail_follows_its_code(reason: tuple[Reason, ...], text: str) -> None:
    assert joined(reason) == text


def test_each_code_has_a_meaning_of_its_own() -> None:
    assert len({code.meaning for code in Code}) == len(Code)
    assert set(Code) > PROBLEMS
