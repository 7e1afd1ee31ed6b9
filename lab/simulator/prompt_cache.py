"""The provider's prompt cache: how much of a prompt a recent one shared."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from itertools import accumulate


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
