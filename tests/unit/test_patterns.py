"""Patterns of the operator: what is searched for in users' words, and what would take too long."""

from __future__ import annotations

import pytest

from app.settings.patterns import LONGEST_PATTERN, pattern


@pytest.mark.parametrize(
    "text",
    [
        r"^altijd\b",
        r"\bcode (?:red|blue)\b",
        r"(?:never|always) push .+ to [a-z]+",
        r"a{2,5}b",
        r"[+*]{2} \(a\+\)",
        r"(?P<who>you|we) must",
        r"(?<=x)(?!y)z+",
        r"\\(a|b)",
        r"colou?r",
    ],
)
def test_a_pattern_is_searched_for_in_any_case(text: str) -> None:
    found = pattern(text)
    assert found.pattern == text
    assert pattern("^altijd").search("ALTIJD tabs")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(a", "is no regular expression"),
        ("[", "is no regular expression"),
        (".*", "fits every sentence"),
        ("(?:never)?", "fits every sentence"),
        (r"(a+)+b", "could take very long"),
        (r"((a+)b?)*c", "could take very long"),
        (r"(?:a|a)*b", "could take very long"),
        (r"(?:a|aa){9}b", "could take very long"),
        (r"(x[a-z]*){2,}y", "could take very long"),
        (r".*a.*b.*c.*d", "could take very long"),
        ("x" * (LONGEST_PATTERN + 1), f"{LONGEST_PATTERN} are allowed"),
    ],
)
def test_a_pattern_that_is_none_or_may_take_forever_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pattern(text)
