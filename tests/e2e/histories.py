"""Chat requests of a known size."""

from __future__ import annotations

import json
from itertools import cycle, islice
from typing import Any

MODEL = "gpt-4o"
HELLO: list[Any] = [{"role": "user", "content": "What is in my cart?"}]
_FILLER = (
    "the customer asked about an order that was sent to the old address and the clerk wrote down what was agreed"
    " so that nobody has to ask again before the parcel returns to the warehouse"
)


def turns(number: int, words: int = 200, first: int = 1) -> list[Any]:
    """So many turns and the next question: each turn is a question and an answer of about `words` tokens each."""
    history: list[Any] = []
    for turn in range(first, first + number):
        history.append({"role": "user", "content": _text(f"Question {turn}, order ORD-{turn:04d}.", words)})
        history.append({"role": "assistant", "content": _text(f"Answer {turn}: about ORD-{turn:04d}.", words)})
    return [*history, {"role": "user", "content": f"And question {first + number}?"}]


def long_history(turns_of_400: int = 15) -> list[Any]:
    """With 15 turns about 6,300 tokens: over the trigger of an 8,000 token window, and within the window."""
    return turns(turns_of_400)


def said(role: str, content: Any) -> Any:
    return {"role": role, "content": content}


def calls(*names: str, tool: str = "read", arguments: str = "{}", content: str | None = None) -> Any:
    made = [{"id": name, "type": "function", "function": {"name": tool, "arguments": arguments}} for name in names]
    return {"role": "assistant", "content": content, "tool_calls": made}


def result(name: str, content: Any) -> Any:
    return {"role": "tool", "tool_call_id": name, "content": content}


def used(name: str, content: Any, tool: str = "read") -> list[Any]:
    """A call and its result."""
    return [calls(name, tool=tool), result(name, content)]


def chat(messages: list[Any] | None = None, **members: Any) -> bytes:
    """A chat request's body."""
    return json.dumps({"model": MODEL, "messages": messages or HELLO, **members}).encode()


def _text(beginning: str, words: int) -> str:
    filler = islice(cycle(_FILLER.split()), words)
    return " ".join((beginning, *filler))
