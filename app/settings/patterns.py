"""Patterns of the operator that are searched for in what users write: a slow one would be everybody's trouble."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_PATTERNS = 50
LONGEST_PATTERN = 300
MOST_REPETITIONS = 3
"""Number of repetitions in a pattern: each multiplies the time by the length of a sentence."""

_SIGN = re.compile(
    # A repetition goes with what stands before it: the sign itself is all that is looked at.
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:P?<\w+>|[a-zA-Z-]+:|<?[=!]|[:>]))?|\)|\||[*+][?+]?|\{\d*,?\d*\}[?+]?|.",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    repeats: bool = False
    chooses: bool = False


def pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern, for any case. Raises `ValueError` for one that is none, or that may take forever.

    Theory: what takes exponential time repeats something that can itself be matched in several ways. So nothing that
    repeats or chooses may be repeated, and only a few repetitions may stand side by side.
    """
    if len(text) > LONGEST_PATTERN:
        raise ValueError(f"A pattern has {len(text)} characters; {LONGEST_PATTERN} are allowed")
    try:
        compiled = re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    if compiled.search(""):
        raise ValueError(f"{text!r} fits every sentence")
    if _repetitions(text) > MOST_REPETITIONS:
        raise ValueError(f"{text!r} could take very long: at most {MOST_REPETITIONS} repetitions, none inside another")
    return compiled


def _repetitions(text: str) -> int:
    """Number of repetitions; more than are allowed where one holds another, or a choice."""
    open_groups, closed, number = [_Group()], None, 0
    for sign in _SIGN.findall(text):
        if sign[0] == "(":
            open_groups.append(_Group())
        elif sign == ")":
            closed = open_groups.pop()
            open_groups[-1].repeats |= closed.repeats
            open_groups[-1].chooses |= closed.chooses
            continue
        elif sign == "|":
            open_groups[-1].chooses = True
        elif sign[0] in "*+" or (sign[0] == "{" and len(sign) > 1):
            number += 1
            if closed is not None and (closed.repeats or closed.chooses):
                return MOST_REPETITIONS + 1
            open_groups[-1].repeats = True
        closed = None
    return number
