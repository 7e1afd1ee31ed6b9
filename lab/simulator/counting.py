"""Prompt tokens: those of the texts, and a little for each message; and how many of them the provider's cache has."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from app.tokens.estimate import Count

OF_A_PROMPT = 3
OF_A_MESSAGE = 4
OF_MEDIA = 765

_CACHED_PARTS = 50_000
# fmt: off
_MEDIA = frozenset({
    "image", "document", "input_image", "input_file", "container_upload", "image_url", "input_audio", "file",
})
_SILENT = frozenset({
    "type", "id", "role", "status", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature",
    "prompt_cache_breakpoint", "encrypted_content", "data", "annotations", "logprobs", "phase", "caller", "detail",
    "internal_chat_message_metadata_passthrough", "mimeType",
})
# fmt: on
"""Members that the model does not read."""


class Counting:
    """Counts parts as they stand; one that was counted before costs a look-up."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._of = lru_cache(_CACHED_PARTS)(self._afresh)

    def head(self, values: Iterable[Any]) -> int:
        """Tokens of a prompt but for its messages."""
        return OF_A_PROMPT + sum(map(self.texts, values))

    def part(self, value: Any) -> int:
        """Tokens of a message or an item."""
        return OF_A_MESSAGE + self.texts(value)

    def texts(self, value: Any) -> int:
        return self._of(msgspec.json.encode(value, order="deterministic")) if value else 0

    def _afresh(self, raw: bytes) -> int:
        return sum(OF_MEDIA if text is None else self._count(text) for text in texts_in(msgspec.json.decode(raw)))


def texts_in(value: Any) -> Iterator[str | None]:
    """Every text that the model reads; None for a picture or a file."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case {"type": str(kind)} if kind in _MEDIA:
            yield None
        case dict():
            for key, each in value.items():
                if key not in _SILENT:
                    yield from texts_in(each)
        case bool() | None:
            pass
        case _:
            yield str(value)


# Prompt cache: how much of a prompt a recent one shared

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
