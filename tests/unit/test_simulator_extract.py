"""The extractive summariser: what survives, and how long it may get."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.compaction.prompts import LATER_NOTE
from lab.simulator.replies import summarise, summary_of

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


@given(st.text(alphabet="ab1. \n@-", max_size=300), st.integers(min_value=1, max_value=60))
def test_summary_stays_within_its_words_and_half_of_the_text(text: str, words: int) -> None:
    summary = summarise(text, words)
    assert len(summary.split()) <= max(1, min(words, len(text.split()) // 2))
    assert summary == summarise(text, words)
