"""Expectations: what a case says about values, and where a value differs from it.

A mapping of operators is a condition, any other mapping is about members of the value, and everything else is equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.exchanges.histories import texts_in

SHOWN = 300
"""Characters of a value that are shown."""


def mismatches(expected: Any, seen: Any, at: str = "") -> list[str]:
    """A sentence for each expectation that does not hold."""
    return list(_mismatches(expected, seen, at))


def member(value: Any, path: str) -> Any:
    """Member of a JSON value, such as `data.0.id`; `...` where there is none. A list takes negative places."""
    for name in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(name, ...)
        elif isinstance(value, list) and re.fullmatch(r"-?\d+", name) and -len(value) <= int(name) < len(value):
            value = value[int(name)]
        else:
            return ...
    return value


def _mismatches(expected: Any, seen: Any, at: str) -> Iterator[str]:
    if isinstance(expected, Mapping) and expected:
        if all(name in OPERATORS for name in expected):
            for name, wanted in expected.items():
                if not OPERATORS[name](seen, wanted):
                    yield f"{at} {name} {_shown(wanted)}, but it is {_shown(seen)}"
            return
        for name, inner in expected.items():
            where = f"{at}.{name}" if at else name
            if isinstance(seen, Mapping) and name in seen:
                yield from _mismatches(inner, seen[name], where)
            else:
                yield from _mismatches(inner, member(seen, str(name)), where)
    elif isinstance(expected, list) and isinstance(seen, list) and len(expected) == len(seen):
        for number, (one, other) in enumerate(zip(expected, seen, strict=True)):
            yield from _mismatches(one, other, f"{at}.{number}")
    elif (type(expected) is not type(seen) and not _are_numbers(expected, seen)) or expected != seen:
        yield f"{at} is {_shown(expected)}, but it is {_shown(seen)}"


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _held(seen: Any, wanted: Any) -> Iterator[bool]:
    """Whether each of the texts stands in the value: in the value itself, in a text inside, or in its JSON."""
    for text in wanted if isinstance(wanted, list) else [wanted]:
        yield _holds(seen, text if isinstance(text, str) else json.dumps(text))


def _holds(seen: Any, text: str) -> bool:
    if seen is ... or seen is None:
        return False
    if isinstance(seen, str):
        return text in seen
    return any(text in one for one in texts_in(seen)) or text in json.dumps(seen, ensure_ascii=False)


def _number(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda seen, wanted: _are_numbers(seen, wanted) and compare(seen, wanted)


def _length(seen: Any, wanted: Any) -> bool:
    return hasattr(seen, "__len__") and not mismatches(wanted, len(seen))


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "at_most": _number(lambda seen, wanted: seen <= wanted),
    "at_least": _number(lambda seen, wanted: seen >= wanted),
    "more_than": _number(lambda seen, wanted: seen > wanted),
    "less_than": _number(lambda seen, wanted: seen < wanted),
    "is_not": lambda seen, wanted: bool(seen != wanted),
    "one_of": lambda seen, wanted: seen in wanted,
    "has": lambda seen, wanted: all(_held(seen, wanted)),
    "lacks": lambda seen, wanted: not any(_held(seen, wanted)),
    "starts": lambda seen, wanted: isinstance(seen, str) and seen.startswith(wanted),
    "ends": lambda seen, wanted: isinstance(seen, str) and seen.endswith(wanted),
    "matches": lambda seen, wanted: isinstance(seen, str) and re.search(wanted, seen) is not None,
    "present": lambda seen, wanted: (seen is not ...) == wanted,
    "length": _length,
}


def _shown(value: Any) -> str:
    text = "missing" if value is ... else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
