"""Title of a conversation: the first words of the user."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from app.conversation.authored_text import authored_in
from app.conversation.client_context import without_context
from app.conversation.messages import Kind, Message

LONGEST_TITLE, LONGEST_TITLED = 80, 200_000
"""Maximum characters of a title, and maximum bytes of a message that Steno searches for a title."""
TITLE_MESSAGES = 3
"""Number of user messages that Steno searches for a title, from the first."""


def title_of(messages: Sequence[Message]) -> str:
    """Return the first words of the user on one line, as a title; empty if the first messages have none."""
    of_user = (message for message in messages if message.kind is Kind.USER)
    for message in islice(of_user, TITLE_MESSAGES):
        if len(message.raw) <= LONGEST_TITLED:
            words = " ".join(" ".join(authored_in(without_context(message.own_texts))).split())
            if len(words) > LONGEST_TITLE:
                cut = words[:LONGEST_TITLE]  # The last word may be cut: remove it, unless it is the only one.
                return f"{cut.rpartition(' ')[0].rstrip(' ,;:-') or cut}\N{HORIZONTAL ELLIPSIS}"
            if words:
                return words
    return ""
