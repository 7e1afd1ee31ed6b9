"""Why the latest payload looks as it does, in words and numbers."""

from __future__ import annotations

import re

from app.core.reasons import Code

_WORD = re.compile(r"[a-z_]+")
_BY_WORD = {str(code): code for code in Code}


def meanings(reason: str | None) -> list[tuple[str, str]]:
    """The reasons' words in a line of them, each with what it means."""
    words = dict.fromkeys(_WORD.findall(reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in words if word in _BY_WORD]
