"""Tool results as text: clients that have no role for them write calls and results into messages.

`authored_text` says how a user message reads by itself. Whether it is a result also depends on the message before it:
see `History`. The wordings of both are in `authored_text.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from app.conversation.wordings import read_wordings

WORDINGS = read_wordings(__package__, "authored_text.toml")
CALL_CHARACTERS = 4_000
"""Characters at the end of an assistant message that are searched for a call."""

_CALL = re.compile("|".join(WORDINGS["calls"]), re.MULTILINE)


class ResultConfidence(Enum):
    """How surely a user message is a tool result."""

    NONE = auto()
    POSSIBLE = auto()
    """Reads like a result, but may hold words of the user."""
    LIKELY = auto()
    """Uses words that a user might write: it is a result where the assistant called a tool."""
    CERTAIN = auto()
    """Uses words that only programs write."""


def calls_in_text(texts: Sequence[str]) -> bool:
    """Whether an assistant message ends with a tool call that is written as text."""
    return _CALL.search("\n".join(texts)[-CALL_CHARACTERS:]) is not None
