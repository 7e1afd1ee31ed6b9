"""The provider's prompt cache: how much of a prompt a recent one shared."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

LOOKBACK = 20
"""Blocks in which an entry is looked for from each breakpoint on, its own block included."""


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

    def __init__(self, lookback: int = LOOKBACK, remembered: int = 256) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()
        self._lookback = lookback
        self._remembered = remembered

    def look_up(self, blocks: Sequence[Block]) -> Cached:
        """Find the longest entry that the prompt begins with; then keep its own."""
        marks = [place for place, block in enumerate(blocks) if block.is_marked]
        if not marks:
            return Cached(0, 0)
        prefixes, sums = _prefixes(block.content for block in blocks), [*accumulate(block.tokens for block in blocks)]
        places = {place for mark in marks for place in range(max(0, mark + 1 - self._lookback), mark + 1)}
        found = max((place for place in places if prefixes[place] in self._entries), default=-1)
        for place in marks:
            self._entries[prefixes[place]] = None
            self._entries.move_to_end(prefixes[place])
        while len(self._entries) > self._remembered:
            self._entries.popitem(last=False)
        read = sums[found] if found >= 0 else 0
        return Cached(read, max(0, sums[marks[-1]] - read))


def _prefixes(parts: Iterable[bytes]) -> list[int]:
    return list(accumulate(parts, lambda before, part: hash((before, part)), initial=0))[1:]
