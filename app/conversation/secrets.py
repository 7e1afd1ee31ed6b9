"""Secrets: remove keys, tokens, passwords and private keys from a text before Steno stores it.

Each pattern has hints, which are short strings. For speed, Steno tries a pattern only where one of its hints occurs.
If only a name such as `password` suggests a secret, Steno removes the value only if it looks random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import log2

from app.conversation.wordings import read_wordings

REMOVED = "[secret removed]"
LEAST_BITS = 2.75
"""Minimum entropy of a value that looks random, in bits per character. Words have less, because letters repeat."""
JUDGED = 80
"""Number of leading characters of a value that Steno tests for randomness."""

_WORDINGS = read_wordings(__package__, "secrets.toml")
_PLACEHOLDER = re.compile(_WORDINGS["placeholder"])
_RULES: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = tuple(
    (rule["hints"], re.compile(rule["pattern"])) for rule in _WORDINGS["rules"]
)
_LETTER, _OTHER = re.compile("[A-Za-z]"), re.compile("[0-9!@#%^&?~+]")


def without_secrets(text: str) -> str:
    """Replace each secret by `REMOVED`. JSON stays valid, because no syntax is removed."""
    pieces, done = [], 0
    for start, end in sorted(_places(text)):
        if start >= done:
            pieces += [text[done:start], REMOVED]
        done = max(done, end)
    return "".join((*pieces, text[done:])) if pieces else text


def _places(text: str) -> Iterator[tuple[int, int]]:
    # U+0130 is the only letter whose lower case is longer. Positions must be the same in both texts.
    lowered = text.replace("\u0130", "I").lower()
    for hints, pattern in _RULES:
        read = lowered if pattern.flags & re.IGNORECASE else text
        for hint in hints:
            at = read.find(hint)
            while at >= 0:
                found, after = pattern.match(text, at), at + 1
                if found and (found.lastgroup != "varied" or _looks_random(found["varied"])):
                    yield found.span(found.lastgroup or 0)
                    after = found.end()  # Skip hints inside the secret. Otherwise many repeated hints take minutes.
                at = read.find(hint, after)


def _looks_random(value: str) -> bool:
    value = value[:JUDGED]
    if not (_OTHER.search(value) and _LETTER.search(value)) or _PLACEHOLDER.search(value):
        return False
    size = len(value)
    return -sum(number / size * log2(number / size) for number in map(value.count, set(value))) >= LEAST_BITS
