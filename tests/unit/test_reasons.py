"""Reasons, as people are told: the cause first."""

from app.core.reasons import joined


def test_each_reason_is_told_once_and_the_cause_first() -> None:
    assert joined("summariser_status_503", None, "summary_failed_lately") == (
        "summariser_status_503, summary_failed_lately"
    )
    assert joined("storage", "storage") == "storage"


def test_without_a_reason_none_is_told() -> None:
    assert joined(None) is None
