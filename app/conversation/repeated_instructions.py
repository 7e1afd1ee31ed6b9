"""Repeated instructions: clients that give the model passages for each question as a system message of its own.

Instructions stay in every payload, so these would fill the window. Where they do, only the newest of those with the
same beginning stays one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from app.conversation.messages import History, Kind, Message

MOST_OF_LIMIT = 0.5
"""Share of the limit that instructions among the messages may take."""
BEGINNING = 24
"""Characters of a beginning, all numbers being equal."""
_READ_CHARACTERS = 200
_NUMBER = re.compile(r"\d+")


def superseded_places(history: History) -> frozenset[int]:
    """Indexes of the instructions among the messages that a later one with the same beginning takes the place of."""
    newest = {_beginning(history[place]): place for place in history.instruction_places}
    return frozenset(history.instruction_places) - frozenset(newest.values())


def without_superseded(history: History, superseded: frozenset[int]) -> History:
    """The history, of which these are no instructions: summaries may take their place, and quote nothing of them."""

    def messages() -> Iterator[Message]:
        for place, message in enumerate(history):
            yield replace(message, kind=Kind.OTHER, sealed=True) if place in superseded else message

    return History(messages())


def _beginning(message: Message) -> tuple[str, str]:
    return message.role, _NUMBER.sub("0", message.text[:_READ_CHARACTERS].strip())[:BEGINNING]
