"""Standing rules: which sentences of a user are some, and which only look like it."""

from __future__ import annotations

import pytest

from app.core.history.messages import Kind, Message
from app.core.summary.rules import rules_in
from tests.unit.wordings import RULES, TALES


def said(*texts: str) -> Message:
    return Message(Kind.USER, "user", texts, b"", b"")


def found(*texts: str) -> list[str]:
    return [rule.text for rule in rules_in([said(*texts)])]


@pytest.mark.parametrize("rule", [rule for rules in RULES.values() for rule in rules])
def test_a_rule_is_found_letter_by_letter(rule: str) -> None:
    assert found(rule) == [rule]


@pytest.mark.parametrize("tale", [tale for tales in TALES.values() for tale in tales])
def test_a_tale_a_wish_or_a_question_is_no_rule(tale: str) -> None:
    assert found(tale) == []
