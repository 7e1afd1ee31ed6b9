"""What a PromQL expression asks for: its metrics with their matchers, and the labels that it groups by.

Not a whole grammar: expressions of ours use selectors, functions, aggregations and operators. Whatever is not one of
these is an error here, not something to be passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<range>\[(?:\d+[smhdwy])+\])
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){},])
    )""",
    re.VERBOSE,
)
AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
RATES = {"rate", "increase"}
FUNCTIONS = {*RATES, "histogram_quantile"}
OPERATORS = {"and", "or", "unless"}


@dataclass(frozen=True)
class Selector:
    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    """Label, operator, value."""
    is_range: bool
    function: str
    """The one that it is directly the argument of; empty for none."""


@dataclass(frozen=True)
class Asked:
    selectors: tuple[Selector, ...]
    grouped: tuple[str, ...]
    """Labels of all `by` clauses."""


def asked(expression: str) -> Asked:
    """Raises `ValueError` for what cannot be read."""
    tokens = list(_tokens(expression))
    selectors, grouped, opened, place = list[Selector](), list[str](), list[str](), 0
    while place < len(tokens):
        kind, text = tokens[place]
        following = tokens[place + 1][1] if place + 1 < len(tokens) else ""
        place += 1
        if kind == "name" and text == "by":
            labels, place = _labels(tokens, place)
            grouped += labels
        elif kind == "name" and (text in AGGREGATIONS or text in FUNCTIONS):
            if following not in ("(", "by"):
                raise ValueError(f"{text} has no argument: {expression}")
        elif kind == "name" and text not in OPERATORS:
            matchers, place = _matchers(tokens, place) if following == "{" else ((), place)
            is_range = place < len(tokens) and tokens[place][0] == "range"
            place += is_range
            selectors.append(Selector(text, tuple(matchers), is_range, opened[-1] if opened else ""))
        elif text == "(":
            before = tokens[place - 2] if place > 1 else ("", "")
            opened.append(before[1] if before[0] == "name" else "")
        elif text == ")":
            if not opened:
                raise ValueError(f"a bracket is closed that was not opened: {expression}")
            opened.pop()
        elif kind == "range":
            raise ValueError(f"a range without a metric: {expression}")
    if opened:
        raise ValueError(f"a bracket is left open: {expression}")
    return Asked(tuple(selectors), tuple(grouped))


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    place = 0
    while expression[place:].strip():
        found = TOKEN.match(expression, place)
        if found is None:
            raise ValueError(f"cannot be read from here on: {expression[place:]}")
        place = found.end()
        yield str(found.lastgroup), str(found[str(found.lastgroup)])


def _labels(tokens: list[tuple[str, str]], place: int) -> tuple[list[str], int]:
    end = tokens.index(("sign", ")"), place)
    return [text for kind, text in tokens[place + 1 : end] if kind == "name"], end + 1


def _matchers(tokens: list[tuple[str, str]], place: int) -> tuple[list[tuple[str, str, str]], int]:
    end = tokens.index(("sign", "}"), place)
    inner = [text for _, text in tokens[place + 1 : end] if text != ","]
    if len(inner) % 3:
        raise ValueError(f"matchers that cannot be read: {inner}")
    return [(inner[at], inner[at + 1], inner[at + 2][1:-1]) for at in range(0, len(inner), 3)], end + 1
