"""The user's words in messages that are left out without a summary, beside which they would stand."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from app.compaction.chunks import UserWords
from app.compaction.user_words import fitting_words, own_entries, quote_user_words
from app.compaction.view import Conversation
from app.conversation.lazy import lazy
from app.conversation.quoting import fence_of
from app.tokens.estimate import Count

AROUND, TURN_TOKENS = 60, 6
"""Tokens around all words, and of a turn's number before what was said in it."""


class OmittedWords:
    """The user's words of one conversation, as `prune` asks for them."""

    def __init__(self, conversation: Conversation, room: int, count: Count) -> None:
        """`room`: most tokens."""
        self._conversation = conversation
        self._room = room
        self._count = count

    def tokens_of(self, index: int) -> int:
        return self._count(self._entries[index].text) + TURN_TOKENS if index in self._entries else 0

    def room_for(self, tokens: int) -> int:
        return AROUND + min(tokens, self._room) if tokens else 0

    def text(self, out: AbstractSet[int], room: int) -> str:
        said = [self._entries[index] for index in sorted(out) if index in self._entries]
        most = min(self._room, room - AROUND)
        kept = fitting_words(said, most, most, self._count)
        return quote_user_words(kept, fence_of(self._conversation.chain[max(out) + 1])) if kept else ""

    @lazy
    def _entries(self) -> dict[int, UserWords]:
        transcript = self._conversation.transcript
        return dict(own_entries(transcript, 0, len(transcript)))
