"""Changing histories: whether what is summarised keeps being rewritten, so that no summary is ever used again.

A client that writes, say, the time into its first message shows another history each turn. Two of its summaries are a
habit, and a third one is not worth its price. Conversations that go on alike after different beginnings look the same
at a glance: those of a template, of an evaluation, of a gateway with one key. What distinguishes them is time. A
conversation only grows, so its forms follow one another, each a few messages longer and seen no more once the next one
is there; conversations of a template stand side by side. In doubt a history is not taken for a changing one: that
costs a summary, and the contrary leaves a conversation without.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations

from msgspec import Struct

from app.compaction.chunks import FirstChunk
from app.compaction.view import Conversation
from app.conversation.messages import Kind, Transcript

TELLING_TOKENS = 20
"""A message of this size hardly stands at the same place of two unrelated conversations."""

SHORT_LIVED_TURNS = 3
"""A form of a history that lasts longer is worth a summary."""

MOST_COMPARED = 100
"""Summaries, the latest; there are messages that thousands of histories hold at the same place."""


class Succession(Struct, frozen=True):
    """Two summarised forms of a history that may be earlier ones of this history, the second after the first."""

    known_beyond: int
    """A form seen with more messages than this differs from the second one."""
    length: int
    """Messages of the second one."""
    lasted: int
    """Number of messages by which the history grew before the first one was gone."""

    def is_refuted(self, length: int, seen: Collection[int]) -> bool:
        """Whether this history, of `length` messages, is none of theirs, or does not change as often any more.

        `seen`: the lengths it was seen with before, in the form it has now.
        """
        since = min((each for each in seen if each > self.known_beyond), default=length)
        return since <= self.length or length - since > self.lasted


def successions(
    conversation: Conversation, recent: Iterable[FirstChunk], conversation_id: str, *, named: bool
) -> list[Succession]:
    """Evidence for a history that keeps changing, among the chunks made recently.

    `named`: the client said which conversation it is. Otherwise a changed history is a new conversation for us, and
    what comes from a single other one is its own growth.
    """
    transcript, positions = conversation.transcript, conversation.chain.positions
    messages = transcript.messages
    forms = [
        form
        for form in recent
        if form.history_length < len(messages)
        and (not named or form.conversation_id == conversation_id)
        and form.through_digest not in positions
        and messages[form.last_index].digest == form.last_message_digest
        and transcript.tokens_of(form.last_index) >= TELLING_TOKENS
    ]
    forms.sort(key=lambda form: (form.created_at, form.history_length))
    turns = {form.history_length: transcript.turn_at(form.history_length) for form in forms}
    return [
        Succession(then.last_index, then.history_length, then.history_length - first.history_length)
        for first, then in combinations(forms[-MOST_COMPARED:], 2)
        if first.history_length < then.history_length
        and turns[then.history_length] - turns[first.history_length] <= SHORT_LIVED_TURNS
        and (first.conversation_id != then.conversation_id or then.conversation_id == conversation_id)
    ]


def changes_every_turn(conversation: Conversation, found: Iterable[Succession], heads: Iterable[bytes]) -> bool:
    """Whether one of the successions holds. `heads`: what earlier requests with this very history left behind."""
    positions, length = conversation.chain.positions, len(conversation.transcript)
    seen = _lengths(conversation.transcript, [place for head in heads if (place := positions[head]) < length])
    return any(not each.is_refuted(length, seen) for each in found)


def _lengths(transcript: Transcript, heads: Collection[int]) -> list[int]:
    """How many messages those requests had.

    What stands before a turn shows only that a request had more, and counts as the turn's first message. It is needed
    where the end is not found: some clients add to the last message what they leave out of it a turn later.
    """
    messages = transcript.messages
    ends = {place: transcript.turn_at(place) for place in heads if messages[place - 1].kind is not Kind.ASSISTANT}
    begun = [place + 1 for place in heads if messages[place].begins_turn]
    ended = frozenset(ends.values())
    return [*ends, *(place for place in begun if transcript.turn_at(place) not in ended)]
