"""Title of a conversation: the first words that its user wrote."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from app.conversation.authored_text import authored_in
from app.conversation.client_context import without_context
from app.conversation.messages import Kind, Message

LONGEST = 80
"""Characters of a title."""
LONGEST_MESSAGE = 200_000
"""Characters of a message that is looked at for one."""
MOST_MESSAGES = 3
"""Number of the user's first messages; the first that holds words of his own gives the title."""


def title_of(messages: Sequence[Message]) -> str:
    """The beginning of what the user wrote, in one line; empty where the first messages hold no words of the user."""
    of_user = (message for message in messages if message.kind is Kind.USER)
    for message in islice(of_user, MOST_MESSAGES):
        if len(message.raw) <= LONGEST_MESSAGE:
            words = " ".join(" ".join(authored_in(without_context(message.own_texts))).split())
            if words:
                return words if len(words) <= LONGEST else f"{_whole_words(words[:LONGEST])}\N{HORIZONTAL ELLIPSIS}"
    return ""


def _whole_words(text: str) -> str:
    """Text without its last word, which may be cut; a single word is cut."""
    return text.rpartition(" ")[0].rstrip(" ,;:-") or text
