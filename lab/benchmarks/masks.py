"""How much of what an agent uses again is left of a masked result, by way of masking: `make masks FILE=...`.

An identifier is a path, a symbol, an id, a date or a number of two digits or more. Of those in a result, and not in its
call, that the assistant writes again, the table gives the share that the masked text still has: from its next message
on, and once ten more results have come, when a mask may take its place.

A recording is a chat. Results are those of calls; or, for agents without calls, a user's messages behind a fenced
command of the assistant.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.core.history.told import READ_CHARACTERS
from app.core.shapes.shape import shape_of, shaped, shorten
from app.core.view.mask import MaskPolicy

LATER = 10
"""Results that stand behind one which is masked."""
LONGEST = MaskPolicy().characters

_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@+-]*[A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"(?=.{3})(?:.*[a-z0-9][A-Z]|.*[A-Za-z].*\d|.*\d.*[A-Za-z]|.*[_/]|.*[a-z]\.[a-z]|\d).*|\d\d")
_COMMAND = re.compile(r"```(?:bash|sh|shell|mswea_bash_command)\n(.*?)```", re.DOTALL)

Way = Callable[[str, str], str]

WAYS: dict[str, Way] = {
    "head and tail": lambda text, _: shorten(text, LONGEST),
    "shape": lambda text, call: shaped(text, call, LONGEST),
}


class Result(NamedTuple):
    text: str
    call: str
    said: tuple[str, ...]
    """Texts and calls of the assistant behind it, a message each."""
    far: int
    """Messages of these that come before ten more results have."""


def identifiers(text: str) -> frozenset[str]:
    return frozenset(word for word in _WORD.findall(text) if _IDENTIFIER.fullmatch(word))


def results(messages: Sequence[dict[str, Any]]) -> Iterator[Result]:
    """Results that are long enough for a mask, with what the assistant writes later."""
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls") or ()}
    found: list[tuple[int, str, str]] = []
    for index, message in enumerate(messages):
        text = message.get("content")
        if not isinstance(text, str):
            continue
        if message["role"] == "tool":
            called = calls.get(message["tool_call_id"], {"name": "", "arguments": ""})
            found.append((index, text, f"{called['name']} {called['arguments']}"))
        elif message["role"] == "user" and index and _COMMAND.search(call := _written(messages[index - 1])):
            found.append((index, text, call[-READ_CHARACTERS:]))
    for place, (index, text, call) in enumerate(found):
        if len(text) > LONGEST:
            later = [i for i in range(index + 1, len(messages)) if messages[i]["role"] == "assistant"]
            end = found[place + LATER][0] if place + LATER < len(found) else len(messages)
            far = sum(i <= end for i in later)
            yield Result(text, call, tuple(_written(messages[i]) for i in later), far)


def _written(message: dict[str, Any]) -> str:
    calls = (f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ())
    return "\n".join((message.get("content") or "", *calls)) if message["role"] == "assistant" else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="recorded chats, a JSON object with `messages` a line")
    arguments = parser.parse_args()
    counted: Counter[tuple[str, str]] = Counter()
    for line in arguments.file.read_text().splitlines():
        for result in results(json.loads(line)["messages"]):
            _count(counted, result)
    ways = " | ".join(WAYS)
    print(f"| results | number | {ways} | used again | {ways} | ten later | {ways} |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for kind in sorted({kind for kind, _ in counted}, key=lambda kind: -counted[kind, "results"]):
        print(_row(kind, counted))


def _count(counted: Counter[tuple[str, str]], result: Result) -> None:
    new = identifiers(result.text) - identifiers(result.call)
    used = {
        span: new & identifiers("\n".join(result.said[start:])) for span, start in (("soon", 0), ("far", result.far))
    }
    left = {way: mask(result.text, result.call) for way, mask in WAYS.items()}
    for kind in ("all", shape_of(result.text, result.call, LONGEST)[0]):
        counted[kind, "results"] += 1
        counted[kind, "characters"] += len(result.text)
        for way, text in left.items():
            counted[kind, f"{way} left"] += len(text)
        for span, values in used.items():
            counted[kind, span] += len(values)
            for way, text in left.items():
                counted[kind, f"{way} {span}"] += len(values & identifiers(text))


def _row(kind: str, counted: Counter[tuple[str, str]]) -> str:
    number = counted[kind, "results"]
    cells = [kind, str(number), *(f"{counted[kind, f'{way} left'] / number:.0f}" for way in WAYS)]
    for span in ("soon", "far"):
        total = counted[kind, span]
        cells += [str(total), *(f"{counted[kind, f'{way} {span}'] / max(1, total):.1%}" for way in WAYS)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
