"""Conversations of the cases: written by rule, so that every recording sends the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

from lab.benchmarks.corpus.case import Step, chat

History = list[Any]

HELLO: History = [{"role": "user", "content": "What is in my cart?"}]
SYSTEM = {"role": "system", "content": "You are the clerk of a parcel depot. Never guess where a parcel is."}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
_FILLER = (
    "the customer asked about an order that was sent to the old address and the clerk wrote down what was agreed"
    " so that nobody has to ask again before the parcel returns to the warehouse"
)
_ABROAD = (
    "die Kundin fragte \u2013 \u00fcber M\u00fcnchen \u2013"
    " \u8377\u7269\u306f\u6771\u4eac\u306b\u3042\u308a\u307e\u3059 \U0001f4e6 caf\u00e9"
)


def text(beginning: str, words: int, filler: str = _FILLER) -> str:
    return " ".join((beginning, *islice(cycle(filler.split()), words)))


def plain_turn(turn: int, words: int = 120) -> History:
    return [
        {"role": "user", "content": text(f"Question {turn}, order ORD-{turn:04d}.", words)},
        {"role": "assistant", "content": text(f"Answer {turn}: about ORD-{turn:04d}.", words)},
    ]


def abroad_turn(turn: int, words: int = 60) -> History:
    return [
        {"role": "user", "content": text(f"Frage {turn}, ORD-{turn:04d}.", words, _ABROAD)},
        {"role": "assistant", "content": text(f"Antwort {turn}: ORD-{turn:04d}.", words, _ABROAD)},
    ]


def parts_turn(turn: int, words: int = 110) -> History:
    """Content in parts, with an image in every third turn, and a name."""
    parts: list[Any] = [{"type": "text", "text": text(f"Question {turn}, order ORD-{turn:04d}.", words)}]
    if turn % 3 == 0:
        parts.append({"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}})
    answer = {"type": "text", "text": text(f"Answer {turn}.", words)}
    return [{"role": "user", "name": "ines", "content": parts}, {"role": "assistant", "content": [answer]}]


def tool_turn(turn: int, words: int = 150, calls: int = 2) -> History:
    """An agent's turn: calls, one of which fails now and then, their results, and an answer."""
    ids = [f"call_{turn}_{number}" for number in range(calls)]
    asked = [
        {
            "id": id_,
            "type": "function",
            "function": {"name": "find_parcel", "arguments": f'{{"parcel": "PCL-{turn}{at}"}}'},
        }
        for at, id_ in enumerate(ids)
    ]
    results = [{"role": "tool", "tool_call_id": id_, "content": _found(turn, at, words)} for at, id_ in enumerate(ids)]
    return [
        {"role": "user", "content": f"Where are the parcels of order ORD-{turn:04d}?"},
        {"role": "assistant", "content": None, "tool_calls": asked},
        *results,
        {"role": "assistant", "content": text(f"They are on their way: ORD-{turn:04d}.", 20)},
    ]


def function_turn(turn: int, words: int = 250) -> History:
    """The form of calls before there were tools."""
    call = {"name": "find_parcel", "arguments": json.dumps({"parcel": f"PCL-{turn}"})}
    return [
        {"role": "user", "content": f"Where is the parcel of order ORD-{turn:04d}?"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "find_parcel", "content": _found(turn, 0, words)},
        {"role": "assistant", "content": text(f"It is on its way: ORD-{turn:04d}.", 20)},
    ]


def instructed_turn(turn: int, words: int = 110) -> History:
    """Turn with instructions in the middle of the conversation."""
    told = {"role": ("system", "developer")[turn % 2], "content": f"Rule {turn}: say what ORD-{turn:04d} costs."}
    return [told, *plain_turn(turn, words)] if turn % 3 == 0 else plain_turn(turn, words)


def ragged_turn(turn: int, words: int = 110) -> History:
    """Turn as clients send it that is not quite in order: lost results, results of nothing, two of one speaker in a
    row."""
    asked, answered = plain_turn(turn, words)
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": "find_parcel", "arguments": "{not json"}}
    match turn % 4:
        case 0:
            return [asked, {"role": "assistant", "content": "I will look.", "tool_calls": [call]}, answered]
        case 1:
            return [asked, {"role": "tool", "tool_call_id": f"lost_{turn}", "content": "found: nothing"}, answered]
        case 2:
            return [asked, {**asked, "content": "Are you there?"}, answered, {"role": "assistant", "content": ""}]
        case _:
            return [asked, {**answered, "refusal": "I cannot say that.", "content": None}, answered]


def _found(turn: int, number: int, words: int) -> str:
    if (turn + number) % 4 == 3:
        return f"Error: parcel PCL-{turn}{number} is not in the books"
    return json.dumps({"parcel": f"PCL-{turn}{number}", "state": "on a lorry", "notes": text("", words)})


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_parcel",
            "description": "Where a parcel is.",
            "parameters": {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]},
        },
    }
]
FUNCTIONS = [TOOLS[0]["function"]]

Turn = Callable[[int], History]


def conversation(turns: int, turn: Turn = plain_turn, first: int = 1, system: bool = True) -> History:
    """Conversation of `turns` turns and the next question."""
    told = [message for number in range(first, first + turns) for message in turn(number)]
    return [*([SYSTEM] if system else []), *told, {"role": "user", "content": f"And question {first + turns}?"}]


def growing(
    fewest: int, most: int, *headers: str, turn: Turn = plain_turn, every: int = 1, system: bool = True, **members: Any
) -> tuple[Step, ...]:
    """A client that resends its whole history, each time with a turn more."""
    lengths = range(fewest, most + 1, every)
    return tuple(Step(chat(conversation(length, turn, system=system), *headers, **members)) for length in lengths)
