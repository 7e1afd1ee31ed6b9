"""Told: how surely a user's text is what a tool said, and how an assistant's text calls a tool.

Clients without a way to send calls and results as such write both as texts. `own_words` says how a text reads by
itself; what it then is depends on what stands before it: see `History`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

from app.core.history.passed_on import CALLS

READ_CHARACTERS = 4_000
"""Characters that are read at the end of an assistant's message: that is where it calls a tool, and waits."""

_CALL = re.compile("|".join(pattern for patterns in CALLS.values() for pattern in patterns), re.MULTILINE)


class Told(Enum):
    """How a user's message reads."""

    NOT = auto()
    """The user's own words."""
    PERHAPS = auto()
    """A result, as it reads; something in it may be his own."""
    LIKELY = auto()
    """A result, in words that somebody might write himself: it is one where the assistant called a tool."""
    SURELY = auto()
    """A result, in words that only programs write."""


def calls_in_text(texts: Sequence[str]) -> bool:
    """Whether an assistant's message ends with a call that is written as text."""
    return _CALL.search("\n".join(texts)[-READ_CHARACTERS:]) is not None
