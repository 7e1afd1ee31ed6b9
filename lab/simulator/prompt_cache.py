"""The provider's prompt cache: how much of a prompt a recent one shared."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

LOOKBACK = 20
"""Blocks in which Anthropic looks for an entry from a mark on, its own block included."""
BREAKPOINT = "prompt_cache_breakpoint"
_VERSION = re.compile(r"\bgpt-(\d+)(?:\.(\d+))?")
_FIRST_WITH_BREAKPOINTS = (5, 6)


class PromptCache:
    """Remembers recent prompts, to say how much of a new one any of them began with, in whole parts."""

    def __init__(self, remembered: int = 64) -> None:
        self._prompts: deque[list[int]] = deque()
        self._prefixes: Counter[int] = Counter()
        self._remembered = remembered

    def shared_parts(self, parts: Iterable[bytes]) -> int:
        """How many leading parts a remembered prompt has too; then remember this one."""
        prefixes = _prefixes(parts)
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


class Block(NamedTuple):
    """A part of a prompt behind which a cache breakpoint may stand."""

    content: bytes
    """Content, without breakpoints."""
    tokens: int
    is_marked: bool


class Cached(NamedTuple):
    """Tokens at the beginning of a prompt."""

    read: int
    """Tokens that an earlier prompt left in the cache."""
    written: int
    """Tokens behind those, up to the last breakpoint."""
    hour: int = 0
    """Tokens of those written that are kept for an hour."""


class BreakpointCache:
    """Keeps prompts up to their breakpoints, and finds an entry only where a breakpoint stood."""

    def __init__(self, lookback: int | None = None, remembered: int = 256) -> None:
        """`lookback`: blocks in which an entry is looked for from each breakpoint on, its own block included; None: the
        whole prompt."""
        self._entries: OrderedDict[int, None] = OrderedDict()
        self._lookback = lookback
        self._remembered = remembered

    def look_up(self, blocks: Sequence[Block]) -> Cached:
        """Find the longest entry that the prompt begins with; then keep its own."""
        marks = [place for place, block in enumerate(blocks) if block.is_marked]
        if not marks:
            return Cached(0, 0)
        prefixes, sums = _prefixes(block.content for block in blocks), [*accumulate(block.tokens for block in blocks)]
        found = max(
            (place for place in self._places(marks, len(blocks)) if prefixes[place] in self._entries), default=-1
        )
        for place in marks:
            self._entries[prefixes[place]] = None
            self._entries.move_to_end(prefixes[place])
        while len(self._entries) > self._remembered:
            self._entries.popitem(last=False)
        read = sums[found] if found >= 0 else 0
        return Cached(read, max(0, sums[marks[-1]] - read))

    def _places(self, marks: Sequence[int], end: int) -> Iterable[int]:
        if self._lookback is None:
            return range(end)
        return {place for mark in marks for place in range(max(0, mark + 1 - self._lookback), mark + 1)}


def has_breakpoints(model: str) -> bool:
    """Whether a model of OpenAI matches prompts at breakpoints only."""
    found = _VERSION.search(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= _FIRST_WITH_BREAKPOINTS


def blocks_at_breakpoints(
    head: bytes, messages: Sequence[Mapping[str, Any]], tokens: Sequence[int], options: object
) -> list[Block]:
    """Blocks of a prompt to OpenAI. `head`: what stands before the messages; `tokens`: of the head and each message;
    `options`: `prompt_cache_options`. Unless these say `explicit`, the newest message of a user or a tool ends with a
    breakpoint, too."""
    explicit = isinstance(options, dict) and options.get("mode") == "explicit"
    asking = [
        place
        for place, message in enumerate(messages)
        if message.get("role") in ("user", "tool") or _is_output(message)
    ]
    newest = asking[-1] if asking and not explicit else -1
    blocks = [Block(head, tokens[0], is_marked=False)]
    for place, (message, cost) in enumerate(zip(messages, tokens[1:], strict=True)):
        member = "output" if "output" in message else "content"
        held = message.get(member)
        parts: Sequence[Any] = held if isinstance(held, list) and held else [held]
        frame = {key: value for key, value in message.items() if key != member}
        written = [_unmarked(part) for part in parts]
        lengths = [len(part) for part in written]
        ends = [round(cost * length / sum(lengths)) for length in accumulate(lengths)]
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            marked = isinstance(part, dict) and part.get(BREAKPOINT) is not None
            content = msgspec.json.encode([frame if is_last else message.get("role")]) + written[index]
            taken = ends[index] - (ends[index - 1] if index else 0)
            blocks.append(Block(content, taken, marked or (is_last and place == newest)))
    return blocks


def _is_output(message: Mapping[str, Any]) -> bool:
    return str(message.get("type")).endswith("_output")


def _unmarked(part: object) -> bytes:
    """A part without its breakpoint; a text and one part with that text are the same."""
    if not isinstance(part, dict):
        return msgspec.json.encode(part)
    left = {key: value for key, value in part.items() if key != BREAKPOINT}
    match left:
        case {"text": str(text), **rest} if set(rest) <= {"type"}:
            return msgspec.json.encode(text)
        case _:
            return msgspec.json.encode(left)


def _prefixes(parts: Iterable[bytes]) -> list[int]:
    return list(accumulate(parts, lambda before, part: hash((before, part)), initial=0))[1:]
