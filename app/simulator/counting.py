"""Counting: what a prompt costs, and how much of it a recent prompt shared."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

import msgspec

from app.simulator.messages import texts_of

Count = Callable[[str], int]

PER_MESSAGE = 3
REPLY_PRIME = 3
PER_CALL = 5
PER_MEDIA = 765
"""An image of 1024 x 1024 on gpt-4o; audio and files are taken for the same. Their bytes are never counted as text."""


def message_tokens(message: Mapping[str, Any], count: Count) -> int:
    """Tokens of one message: 3, its role, its texts, and whatever it calls or names."""
    total = PER_MESSAGE + count(message["role"]) + sum(map(count, texts_of(message)))
    content = message.get("content")
    if isinstance(content, list):
        total += sum(_part_tokens(part, count) for part in content)
    for key in ("name", "refusal"):
        if message.get(key):
            total += count(message[key])
    calls = [call[call["type"]] for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        calls.append(message["function_call"])
    return total + sum(_call_tokens(call, count) for call in calls)


def _part_tokens(part: Mapping[str, Any], count: Count) -> int:
    if part["type"] == "text":
        return 0  # counted with the texts
    return count(part["refusal"]) if part["type"] == "refusal" else PER_MEDIA


def _call_tokens(call: Mapping[str, Any], count: Count) -> int:
    return PER_CALL + count(call["name"]) + count(call.get("arguments", call.get("input", "")))


def extras_tokens(arguments: Mapping[str, Any], count: Count) -> int:
    """Tokens of tools, functions and a response schema, as their JSON."""
    values = [arguments.get(name) for name in ("tools", "functions")]
    response_format = arguments.get("response_format")
    if isinstance(response_format, dict):
        values.append(response_format.get("json_schema"))
    return sum(count(msgspec.json.encode(value).decode()) for value in values if value)


class PromptCache:
    """Remembers recent prompts, to say how much of a new one any of them began with, in whole parts."""

    def __init__(self, remembered: int = 64) -> None:
        self._prompts: deque[list[int]] = deque()
        self._prefixes: Counter[int] = Counter()
        self._remembered = remembered

    def shared_parts(self, parts: Iterable[bytes]) -> int:
        """How many leading parts a remembered prompt has too; then remember this one."""
        prefixes = list(accumulate(parts, lambda before, part: hash((before, part)), initial=0))[1:]
        shared = next((index for index, prefix in enumerate(prefixes) if prefix not in self._prefixes), len(prefixes))
        self._prompts.append(prefixes)
        self._prefixes.update(prefixes)
        if len(self._prompts) > self._remembered:
            self._forget(self._prompts.popleft())
        return shared

    def _forget(self, prefixes: list[int]) -> None:
        for prefix in prefixes:
            self._prefixes[prefix] -= 1
            if not self._prefixes[prefix]:
                del self._prefixes[prefix]
