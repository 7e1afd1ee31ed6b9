"""JSON as keys: with the values that identify something, and the numbers of what there is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, islice
from typing import Any

from app.compaction.tool_output_pieces import MOST_HEAD, Found

MOST_LEAVES = 1_000
DEEPEST = 12
LONGEST_VALUE = 100
"""Characters that are shown of one."""
SHORT = 40
"""Characters of a value that is no prose."""

IDENTIFIES, TELLS, IS_SHORT, IS_PROSE = 0.0, 0.2, 1.0, 2.0
"""Ranks of a value: by its key, by a digit in it, and by its length. Further elements of an array come after the first
one's."""
EACH, MOST_EACH = 0.02, 1.0

Place = tuple[str | int, ...]
"""Keys and indexes that lead to a value."""

_KEY = re.compile(
    r"(?:^|_|-)(?:id|number|name|key|code|email|path|url|uri|sha|ref|title|status|state|date|type|error|message)s?$"
    r"|[a-z]I[dD]s?$",
    re.IGNORECASE,
)
_DIGIT = re.compile(r"\d")


def members(text: str) -> Found | None:
    """Objects and arrays with the values that say most."""
    if text.lstrip()[:1] not in ("{", "[") or len(text) > MOST_HEAD:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    leaves = list(islice(_leaves(value, "", (), 0), MOST_LEAVES))
    return Found(f"{len(leaves)} values", partial(_fitting, value, leaves)) if leaves else None


def _leaves(value: Any, key: str, place: Place, nth: int) -> Iterator[tuple[float, Place, str]]:
    """Rank, place and text of each value. `nth`: number of elements before it, of all arrays around it."""
    if len(place) > DEEPEST:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name, (*place, name), nth)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, key, (*place, number), nth + number)
    elif value not in (None, ""):
        text = " ".join((value if isinstance(value, str) else json.dumps(value))[:LONGEST_VALUE].split())
        yield _rank(key, value, text) + min(EACH * nth, MOST_EACH), place, text


def _rank(key: str, value: Any, text: str) -> float:
    if len(text) > SHORT:
        return IS_PROSE
    if _KEY.search(key):
        return IDENTIFIES
    return TELLS if isinstance(value, str) and _DIGIT.search(value) else IS_SHORT


def _fitting(value: Any, leaves: Sequence[tuple[float, Place, str]], room: int) -> str:
    """Show the best values where they belong, as many as fit."""
    ranked = sorted(leaves, key=lambda leaf: leaf[0])[:room]
    best, low, high = "", 0, len(ranked)
    while low < high:
        middle = (low + high + 1) // 2
        shown = _shown(value, _tree(ranked[:middle]))
        if len(shown) <= room:
            best, low = shown, middle
        else:
            high = middle - 1
    return best


def _tree(leaves: Sequence[tuple[float, Place, str]]) -> Any:
    tree: dict[Any, Any] = {}
    for _, place, text in leaves:
        node = tree
        for step in place[:-1]:
            node = node.setdefault(step, {})
        node[place[-1]] = text
    return tree


def _shown(value: Any, tree: Any) -> str:
    """A value, of which the tree says what is left."""
    if isinstance(tree, str):
        return tree
    if isinstance(value, dict):
        return ", ".join(_member(name, value[name], tree[name]) for name in value if name in tree)
    elements = [(value[number], tree[number]) for number in range(len(value)) if number in tree]
    return " | ".join(_elements(*group) for group in groupby(elements, lambda element: _keys(element[1])))


def _elements(keys: tuple[str, ...], group: Iterator[tuple[Any, Any]]) -> str:
    """Elements one after another; objects with the same keys as a table."""
    elements = list(group)
    if not keys or len(elements) == 1:
        return "; ".join(_inside(*element) for element in elements)
    return f"{', '.join(keys)}: {'; '.join(', '.join(tree.values()) for _, tree in elements)}"


def _member(name: str, value: Any, tree: Any) -> str:
    if isinstance(tree, dict) and [*tree.values()] == [name]:
        return name  # An object that has its own key as its id.
    return f"{name}{f'[{len(value)}]' if isinstance(value, list) else ''}: {_inside(value, tree)}"


def _keys(tree: Any) -> tuple[str, ...]:
    """Keys of an object of plain values, by which it is a row of a table; none of any other value."""
    return tuple(tree) if isinstance(tree, dict) and all(isinstance(inner, str) for inner in tree.values()) else ()


def _inside(value: Any, tree: Any) -> str:
    return f"{{{_shown(value, tree)}}}" if isinstance(value, dict) else _shown(value, tree)
