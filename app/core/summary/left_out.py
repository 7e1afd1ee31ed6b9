"""Rules of messages that a stub stands for: no summary could be made, beside which they would stand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from app.core.history.authored_text import authored_text
from app.core.lazy import lazy
from app.core.quoting import fence_of
from app.core.summary.beside import fitting
from app.core.summary.prompts import rules_beside
from app.core.summary.rules import MOST_RULES, rules_of
from app.core.view.view import Conversation
from app.tokens.estimate import Count


class RulesLeftOut:
    """Rules of one conversation, as `prune` asks for them. Messages are read once, and as far as they are asked for."""

    def __init__(self, conversation: Conversation, room: int, count: Count) -> None:
        """`room`: most tokens."""
        self._conversation = conversation
        self._room = room
        self._count = count
        self._words: Iterator[tuple[int, list[str]]] = iter(())
        self._first = self._stop = len(conversation.transcript)
        """Messages that are read."""
        self._found: dict[int, list[str]] = {}

    def tokens_of(self, index: int) -> int:
        return sum(self._count(rule) + 1 for rule in self._of(index))

    def room_for(self, tokens: int) -> int:
        return self._around + min(tokens, self._room) if tokens else 0

    def text(self, out: AbstractSet[int], room: int) -> str:
        newest: dict[str, None] = {}
        for index in sorted(out):
            for rule in self._of(index):
                newest.pop(rule, None)
                newest[rule] = None
        if not newest:
            return ""
        rules = [*reversed(newest)][:MOST_RULES]
        kept = fitting(rules, min(self._room, room - self._around), self._count)
        return rules_beside(kept, len(rules) - len(kept), fence_of(self._conversation.chain[max(out) + 1]))

    @lazy
    def _around(self) -> int:
        """Tokens of what stands around rules."""
        return self._count(rules_beside(("",), MOST_RULES, fence_of(self._conversation.chain[0])))

    def _of(self, index: int) -> Sequence[str]:
        """Rules that a message sets, oldest first."""
        if index < self._first:
            self._first = self._stop = index
            self._words = authored_text(self._conversation.transcript.messages, index)
            self._found = {}
        while self._stop <= index:
            place, pieces = next(self._words, (len(self._conversation.transcript), list[str]()))
            self._found.setdefault(place, []).extend(rules_of(pieces))
            self._stop = place + 1
        return self._found.get(index, ())
