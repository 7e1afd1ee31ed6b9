"""The extractive summariser: what survives, and how long it may get."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.prompts import LATER_NOTE
from lab.simulator.replies import identifiers, quoted_lines, summarise, summary_of

TRANSCRIPT = """\
Summarise this.
<9f3a message 1 from user>
My order INV-2024-0042 never came. I moved to Lyon last year and like it there very much indeed.
<9f3a message 2 from assistant>
Sorry to hear that. Write to jo.doe+help@example.co.uk before 2026-03-01 and mention ticket 88213, please.

<9f3a end>
End of the transcript. Now write the notes, in at most 300 words."""


@pytest.mark.parametrize(
    "token", ["INV-2024-0042", "jo.doe+help@example.co.uk", "2026-03-01", "88213", "a1b2c3", "2026-03-01T10:30:00Z"]
)
def test_identifier_is_recognised_inside_punctuation(token: str) -> None:
    assert identifiers(f'see ("{token}"), or: {token}.') == [token]


def test_first_sentence_of_each_line_and_later_identifiers_are_kept() -> None:
    summary = summarise(quoted_lines(TRANSCRIPT), 400)
    assert "My order INV-2024-0042 never came." in summary
    assert "Lyon" not in summary
    for identifier in ("jo.doe+help@example.co.uk", "2026-03-01", "88213"):
        assert identifier in summary


CONVERSATION = [
    {"role": "system", "content": "Answer politely."},
    {
        "role": "user",
        "content": "[Notes on messages 1 to 14:]\n<notes ceef80d2>\nHer cat is Miso.\n</notes ceef80d2>\n"
        "[Exact values from these messages:]\n<values ceef80d2>\norder ORD-0007\n</values ceef80d2>\n",
    },
    {"role": "user", "content": "Where is order ORD-0008? I need it before Friday, really."},
    {"role": "assistant", "content": "It left the depot on Monday. It should arrive tomorrow."},
]


def test_of_a_conversation_with_earlier_notes_the_messages_after_them_are_summarised() -> None:
    order = {"role": "user", "content": f"Write notes on the conversation above.\n{LATER_NOTE}"}
    assert summary_of([*CONVERSATION, order], 400, None, len) == (
        "Where is order ORD-0008?\nIt left the depot on Monday."
    )


def test_sentences_shrink_before_identifiers_go() -> None:
    text = "\n".join(
        f"This is a rather long first sentence about case K{number}99. And more of it." for number in "abcde"
    )
    summary = summarise(text, 15)
    assert len(summary.split()) <= 15
    assert [f"K{number}99" in summary for number in "abcde"] == [True] * 5


@given(st.text(alphabet="ab1. \n@-", max_size=300), st.integers(min_value=1, max_value=60))
def test_summary_stays_within_its_words_and_half_of_the_text(text: str, words: int) -> None:
    summary = summarise(text, words)
    assert len(summary.split()) <= max(1, min(words, len(text.split()) // 2))
    assert summary == summarise(text, words)
